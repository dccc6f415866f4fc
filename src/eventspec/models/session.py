"""Any of our own language models as a Target: prefill of visual and text rows, one forward per round, a cache that keeps
the accepted path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eventspec.core import BadInput, Limits, Proposal, Request, Scores, TappedPrompt, TargetSession, Trace, Verdict
from eventspec.engine.numerics import measured_rounding
from eventspec.engine.tree import depths, is_chain, tree_mask
from eventspec.nn import KVCache, Llama


@dataclass(frozen=True)
class Spliced:
    """A prompt as rows float [T, D], and where its visual rows lie, [begin, end)."""

    rows: Tensor
    visual: tuple[int, int]


Rows = Callable[[Request, Trace, str], Spliced]
"""(request, trace, lane) -> the prompt; vision encoding happens here."""


def splice(language: Llama, before: list[int], visual: Tensor, after: list[int]) -> Spliced:
    """Text ids, visual rows [T, D], text ids, as one prompt."""
    ids = torch.tensor(before + after, device=visual.device)
    text = language.embed(ids).to(visual.dtype)
    rows = torch.cat((text[: len(before)], visual, text[len(before) :]))
    return Spliced(rows, (len(before), len(before) + len(visual)))


class LanguageTarget:
    """A vision-language model that verifies: `rows` makes its prompt, `language` reads it."""

    lossless = True

    def __init__(self, language: Llama, rows: Rows, name: str = "target") -> None:
        self.language, self.rows, self.name = language, rows, name

    @cached_property
    def limits(self) -> Limits:
        """As `core.Target.limits`."""
        config = self.language.config
        return Limits(config.vocab_size, config.num_hidden_layers, True, rounding_of(self.language))

    def prefill(self, request: Request, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> LanguageSession:
        """As `core.Target.prefill`; raises BadInput when prompt and answer do not fit the context."""
        spliced = self.rows(request, trace, "target")
        prompt = spliced.rows
        trace.sizes["prompt"] = len(prompt)
        check_context(len(prompt), request.sampling.max_new_tokens, self.language.config.max_position_embeddings)
        # Draft nodes are dropped again, but they need rows while they are verified.
        capacity = len(prompt) + request.sampling.max_new_tokens + _DRAFT_ROWS
        cache = self.language.new_cache(capacity)
        session = LanguageSession(self.language, cache, spliced, taps)
        if len(prompt) > max(1, tail):
            began = trace.now()
            session.read(len(prompt) - max(1, tail))  # the last row stays: its forward gives the first logits
            trace.span("prefill", "target", began)
        return session


_DRAFT_ROWS = 160
_PROBE = 32


def rounding_of(language: Llama) -> float:
    """How far apart logits may lie and yet change places when a row is scored among others, measured behind a random prompt."""
    config = language.config
    length = min(_PROBE, config.max_position_embeddings // 2)
    device = language.embed.weight.device
    ids = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).to(device)

    def begin() -> TargetSession:
        return LanguageSession(language, language.new_cache(2 * length), Spliced(language.embed(ids), (0, 0)))

    with torch.inference_mode():
        return measured_rounding(begin, config.vocab_size, length - 1)


def check_context(rows: int, most: int, context: int) -> None:
    """BadInput when a prompt of so many rows and an answer of `most` tokens do not fit the context."""
    if rows + most > context:
        raise BadInput(
            f"prompt of {rows} rows and max_new_tokens {most} exceed the context of {context}: "
            "shorten the prompt, or ask for fewer frames or tokens"
        )


class LanguageSession:
    """Pending prompt or bonus rows, and the cache behind them; the features of the layers `taps` where a drafter reads them."""

    def __init__(self, language: Llama, cache: KVCache, prompt: Spliced, taps: tuple[int, ...] = ()) -> None:
        self.language, self.cache, self.pending, self.taps = language, cache, prompt.rows, taps
        self._prompt = prompt
        self._features: list[Tensor] = []  # of the prompt's rows, as they are read

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        features = self._through(self.pending[:rows])[1]
        if features is not None:
            self._features.append(features)
        self.cache.keep(rows, [])
        self.pending = self.pending[rows:]

    @property
    def room(self) -> int:
        """As `core.TargetSession.room`."""
        return self.cache.capacity - self.cache.length - len(self.pending)

    def again(self) -> TargetSession:
        """As `core.TargetSession.again`; equal capacity, so that keys lie at equal strides and kernels make equal sums."""
        return LanguageSession(self.language, self.language.new_cache(self.cache.capacity), self._prompt)

    def prompt(self) -> TappedPrompt:
        """As `core.TargetSession.prompt`; copies, because the answer may be read again from these rows."""
        features = self._features[0] if len(self._features) == 1 else torch.cat(self._features)
        return TappedPrompt(self._prompt.rows.clone(), features, self._prompt.visual)

    def _through(self, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The last layer's output [T, D], and the tapped features [T, F] if any are asked for."""
        inner = tuple(layer for layer in self.taps if layer >= 0)
        hidden, tapped = self.language.step(x, self.cache, positions, mask, inner)
        if not self.taps:
            return hidden, None
        found = dict(zip(sorted(set(inner)), tapped, strict=True))
        found[-1] = self.language.normed(hidden)
        return hidden, torch.cat([found[layer] for layer in self.taps], 1)

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V]; the proposal fits `limits` and `room`."""
        language, cache, pending = self.language, self.cache, self.pending
        count, waiting = len(proposal), len(pending)
        if not count:
            hidden, features = self._through(pending)
            return self._scores(hidden, features)
        assert count <= self.room, "the caller cuts proposals to the room there is"
        tokens = torch.from_numpy(proposal.tokens).to(pending.device)
        x = torch.cat((pending, language.embed(tokens)))
        parents = proposal.parents.tolist()
        positions = mask = None
        if not is_chain(parents):
            start = cache.length
            levels = [start + waiting + depth for depth in depths(parents)]
            positions = torch.tensor([*range(start, start + waiting), *levels], device=x.device)
            mask = tree_mask(parents, start, waiting, x.device)
        hidden, features = self._through(x, positions, mask)
        return self._scores(hidden, features)

    def _scores(self, hidden: Tensor, features: Tensor | None) -> Scores:
        """Of the last pending row and the nodes behind it."""
        root = len(self.pending) - 1
        if features is None:
            return Scores(self.language.logits(hidden[root:]))
        if sum(map(len, self._features)) < len(self._prompt.rows):
            self._features.append(features[: root + 1])
        return Scores(self.language.logits(hidden[root:]), features[root:])

    def commit(self, verdict: Verdict) -> None:
        """As `core.TargetSession.commit`."""
        self.cache.keep(len(self.pending), verdict.path.tolist())
        bonus = torch.from_numpy(verdict.tokens[-1:]).to(self.pending.device)
        self.pending = self.language.embed(bonus)

    def fork(self) -> TargetSession:
        """A second session with the same prefix; the rows are copied because both live on."""
        twin = LanguageSession(self.language, self.cache.fork(), self._prompt, self.taps)
        twin.pending, twin._features = self.pending, list(self._features)
        return twin
