"""An independent language model as a drafter: it sees its own view of the recording, knows nothing of the target, and
starts at once.

It grows one draft tree, best leaf first. What it grew survives a verdict that followed the tree, so proposing again goes
on from there: while the target verifies, drafting never has to stop.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.engine.tree import DraftTree
from eventspec.models.session import Rows
from eventspec.nn import Llama

_WIDTH = 4
_CHILDREN = 6
_TREE_ROWS = 512
_SMALLEST = 1e-3
"""Tokens below this share are not even remembered. A share, not a path's probability: an unlikely path that is committed
becomes the root, and then what follows it is likely."""

Children = list[tuple[int, float]]
"""Next tokens with their probabilities."""


class LanguageDrafter:
    """`rows` makes the drafter's own prompt, `language` reads it, `end` is its end-of-text id; ids from `limit` on are never
    drafted (rows without a token, tokens that the target does not share)."""

    taps: tuple[int, ...] = ()
    concurrent = True

    def __init__(self, name: str, language: Llama, rows: Rows, end: int, limit: int | None = None) -> None:
        self.name, self.language, self.rows, self.end, self.limit = name, language, rows, end, limit

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """Vision encoding and prefill of the drafter."""
        prompt = self.rows(request, trace, "drafter")
        began = trace.now()
        session = LanguageDraft(self, prompt, request.sampling.max_new_tokens, trace)
        trace.span("prefill", "drafter", began)
        return session


class LanguageDraft:
    """The drafter's cache, its tree, and the committed tokens it has not read yet."""

    def __init__(self, drafter: LanguageDrafter, prompt: Tensor, most: int, trace: Trace) -> None:
        self.trace = trace
        self.language, self.end, self.name, self.limit = drafter.language, drafter.end, drafter.name, drafter.limit
        context = self.language.config.max_position_embeddings
        self.cache = self.language.new_cache(min(context, len(prompt) + most + 2) + _TREE_ROWS)
        self.base = 0  # rows of the cache that are committed; the tree's rows lie behind them
        self.tree = DraftTree()
        self.sees = np.zeros((_TREE_ROWS, _TREE_ROWS), bool)  # which of the tree's rows every tree row may look at
        self.row_of: dict[int, int] = {}  # expanded node -> its row behind the base
        self.root: Children | None = self._forward(prompt)[0]
        self.cache.keep(len(prompt), [])
        self.base = len(prompt)
        self.unread: list[int] = []

    def propose(self, budget: Budget) -> Proposal:
        """Grow the tree until the budget is used up, then the best of it."""
        self._read()
        floor = max(budget.floor, _SMALLEST)
        if budget.show is not None and len(self.tree):
            budget.show(self.tree.best_chain())
        while not budget.until() and len(self.tree.expanded) + _WIDTH <= _TREE_ROWS:
            leaves = self.tree.leaves(_WIDTH, floor, budget.levels, budget.nodes)
            if not leaves or sum(self.tree.values[node] for node in leaves) < budget.mass:
                break
            self._expand(leaves)
            if budget.show is not None:
                budget.show(self.tree.best_chain())
        return self.tree.proposal(budget, floor, self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Walk down the own tree as far as it foresaw what was committed; keep those rows and what hangs below."""
        tokens = verdict.tokens.tolist()
        if self.unread:
            self.unread += tokens
            return
        path, below = self.tree.descend(tokens)
        known = [self.row_of[node] for node in path if node in self.row_of]
        alive: list[int] = []
        if len(known) == len(tokens):
            inside = self._rows_below(path[-1])
            alive = [row for row in inside if row not in known]
            self.tree = below
        else:
            self.tree = DraftTree()
            self.unread = tokens[len(known) :]
        self.cache.length = self.base
        self.cache.keep(0, known + alive)
        self.base += len(known)
        kept = self.sees[np.ix_(alive, alive)]
        self.sees[: len(alive)] = False
        self.sees[: len(alive), : len(alive)] = kept
        self.row_of = {node: row for row, node in enumerate(self.tree.expanded)}

    def _rows_below(self, root: int) -> list[int]:
        """Cache rows of expanded nodes under `root`, in order."""
        under = {root}
        for node, parent in enumerate(self.tree.parents):
            if parent in under:
                under.add(node)
        return [row for row, node in enumerate(self.tree.expanded) if node in under]

    def _read(self) -> None:
        """Feed the committed tokens that the tree did not foresee; the tree starts anew from them."""
        if self.unread:
            self.cache.length = self.base
            rows = self.language.embed(torch.tensor(self.unread, device=self.language.embed.weight.device))
            self.root = self._forward(rows)[0]
            self.cache.keep(len(rows), [])
            self.base += len(rows)
            self.unread = []
            self.tree, self.row_of = DraftTree(), {}
        if self.root is not None:
            self.tree.grow(-1, self.root, 0.0, self.end)
            self.root = None

    def _expand(self, leaves: list[int]) -> None:
        tree, rows = self.tree, len(self.tree.expanded)
        width = rows + len(leaves)
        for row, leaf in enumerate(leaves, rows):
            parent = tree.parents[leaf]
            self.sees[row] = self.sees[self.row_of[parent]] if parent >= 0 else False
            self.sees[row, row] = True
            self.row_of[leaf] = row
        visible = np.ones((len(leaves), self.base + width), bool)
        visible[:, self.base :] = self.sees[rows:width, :width]
        levels = [self.base + tree.levels[leaf] for leaf in leaves]
        placed = torch.tensor([[tree.tokens[leaf] for leaf in leaves], levels], device=self.language.embed.weight.device)
        self.cache.length = self.base + rows
        mask = torch.from_numpy(visible).to(placed.device)
        known = self._forward(self.language.embed(placed[0]), placed[1], mask)
        self.cache.length = self.base
        for leaf, children in zip(leaves, known, strict=True):
            tree.grow(leaf, children, 0.0, self.end)
        tree.expand(leaves)

    def _forward(self, rows: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> list[Children]:
        """Read rows [T, D]; the likeliest next tokens behind every one (behind the last, without a tree's mask)."""
        began = self.trace.now()
        hidden, _ = self.language.step(rows, self.cache, positions, mask)
        logits = self.language.logits(hidden if mask is not None else hidden[-1:])
        shares, tokens = logits[..., : self.limit].float().softmax(-1).topk(_CHILDREN)
        self.trace.forward("drafter", self.trace.now() - began)
        found = zip(tokens.tolist(), shares.tolist(), strict=True)
        return [[pair for pair in zip(t, s, strict=True) if pair[1] >= _SMALLEST] for t, s in found]
