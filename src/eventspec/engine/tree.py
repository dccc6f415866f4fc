"""Draft trees: depths, the attention mask of a tree behind a cache, and growing one by value (EAGLE-2's rule, best first).

A node's value is its path's cumulative probability, which never grows along a path; so the most valuable nodes always
include their ancestors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Proposal


def depths(parents: list[int]) -> list[int]:
    """Depth of every node, the root's children at 0."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def is_chain(parents: list[int]) -> bool:
    """Whether every node hangs on the one before."""
    return parents == list(range(-1, len(parents) - 1))


def tree_mask(parents: list[int], past: int, pending: int, device: torch.device | str = "cpu") -> Tensor:
    """bool [pending + N, past + pending + N], True = may look: pending rows are causal, a node sees the past, all pending
    rows and its own ancestors."""
    count = len(parents)
    mask = torch.zeros(pending + count, past + pending + count, dtype=torch.bool)
    mask[:pending, : past + pending] = torch.ones(pending, past + pending, dtype=torch.bool).tril_(past)
    mask[pending:, : past + pending] = True
    nodes = mask[pending:, past + pending :]
    for node, parent in enumerate(parents):
        if parent >= 0:
            nodes[node] = nodes[parent]
        nodes[node, node] = True
    return mask.to(device)


class DraftTree:
    """A tree that is grown by expanding its most valuable leaves, and re-rooted when tokens are committed.

    Node i has a token, a parent (-1 = child of the root) and a value. `expanded` are the nodes whose children are known, in the
    order in which they were expanded: that order is the order of their rows in a drafter's cache.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self.levels: list[int] = []
        self.expanded: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        self._open: set[int] = set()

    def __len__(self) -> int:
        return len(self.tokens)

    def grow(self, parent: int, children: list[tuple[int, float]], floor: float, end: int | None = None) -> None:
        """Add the children (token, probability) whose value reaches `floor`; nothing follows the token `end`."""
        value = 1.0 if parent < 0 else self.values[parent]
        level = 0 if parent < 0 else self.levels[parent] + 1
        for token, share in children:
            if value * share < floor:
                continue
            node = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.values.append(value * share)
            self.levels.append(level)
            self._child[parent, token] = node
            if token != end:
                self._open.add(node)

    def leaves(self, width: int, floor: float, levels: int, nodes: int) -> list[int]:
        """The `width` most valuable nodes to expand next; none when expanding cannot change the best `nodes` any more."""
        ranked = sorted(self.values, reverse=True)
        bar = max(floor, ranked[nodes - 1]) if len(ranked) >= nodes else floor
        chosen = [n for n in self._open if self.values[n] >= bar and self.levels[n] + 1 < levels]
        return sorted(sorted(chosen, key=lambda n: (-self.values[n], n))[:width])

    def expand(self, nodes: list[int]) -> None:
        """Note that these nodes' children are known now."""
        self.expanded += nodes
        self._open.difference_update(nodes)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node with this token."""
        return self._child.get((node, token))

    def best_chain(self) -> list[int]:
        """Tokens along the most valuable child from the root: what a reader is shown."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            if parent not in best or self.values[node] > self.values[best[parent]]:
                best[parent] = node
        chain, node = [], -1
        while node in best:
            node = best[node]
            chain.append(self.tokens[node])
        return chain

    def proposal(self, nodes: int, floor: float, origin: str) -> Proposal:
        """The `nodes` most valuable nodes with at least `floor`; ties go to the earlier node, so ancestors are always there."""
        order = sorted((i for i, value in enumerate(self.values) if value >= floor), key=lambda i: (-self.values[i], i))
        kept = sorted(order[:nodes])
        place = {node: i for i, node in enumerate(kept)}
        parents = np.array([-1 if self.parents[node] < 0 else place[self.parents[node]] for node in kept], np.int64)
        return Proposal(np.array([self.tokens[node] for node in kept], np.int64), parents, origin=origin)

    def descend(self, tokens: list[int]) -> tuple[list[int], DraftTree]:
        """The nodes that `tokens` walk through as far as the tree knows them, and the tree below the last one (empty when
        the walk
        leaves the tree)."""
        path: list[int] = []
        node = -1
        for token in tokens:
            step = self.child(node, token)
            if step is None:
                return path, DraftTree()
            path.append(step)
            node = step
        return path, self._below(node)

    def _below(self, root: int) -> DraftTree:
        tree, place = DraftTree(), {root: -1}
        scale, base = self.values[root], self.levels[root] + 1
        for node, parent in enumerate(self.parents):
            if parent in place:
                place[node] = len(tree.tokens)
                tree._child[place[parent], self.tokens[node]] = place[node]
                tree.tokens.append(self.tokens[node])
                tree.parents.append(place[parent])
                tree.values.append(self.values[node] / scale)
                tree.levels.append(self.levels[node] - base)
        tree.expanded = [place[node] for node in self.expanded if node in place and node != root]
        tree._open = {place[node] for node in self._open if node in place and node != root}
        return tree
