"""Any of our own language models as a Target: prefill of visual and text rows, one forward per round, a cache that keeps
the accepted path."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eventspec.core import BadInput, Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.engine.tree import BadProposal, depths, is_chain, tree_mask
from eventspec.nn import KVCache, Llama

Rows = Callable[[Request, Trace, str], Tensor]
"""(request, trace, lane) -> the prompt as float rows [T, D], visual rows in place; vision encoding happens here."""


def splice(language: Llama, before: list[int], visual: Tensor, after: list[int]) -> Tensor:
    """Text ids, visual rows [T, D], text ids -> prompt rows [T', D]."""
    ids = torch.tensor(before + after, device=visual.device)
    text = language.embed(ids).to(visual.dtype)
    return torch.cat((text[: len(before)], visual, text[len(before) :]))


class LanguageTarget:
    """A vision-language model that verifies: `rows` makes its prompt, `language` reads it."""

    lossless = True

    def __init__(self, language: Llama, rows: Rows, name: str = "target") -> None:
        self.language, self.rows, self.name = language, rows, name

    def prefill(self, request: Request, tail: int, trace: Trace) -> LanguageSession:
        """As `core.Target.prefill`; raises BadInput when prompt and answer do not fit the context."""
        prompt = self.rows(request, trace, "target")
        trace.sizes["prompt"] = len(prompt)
        check_context(len(prompt), request.sampling.max_new_tokens, self.language.config.max_position_embeddings)
        # Draft nodes are dropped again, but they need rows while they are verified.
        capacity = len(prompt) + request.sampling.max_new_tokens + _DRAFT_ROWS
        cache = self.language.new_cache(capacity)
        session = LanguageSession(self.language, cache, prompt)
        if len(prompt) > max(1, tail):
            began = trace.now()
            session.read(len(prompt) - max(1, tail))  # the last row stays: its forward gives the first logits
            trace.span("prefill", "target", began)
        return session


_DRAFT_ROWS = 160


def check_context(rows: int, most: int, context: int) -> None:
    """BadInput when a prompt of so many rows and an answer of `most` tokens do not fit the context."""
    if rows + most > context:
        raise BadInput(
            f"prompt of {rows} rows and max_new_tokens {most} exceed the context of {context}: "
            "shorten the prompt, or ask for fewer frames or tokens"
        )


class LanguageSession:
    """Pending prompt or bonus rows, and the cache behind them."""

    def __init__(self, language: Llama, cache: KVCache, pending: Tensor) -> None:
        self.language, self.cache, self.pending = language, cache, pending

    def read(self, rows: int) -> None:
        """Move the first `rows` pending rows into the cache."""
        self.language.step(self.pending[:rows], self.cache)
        self.cache.keep(rows, [])
        self.pending = self.pending[rows:]

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: logits float [N+1, V]; BadProposal for ids this model has no row for."""
        language, cache, pending = self.language, self.cache, self.pending
        count, waiting = len(proposal), len(pending)
        if not count:
            hidden, _ = language.step(pending, cache)
            return Scores(language.logits(hidden[-1:]))
        if (largest := proposal.tokens.max()) >= language.config.vocab_size:
            raise BadProposal(f"token {largest} is none of the target's {language.config.vocab_size}")
        if cache.length + waiting + count > cache.capacity:
            raise BadProposal(f"{count} nodes do not fit into the cache")
        tokens = torch.from_numpy(proposal.tokens).to(pending.device)
        x = torch.cat((pending, language.embed(tokens)))
        parents = proposal.parents.tolist()
        positions = mask = None
        if not is_chain(parents):
            start = cache.length
            levels = [start + waiting + depth for depth in depths(parents)]
            positions = torch.tensor([*range(start, start + waiting), *levels], device=x.device)
            mask = tree_mask(parents, start, waiting, x.device)
        hidden, _ = language.step(x, cache, positions, mask)
        return Scores(language.logits(hidden[waiting - 1 :]))

    def commit(self, verdict: Verdict) -> None:
        """As `core.TargetSession.commit`."""
        self.cache.keep(len(self.pending), verdict.path.tolist())
        bonus = torch.from_numpy(verdict.tokens[-1:]).to(self.pending.device)
        self.pending = self.language.embed(bonus)

    def fork(self) -> TargetSession:
        """A second session with the same prefix; the rows are copied because both live on."""
        return LanguageSession(self.language, self.cache.fork(), self.pending)
