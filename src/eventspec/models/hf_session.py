"""Any transformers vision-language model as a Target: rows go in as `inputs_embeds`, trees as 4-D masks, and what the rule
refuses is taken out of the cache again. Nothing here imports transformers; `hf_target` opens the folders.

`cache.crop` is not used: what a positive number means changed between 5.17 and 5.23, and a tree's path needs a gather anyway.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from eventspec.core import Limits, Proposal, Request, Scores, TappedPrompt, TargetSession, Trace, Verdict
from eventspec.engine.lanes import ProcessLock
from eventspec.engine.numerics import measured_rounding
from eventspec.engine.tree import depths, is_chain, tree_mask
from eventspec.models.session import check_context


@dataclass(frozen=True)
class Prompt:
    """rows float [T, D]; positions int64 [R, T]: R is 1, or 3 with M-RoPE (time, height, width)."""

    rows: Tensor
    positions: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, begin: int, end: int) -> Prompt:
        """Rows [begin, end) with their positions."""
        return Prompt(self.rows[begin:end], self.positions[:, begin:end])


Prompts = Callable[[Request, Trace, str], Prompt]
"""(request, trace, lane) -> the prompt with visual rows in place; vision encoding happens here."""


@dataclass(frozen=True)
class HfLanguage:
    """The text half of a model: `model` called without pixels, an empty cache that grows, and its limits. context 0: none."""

    model: nn.Module
    new_cache: Callable[[], Any]
    vocabulary: int
    context: int
    trees: bool = True

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        decoder: Any = self.model.get_decoder()  # type: ignore[operator]
        return len(decoder.layers)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [N] -> rows float [N, D], as the model's own forward makes them."""
        rows: Tensor = self.model.get_input_embeddings()(ids)  # type: ignore[operator]
        return rows

    def step(
        self, prompt: Prompt, cache: Any, mask: Tensor | None, keep: int, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """One forward behind the cache, which grows by its rows: logits float [keep, V] of the last rows, and the outputs of
        the layers `taps` (as in `core.Target.prefill`) side by side, [T, F].

        mask bool [T, past + T], True = may look; None: the model makes its own, causal or sliding.
        """
        seen: dict[int, Tensor] = {}
        positions = prompt.positions if len(prompt.positions) == 1 else prompt.positions[:, None]
        with alone(self.model):
            hooks = [self._tapped(layer).register_forward_hook(_keeps(seen, layer)) for layer in taps]
            try:
                found = self.model(
                    inputs_embeds=prompt.rows[None],
                    attention_mask=None if mask is None else additive(mask, prompt.rows.dtype),
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=keep,
                )
            finally:
                for hook in hooks:
                    hook.remove()
        return found.logits[0, -keep:], torch.cat([seen[layer] for layer in taps], 1) if taps else None

    def _tapped(self, layer: int) -> nn.Module:
        """The module whose output is a layer's; -1: the final norm's, which the head reads."""
        decoder: Any = self.model.get_decoder()  # type: ignore[operator]
        found: nn.Module = decoder.norm if layer < 0 else decoder.layers[layer - 1]
        return found


_LOCKS: weakref.WeakKeyDictionary[nn.Module, ProcessLock] = weakref.WeakKeyDictionary()


def alone(model: nn.Module) -> ProcessLock:
    """The lock of a model: one call at a time, whoever holds it. We read inside it through hooks, which hear every call."""
    return _LOCKS.setdefault(model, ProcessLock())


def _keeps(seen: dict[int, Tensor], layer: int) -> Callable[[Any, Any, Any], None]:
    """A hook that keeps a module's output [T, D]; decoder layers give it alone or first of several."""

    def keep(module: Any, inputs: Any, output: Any) -> None:
        seen[layer] = (output[0] if isinstance(output, tuple) else output)[0]

    return keep


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """bool [Q, K] -> float [1, 1, Q, K], 0 where one may look. Eager attention adds its mask: it takes a bool one silently and
    wrongly."""
    blocked = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return blocked.masked_fill_(~mask, torch.finfo(dtype).min)[None, None]


class HfTarget:
    """A transformers model that verifies: `prompts` makes its prompt, `language` reads it; `example` is a prompt to measure
    with."""

    lossless = True

    def __init__(self, language: HfLanguage, prompts: Prompts, example: Prompt) -> None:
        self.language, self.prompts, self.example = language, prompts, example

    @cached_property
    def limits(self) -> Limits:
        """As `core.Target.limits`."""
        language, example = self.language, self.example
        with torch.inference_mode():
            rounding = measured_rounding(lambda: opened(language, example), language.vocabulary)
        return Limits(language.vocabulary, language.layers, language.trees, rounding)

    def prefill(self, request: Request, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> HfSession:
        """As `core.Target.prefill`; raises BadInput when prompt and answer do not fit the context."""
        prompt = self.prompts(request, trace, "target")
        trace.sizes["prompt"] = len(prompt)
        if self.language.context:
            check_context(len(prompt), request.sampling.max_new_tokens, self.language.context)
        session = opened(self.language, prompt, taps)
        if len(prompt) > (waiting := max(1, tail)):
            began = trace.now()
            session.read(len(prompt) - waiting)  # the last row stays: its forward gives the first logits
            trace.span("prefill", "target", began)
        return session


def opened(language: HfLanguage, prompt: Prompt, taps: tuple[int, ...] = ()) -> HfSession:
    """A session that has read nothing of its prompt yet."""
    return HfSession(language, language.new_cache(), prompt, int(prompt.positions.max()) + 1, taps=taps)


class HfSession:
    """Pending prompt or bonus rows, the cache behind them, and `following`, the position of whatever comes next."""

    def __init__(
        self, language: HfLanguage, cache: Any, pending: Prompt, following: int, length: int = 0, taps: tuple[int, ...] = ()
    ) -> None:
        self.language, self.cache, self.pending = language, cache, pending
        self.following, self.length, self.taps = following, length, taps
        self._prompt = pending
        self._features: list[Tensor] = []  # of the prompt's rows, as they are read

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        _, features = self.language.step(self.pending.part(0, rows), self.cache, None, 1, self.taps)
        if features is not None:
            self._features.append(features)
        self.pending = self.pending.part(rows, len(self.pending))
        self.length += rows

    @property
    def room(self) -> int:
        """As `core.TargetSession.room`: the cache grows."""
        return 1 << 30

    def again(self) -> TargetSession:
        """As `core.TargetSession.again`."""
        return opened(self.language, self._prompt)

    def prompt(self) -> TappedPrompt:
        """As `core.TargetSession.prompt`; copies, because the answer may be read again from these rows."""
        return TappedPrompt(self._prompt.rows.clone(), torch.cat(self._features), (0, 0))

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`; the proposal fits `limits` and `room`."""
        pending, count = self.pending, len(proposal)
        parents = proposal.parents.tolist()
        straight = is_chain(parents)
        keep_rows(self.cache, self.length, [])  # an earlier score may not have been followed by a verdict
        mask = None if straight else tree_mask(parents, self.length, len(pending), pending.rows.device)
        scored = self._behind(pending, proposal.tokens.tolist(), depths(parents))
        logits, features = self.language.step(scored, self.cache, mask, count + 1, self.taps)
        if features is None:
            return Scores(logits)
        if sum(map(len, self._features)) < len(self._prompt):
            self._features.append(features[: len(pending)])
        return Scores(logits, features[len(pending) - 1 :])

    def commit(self, verdict: Verdict) -> None:
        """As `core.TargetSession.commit`."""
        accepted = len(verdict.path)
        self.length += len(self.pending)
        keep_rows(self.cache, self.length, verdict.path.tolist())
        self.length += accepted
        nothing = self.pending.part(0, 0)
        self.pending = self._behind(nothing, verdict.tokens[-1:].tolist(), [accepted])
        self.following += accepted + 1

    def fork(self) -> TargetSession:
        """A second session with the same prefix; the rows are copied because both live on."""
        keep_rows(self.cache, self.length, [])
        twin = self.language.new_cache()
        for number, layer in enumerate(self.cache.layers):
            if layer.is_initialized:
                twin.update(layer.keys, layer.values, number)
        copy = HfSession(self.language, twin, self.pending, self.following, self.length, self.taps)
        copy._prompt, copy._features = self._prompt, list(self._features)
        return copy

    def _behind(self, prompt: Prompt, tokens: Sequence[int], levels: Sequence[int]) -> Prompt:
        """A prompt with tokens behind it, each at its level: text has the same position in all rows of M-RoPE."""
        if not tokens:
            return prompt
        device = prompt.rows.device
        rows = self.language.embed(torch.tensor(tokens, device=device)).to(prompt.rows.dtype)
        positions = torch.tensor(levels, device=device) + self.following
        positions = positions.expand(len(prompt.positions), -1)
        return Prompt(torch.cat((prompt.rows, rows)), torch.cat((prompt.positions, positions), 1))


def keep_rows(cache: Any, rows: int, path: Sequence[int]) -> None:
    """Keep the first `rows` rows of every layer and those at the offsets `path` behind them, ascending; drop the others."""
    for layer in cache.layers:
        if not layer.is_initialized:  # layers that share another's keys have none
            continue
        if list(path) == list(range(len(path))):
            kept = slice(0, rows + len(path))
            layer.keys, layer.values = layer.keys[..., kept, :], layer.values[..., kept, :]
            continue
        places = torch.tensor([*range(rows), *(rows + offset for offset in path)], device=layer.keys.device)
        layer.keys, layer.values = layer.keys.index_select(-2, places), layer.values.index_select(-2, places)
