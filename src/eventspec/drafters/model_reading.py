"""What every way of drafting with a language model begins with: the model, its prompt, its cache, and the committed tokens that
it has not read yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eventspec.core import Request, Trace
from eventspec.models.prefix import Prefix
from eventspec.models.prompt import Prompt
from eventspec.nn import Llama
from eventspec.nn.runner import Rows

Written = tuple[tuple[int, float], ...]
"""Tokens of an answer from its beginning on, each with the probability that its writer gave it after those before."""
Lookahead = Callable[[str, Sequence[int]], list[int]]
"""(question, answer so far) -> the tokens that are likely to follow, at best a few; [] where that is not clear."""
Scored = Callable[[Tensor, Tensor], Tensor]
"""Logits [T, V] of what follows rows [T, D], from the last layer's outputs [T, D] and the rows."""


@dataclass(frozen=True)
class DraftModel:
    """A language model that drafts: `eos_id` is its end-of-text id; ids from `limit` on are never drafted (rows without a
    token, tokens that the target does not share); `lookahead` is read ahead; `scored` replaces the model's own head."""

    name: str
    language: Llama
    eos_id: int
    limit: int | None = None
    lookahead: Lookahead | None = None
    scored: Scored | None = None


class ModelReading:
    """A prompt that is read, as far as no question before shared it, in a cache with `spare` rows for drafts.

    hidden: the last layer's output of the last row that was read, [1, D]; base: rows of the cache that are committed; unread:
    committed tokens that are not in it; written: the answer as the drafter would give it, as far as it went.
    """

    def __init__(self, model: DraftModel, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace, spare: int) -> None:
        self.model, self.language, self.request, self.trace = model, model.language, request, trace
        self.context, most = self.language.config.max_position_embeddings, request.sampling.max_new_tokens
        self.base = len(prompt.rows)
        reading, self._loan = prefix.begin(prompt, min(self.context, self.base + most + 2) + spare)
        self.cache = reading.cache
        rows = prompt.rows[reading.rows :]
        self.hidden = self.forward(rows, wanted=1)
        reading.add(len(rows), {})
        self.cache.keep(len(rows), [])
        self.answer, self.unread = list[int](), list[int]()
        self.written: Written = ()

    def embedded(self, tokens: list[int]) -> Tensor:
        """Rows [T, D] of tokens."""
        rows: Tensor = self.language.embed(torch.tensor(tokens, device=self.language.embed.weight.device))
        return rows

    def forward(
        self, rows: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, wanted: int | None = None
    ) -> Tensor:
        """Read rows [T, D] after the cached ones; the last layer's output for all of them, or the last `wanted`."""
        began = self.trace.now()
        hidden, _ = self.language.runner().step(Rows(rows, self.cache, positions, mask), wanted=wanted)
        self.trace.forward("drafter", self.trace.now() - began)
        return hidden

    def read_unread(self, ahead: list[int]) -> tuple[Tensor, Tensor]:
        """Read what is unread, which is committed, and `ahead` behind it: rows and the last layer's outputs [1 + A, D] from the
        last committed one on. ValueError for what the model has no row or position for: on CUDA such an index ends the whole
        process's use of the device, the target's included."""
        if (largest := max(self.unread)) >= self.language.config.vocab_size:
            raise ValueError(f"token {largest} is none of the drafter's {self.language.config.vocab_size}")
        if (rows := self.base + len(self.unread)) > self.context:
            raise ValueError(f"the answer reaches row {rows} of the drafter's context of {self.context}")
        self.cache.length, wanted = self.base, 1 + len(ahead)
        read = self.embedded(self.unread + ahead)
        hidden = self.forward(read, wanted=wanted)
        self.cache.keep(len(self.unread), [])
        self.base, self.unread = rows, []
        return read[-wanted:], hidden
