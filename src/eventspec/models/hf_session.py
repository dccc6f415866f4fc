"""Any transformers vision-language model as a Target: rows go in as `inputs_embeds`, trees as 4-D masks, and what the rule
refuses is taken out of the cache again. Nothing here imports transformers; `hf_target` opens the folders.

`cache.crop` is not used: what a positive number means changed between 5.17 and 5.23, and a tree's path needs a gather anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eventspec.core import Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.engine.tree import BadProposal, depths, is_chain, tree_mask
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

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [N] -> rows float [N, D], as the model's own forward makes them."""
        rows: Tensor = self.model.get_input_embeddings()(ids)  # type: ignore[operator]
        return rows

    def step(self, prompt: Prompt, cache: Any, mask: Tensor | None, keep: int) -> tuple[Tensor, Tensor]:
        """One forward behind the cache, which grows by its rows: logits float [keep, V] of the last rows, and the head's input
        [keep, F]. mask bool [T, past + T], True = may look; None: the model makes its own, causal or sliding."""
        seen: list[Tensor] = []
        head: nn.Module = self.model.get_output_embeddings()  # type: ignore[operator]
        # The head's own input, whatever the model calls its hidden states.
        hook = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        positions = prompt.positions if len(prompt.positions) == 1 else prompt.positions[:, None]
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
            hook.remove()
        return found.logits[0, -keep:], seen[-1][0, -keep:]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """bool [Q, K] -> float [1, 1, Q, K], 0 where one may look. Eager attention adds its mask: it takes a bool one silently and
    wrongly."""
    blocked = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return blocked.masked_fill_(~mask, torch.finfo(dtype).min)[None, None]


class HfTarget:
    """A transformers model that verifies: `prompts` makes its prompt, `language` reads it."""

    lossless = True

    def __init__(self, language: HfLanguage, prompts: Prompts) -> None:
        self.language, self.prompts = language, prompts

    def prefill(self, request: Request, tail: int, trace: Trace) -> HfSession:
        """As `core.Target.prefill`; raises BadInput when prompt and answer do not fit the context."""
        prompt = self.prompts(request, trace, "target")
        trace.sizes["prompt"] = len(prompt)
        if self.language.context:
            check_context(len(prompt), request.sampling.max_new_tokens, self.language.context)
        session = HfSession(self.language, self.language.new_cache(), prompt, int(prompt.positions.max()) + 1)
        if len(prompt) > (waiting := max(1, tail)):
            began = trace.now()
            session.read(len(prompt) - waiting)  # the last row stays: its forward gives the first logits
            trace.span("prefill", "target", began)
        return session


class HfSession:
    """Pending prompt or bonus rows, the cache behind them, and `following`, the position of whatever comes next."""

    def __init__(self, language: HfLanguage, cache: Any, pending: Prompt, following: int, length: int = 0) -> None:
        self.language, self.cache, self.pending = language, cache, pending
        self.following, self.length = following, length

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        self.language.step(self.pending.part(0, rows), self.cache, None, 1)
        self.pending = self.pending.part(rows, len(self.pending))
        self.length += rows

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V], features float [N+1, F] (the head's input); BadProposal for
        ids this model has no row for, and for branches where it reads chains only."""
        pending, count = self.pending, len(proposal)
        parents = proposal.parents.tolist()
        straight = is_chain(parents)
        if count and (largest := proposal.tokens.max()) >= self.language.vocabulary:
            raise BadProposal(f"token {largest} is none of the target's {self.language.vocabulary}")
        if not straight and not self.language.trees:
            raise BadProposal("the target reads chains only, and this draft has branches")
        keep_rows(self.cache, self.length, [])  # an earlier score may not have been followed by a verdict
        mask = None if straight else tree_mask(parents, self.length, len(pending), pending.rows.device)
        scored = self._behind(pending, proposal.tokens.tolist(), depths(parents))
        logits, features = self.language.step(scored, self.cache, mask, count + 1)
        return Scores(logits, features)

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
        return HfSession(self.language, twin, self.pending, self.following, self.length)

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
