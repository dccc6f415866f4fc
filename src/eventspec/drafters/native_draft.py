"""A small language model whose draft trees are grown in machine code, a whole tree in one call.

What `drafters.language_model` grows leaf by leaf takes a forward of some thirty operations of torch a level; here a level takes
a tenth of that (`nn/draft_tree.c`). So every draft is a tree from scratch, and only what was committed is kept.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, Trace, Verdict
from eventspec.drafters.model_reading import DraftModel, ModelReading, Written
from eventspec.models.prefix import Prefix
from eventspec.models.prompt import Prompt
from eventspec.nn.cpu.native import NativeHead
from eventspec.nn.layer import layer_weights
from eventspec.nn.weights import HeadWeights, TreeGrowth
from eventspec.tree import best_chain, best_nodes

_WIDTH = 4
_LEVELS = 32
"""Levels of a tree, at most: as many as a head start has nodes."""
_FEWER = 12
"""The same where the target waits already: it has most of what is accepted, in 0.7 ms."""
_SPARE = 64
"""Rows of a cache beyond an answer's own: trees need none."""
_WRITTEN = 16
"""Tokens that are written on before they are read: what is drafted together is looked up row by row."""
Grown = tuple[Tensor, Tensor, Tensor]
"""Tokens, parents (-1: the root) and logarithms of path probabilities, [M] each, in level order, siblings likeliest first."""


def native_model(model: DraftModel) -> NativeHead | None:
    """A language model as trees are grown with it; None where that cannot be."""
    language, first = model.language, model.language.decoder_layer(0)
    layers = [layer_weights(language.decoder_layer(number)) for number in range(language.config.num_hidden_layers)]
    head, norm = language.head.weight.detach()[: model.limit], language.norm.detach()
    return NativeHead.of(HeadWeights(layers, head, first.heads, first.eps, out_norm=norm))


class NativeDraft(ModelReading, DraftSession):
    def __init__(
        self, native: NativeHead, model: DraftModel, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace
    ) -> None:
        super().__init__(model, prompt, prefix, request, trace, _SPARE)
        self.native, self._tables = native, [self.language.embed.weight, self.language.cos, self.language.sin]
        self._known: tuple[tuple[int, float, float], Grown] | None = None  # the latest tree, and the limits it was grown to

    def propose(self, budget: Budget) -> Proposal:
        if self.unread:
            _, self.hidden = self.read_unread([])
            self._known = None
        most = min(_FEWER if budget.until() else _LEVELS, budget.max_depth, self.context - self.base)
        how = max(1, most), budget.min_path_prob, budget.min_frontier_prob
        if self._known is None or self._known[0] != how:
            self._known = how, self._grown(self.hidden, self.base, _WIDTH, *how)
        tokens, parents, logs = self._known[1]
        proposal = best_nodes(tokens.numpy(), parents.numpy(), logs.numpy(), budget, self.model.name)
        if budget.show is not None:
            budget.show(best_chain(proposal))
        if not self.answer:  # after a verdict it is the rest of an answer
            path = best_chain(Proposal(np.arange(len(tokens)), parents.numpy()))  # its nodes
            self.written = _with_shares(tokens[path], logs[path])
        return proposal

    def write_on(self, budget: Budget) -> None:
        most, read = min(budget.max_depth, self.context - self.base), 0
        while not self.answer and self.written and len(self.written) < most and not budget.until():
            tokens = [token for token, _ in self.written]
            if tokens[-1] == self.model.eos_id:
                break
            # Rows after what was committed, where the next verdict's will lie.
            hidden = self.forward(self.embedded(tokens[read:]), wanted=1)
            self.cache.keep(len(tokens) - read, [])
            read = len(tokens)
            more, _, logs = self._grown(hidden, self.base + read, 1, min(_WRITTEN, most - read), 0.0, 0.0)
            self.written += _with_shares(more, logs)
        self.cache.length = self.base

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """It is read when the next draft is wanted."""
        tokens = verdict.tokens.tolist()
        self.answer += tokens
        self.unread += tokens

    def _grown(self, hidden: Tensor, rows: int, width: int, levels: int, floor: float, mass: float) -> Grown:
        """A tree after so many rows, whose last one gave `hidden` [1, D]."""
        began, growth = self.trace.now(), TreeGrowth(width, levels, floor, mass, self.model.eos_id, rows - 1, [])
        found = self.native.grow(hidden, growth, self._tables, self.cache)
        self.trace.forward("drafter", self.trace.now() - began)
        return found


def _with_shares(tokens: Tensor, logs: Tensor) -> Written:
    """A path [M], each token with its probability after the one before; logs [M] are those of the path's probabilities."""
    shares = np.exp(np.diff(logs.numpy().astype(np.float64), prepend=0.0))
    return tuple(zip(tokens.tolist(), shares.tolist(), strict=True))
