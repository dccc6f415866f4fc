"""An independent language model as a drafter: it sees its own view of the recording, knows nothing of the target, and
starts at once.

It grows one draft tree, best leaf first. What it grew survives a verdict that followed the tree, so proposing again goes
on from
there: while the target verifies, drafting never has to stop.
"""

from __future__ import annotations

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


class LanguageDrafter:
    """`rows` makes the drafter's own prompt, `language` reads it, `end` is its end-of-text id."""

    taps: tuple[int, ...] = ()
    concurrent = True

    def __init__(self, name: str, language: Llama, rows: Rows, end: int) -> None:
        self.name, self.language, self.rows, self.end = name, language, rows, end

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
        self.language, self.end, self.name = drafter.language, drafter.end, drafter.name
        context = self.language.config.max_position_embeddings
        self.cache = self.language.new_cache(min(context, len(prompt) + most + 2) + _TREE_ROWS)
        self.base = 0  # rows of the cache that are committed; the tree's rows lie behind them
        self.tree = DraftTree()
        self.sees: list[list[bool]] = []  # which of the tree's rows every tree row may look at
        hidden = self._forward(prompt)
        self.cache.keep(len(prompt), [])
        self.base = len(prompt)
        self.unread: list[int] = []
        self.root: list[tuple[int, float]] | None = self._children(hidden[-1:])[0]

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
        row_of = {node: row for row, node in enumerate(self.tree.expanded)}
        known = [row_of[node] for node in path if node in row_of]
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
        self.sees = [[other < len(self.sees[row]) and self.sees[row][other] for other in alive] for row in alive]

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
            hidden = self._forward(rows)
            self.cache.keep(len(rows), [])
            self.base += len(rows)
            self.unread, self.sees = [], []
            self.tree = DraftTree()
            self.root = self._children(hidden[-1:])[0]
        if self.root is not None:
            self.tree.grow(-1, self.root, 0.0, self.end)
            self.root = None

    def _expand(self, leaves: list[int]) -> None:
        tree, rows = self.tree, len(self.tree.expanded)
        row_of = {node: row for row, node in enumerate(tree.expanded)}
        width = rows + len(leaves)
        visible = torch.ones(len(leaves), self.base + width, dtype=torch.bool)
        for i, leaf in enumerate(leaves):
            parent = tree.parents[leaf]
            line = list(self.sees[row_of[parent]]) if parent >= 0 else []
            line += [False] * (width - len(line))
            line[rows + i] = True
            self.sees.append(line)
            visible[i, self.base :] = torch.tensor(line)
        device = self.language.embed.weight.device
        positions = torch.tensor([self.base + tree.levels[leaf] for leaf in leaves], device=device)
        x = self.language.embed(torch.tensor([tree.tokens[leaf] for leaf in leaves], device=device))
        self.cache.length = self.base + rows
        hidden = self._forward(x, positions, visible.to(device))
        self.cache.length = self.base
        for leaf, children in zip(leaves, self._children(hidden), strict=True):
            tree.grow(leaf, children, 0.0, self.end)
        tree.expand(leaves)

    def _forward(self, rows: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        began = self.trace.now()
        hidden, _ = self.language.step(rows, self.cache, positions, mask)
        self.trace.forward("drafter", self.trace.now() - began)
        return hidden

    def _children(self, hidden: Tensor) -> list[list[tuple[int, float]]]:
        """The likeliest next tokens behind every row."""
        shares, tokens = self.language.logits(hidden).float().softmax(-1).topk(_CHILDREN)
        rows = zip(tokens.tolist(), shares.tolist(), strict=True)
        return [[pair for pair in zip(t, s, strict=True) if pair[1] >= _SMALLEST] for t, s in rows]
