"""Draft trees: depths, the attention mask of a tree after a cache, and growing one by value (EAGLE-2's rule, best first).

A node's value is its path's cumulative probability, which never grows along a path; so the most valuable nodes always
include their ancestors.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Budget, Limits, Proposal, Tokens

Number = TypeVar("Number", bound=np.generic)


def depths(parents: list[int]) -> list[int]:
    """Depth of every node, the root's children at 0."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def is_chain(parents: list[int]) -> bool:
    """Whether every node hangs on the one before."""
    return parents == list(range(-1, len(parents) - 1))


def tree_mask(parents: list[int], past: int, pending: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """bool [pending + N, past + pending + N], True = may look: pending rows are causal, a node sees the past, all pending
    rows and its own ancestors."""
    before, count = past + pending, len(parents)
    # In numpy: row by row a tensor costs several microseconds, which forty nodes add up to a tenth of their verification.
    mask = np.zeros((pending + count, before + count), np.bool_)
    if pending:
        mask[:pending] = np.tri(pending, before + count, past, np.bool_)
    mask[pending:, :before] = True
    nodes = mask[pending:, before:]
    for node, parent in enumerate(parents):
        if parent >= 0:
            nodes[node] = nodes[parent]
        nodes[node, node] = True
    return torch.from_numpy(mask).to(device)


class BadProposal(ValueError):
    """A proposal that is no tree of token ids within its budget: the drafter's fault, never the answer's."""


def exact_text(value: Any, most: int) -> str:
    """A string of Python's own type, whatever class the value's string is of."""
    text = value if isinstance(value, str) else str(value)
    return bytes(text, "utf-8", "replace").decode()[:most]


def check(proposal: Any, budget: Budget) -> Proposal:
    """A copy of what a drafter proposed, which the drafter cannot change any more; BadProposal when it must not reach the
    target. Every attribute is looked at once: it is the drafter's object, and may be anything."""
    try:
        tokens, parents, probs, origin = proposal.tokens, proposal.parents, proposal.probs, proposal.origin
        values, sources = getattr(proposal, "values", None), getattr(proposal, "sources", None)
    except AttributeError as error:
        raise BadProposal(f"{type(proposal).__name__} is no proposal ({error})") from None
    tokens, most = _column("tokens", tokens, np.int64), budget.max_nodes
    if (count := len(tokens)) > most:
        raise BadProposal(f"{count} nodes, asked for at most {most}")
    parents = _column("parents", parents, np.int64, count)
    if not count:
        return Proposal(tokens, parents, origin=exact_text(origin, 80))
    # Lists: for some twenty nodes an array's operations take longer, the more so after a forward, with cold caches.
    above = parents.tolist()
    if not all(-1 <= parent < node for node, parent in enumerate(above)):
        raise BadProposal("a node comes before its parent")
    if (least := min(tokens.tolist())) < 0:
        raise BadProposal(f"token {least} is no token")
    drawn = None if probs is None else _distributions(probs, count)
    guessed = None if values is None else _column("values", values, np.float64, count)
    if guessed is not None and not all(0 <= value <= 1 + 1e-6 for value in guessed.tolist()):
        raise BadProposal("a value is no probability")
    named = None if sources is None else _column("sources", sources, np.int64, count)
    made = Proposal(tokens, parents, drawn, exact_text(origin, 80), guessed, named)
    if count <= budget.max_depth:
        return made
    # What is too deep is no fault: near the end of an answer few drafters count.
    levels = depths(above)
    return (
        made if max(levels) < budget.max_depth else subtree(made, [n for n, at in enumerate(levels) if at < budget.max_depth])
    )


def _column(name: str, column: Any, kind: type[Number], count: int | None = None) -> np.ndarray[Any, np.dtype[Number]]:
    """A copy of an array [N], of `count` numbers where that is known, contiguous and of numpy's own type, whatever a class of
    the drafter's says of its shape."""
    found = np.asarray(column) if isinstance(column, np.ndarray) else None
    if found is None or found.dtype != kind or found.ndim != 1:
        was = f"a {type(column).__name__}" if found is None else f"{found.dtype} {list(found.shape)}"
        raise BadProposal(f"{name} are {was}, not {kind.__name__} [N]")
    if count is not None and len(found) != count:
        raise BadProposal(f"{count} tokens but {len(found)} {name}")
    return np.array(found, order="C")


def _distributions(probs: Any, count: int) -> Tensor:
    """A copy of probabilities float [N, V]."""
    if type(probs) is not Tensor or probs.layout != torch.strided:  # a class of its own runs code of its own in the rule
        raise BadProposal(f"probs are a {type(probs).__name__}, not a dense tensor")
    if not probs.is_floating_point() or probs.dim() != 2 or len(probs) != count:
        kind = str(probs.dtype).removeprefix("torch.")
        raise BadProposal(f"probs are {kind} {list(probs.shape)}, not float [{count}, V]")
    copied = probs.detach().clone()
    if not bool((copied >= 0).all() and ((copied.sum(-1) - 1).abs() < 1e-3).all()):
        raise BadProposal("a row of probs is no distribution")
    return copied


def fit(proposal: Proposal, limits: Limits) -> Proposal:
    """What the target can read of a checked proposal: all of it, or of a target that reads chains only the first branch.
    BadProposal for tokens, or probabilities over tokens, that the target does not have."""
    count, probs = len(proposal), proposal.probs
    if count and (largest := max(proposal.tokens.tolist())) >= limits.vocabulary:
        raise BadProposal(f"token {largest} is none of the target's {limits.vocabulary}")
    if probs is not None and probs.shape[1] != limits.vocabulary:
        raise BadProposal(f"probs are {list(probs.shape)}, wanted {[count, limits.vocabulary]}")
    if limits.trees or is_chain(proposal.parents.tolist()):
        return proposal
    return subtree(proposal, _first_branch(proposal.parents.tolist()))


def within(proposal: Proposal, room: int) -> Proposal:
    """The first nodes of a proposal that there is room for. Parents come before children, and of drawn siblings the earlier
    ones do not hang on the later: any beginning is a tree."""
    return proposal if len(proposal) <= room else subtree(proposal, list(range(max(0, room))))


def named_by(proposal: Proposal, path: Tokens) -> dict[str, int]:
    """How many nodes of a path each drafter had named."""
    if proposal.sources is None:
        return {proposal.origin: len(path)} if len(path) else {}
    bits = proposal.sources[path].tolist()
    found = {name: sum([bit >> place & 1 for bit in bits]) for place, name in enumerate(proposal.origin.split("+"))}
    return {name: count for name, count in found.items() if count}


def subtree(proposal: Proposal, kept: list[int]) -> Proposal:
    """The nodes `kept`, ascending, each with its parent and its earlier siblings."""
    place, probs = {-1: -1, **{node: at for at, node in enumerate(kept)}}, proposal.probs
    parents = np.array([place[parent] for parent in proposal.parents[kept].tolist()], np.int64)
    values = None if proposal.values is None else proposal.values[kept]
    sources = None if proposal.sources is None else proposal.sources[kept]
    return Proposal(proposal.tokens[kept], parents, None if probs is None else probs[kept], proposal.origin, values, sources)


def _first_branch(parents: list[int]) -> list[int]:
    """Nodes along the first child from the root."""
    branch, node = [], -1
    for place, parent in enumerate(parents):
        if parent == node:
            branch.append(place)
            node = place
    return branch


def best_nodes(tokens: Tokens, parents: Tokens, logs: np.ndarray[Any, Any], budget: Budget, origin: str) -> Proposal:
    """The budget's number of most probable nodes of a tree whose nodes are in level order (EAGLE-2's reranking).

    logs float [N] are logarithms of path probabilities, which never grow along a path; of equal ones the earlier node is kept,
    which is the shallower one, so the ancestors of what is kept are kept. Nodes below the budget's `floor` are left out.
    BadProposal for NaN: no draft would be told from one that is not worth its cost.
    """
    if np.isnan(logs).any():
        raise BadProposal("the model that drafts gives NaN for a probability")
    order = np.argsort(-logs, kind="stable")[: budget.max_nodes]
    if budget.min_path_prob > 0:
        order = order[logs[order] >= math.log(budget.min_path_prob)]
    kept = np.sort(order)
    place = np.full(len(tokens) + 1, -1, np.int64)  # the last entry is the root's
    place[kept] = np.arange(len(kept))
    above = parents[kept]
    assert ((above < 0) | (place[above] >= 0)).all(), "a node was kept without its parent"
    return Proposal(tokens[kept], place[above], origin=origin, values=np.exp(logs[kept].astype(np.float64)))


def best_chain(proposal: Proposal) -> list[int]:
    """Tokens along the first child from the root, in a tree whose siblings lie in order of their probability."""
    tokens = proposal.tokens.tolist()
    return [tokens[node] for node in _first_branch(proposal.parents.tolist())]


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
            if math.isnan(share):
                raise BadProposal("the model that drafts gives NaN for a probability")
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
        ranked = sorted((v for v, level in zip(self.values, self.levels, strict=True) if level < levels), reverse=True)
        # A tie with the last of the best changes nothing: its children come later, and ties go to the earlier node.
        bar = ranked[nodes - 1] if len(ranked) >= nodes else 0.0
        chosen = [n for n in self._open if floor <= self.values[n] > bar and self.levels[n] + 1 < levels]
        return sorted(sorted(chosen, key=lambda n: (-self.values[n], n))[:width])

    def expand(self, nodes: list[int]) -> None:
        """Note that these nodes' children are known now."""
        self.expanded += nodes
        self._open.difference_update(nodes)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node with this token."""
        return self._child.get((node, token))

    def path(self, node: int) -> list[int]:
        """Tokens from the root to `node`."""
        found: list[int] = []
        while node >= 0:
            found.append(self.tokens[node])
            node = self.parents[node]
        return found[::-1]

    def best_chain(self) -> list[int]:
        """Tokens along the most valuable child from the root: what a reader is shown."""
        return [self.tokens[node] for node in self.best_path()]

    def best_path(self, behind: int = -1) -> list[int]:
        """Nodes along the most valuable child from the root, or from the node `behind`."""
        best: dict[int, int] = {}
        for node in range(behind + 1, len(self.parents)):  # parents come before children
            parent = self.parents[node]
            if parent not in best or self.values[node] > self.values[best[parent]]:
                best[parent] = node
        path, node = list[int](), behind
        while node in best:
            node = best[node]
            path.append(node)
        return path

    def proposal(self, budget: Budget, floor: float, origin: str) -> Proposal:
        """The budget's number of most valuable nodes with at least `floor`, none too deep; ties go to the earlier node, so
        ancestors are always there."""
        enough = (i for i, value in enumerate(self.values) if value >= floor and self.levels[i] < budget.max_depth)
        kept = sorted(sorted(enough, key=lambda i: (-self.values[i], i))[: budget.max_nodes])
        place = {node: i for i, node in enumerate(kept)}
        parents = np.array([-1 if self.parents[node] < 0 else place[self.parents[node]] for node in kept], np.int64)
        values = np.array([min(1.0, self.values[node]) for node in kept], np.float64)
        return Proposal(np.array([self.tokens[node] for node in kept], np.int64), parents, origin=origin, values=values)

    def descend(self, tokens: list[int]) -> tuple[list[int], DraftTree]:
        """The nodes that `tokens` walk through as far as the tree knows them, and the tree below the last one (empty when the
        walk leaves the tree)."""
        path, node = list[int](), -1
        for token in tokens:
            step = self.child(node, token)
            if step is None:
                return path, DraftTree()
            path.append(step)
            node = step
        return path, self._below(node) if path else self

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
