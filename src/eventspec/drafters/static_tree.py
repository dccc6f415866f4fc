"""The best fixed tree for a head. EAGLE-1's was shaped by hand for a head that is right less often; here the shape follows from
how often each of the head's choices was right (as in Sequoia, 2402.12374, section 3.1), level by level: what comes after a
verification is harder than what comes after ten right drafts, and answers end."""

from __future__ import annotations

import heapq

from eventspec.drafters.feature import LEVELS
from eventspec.nn.draft import Growth, fixed_tree

Shares = tuple[tuple[float, ...], ...]
"""By level, how often a head's first, second, ... choice is right behind right ones."""
NODES = 25
"""As many as EAGLE-1's own tree has."""


def best_paths(ranks: Shares, nodes: int, levels: int = LEVELS) -> list[tuple[int, ...]]:
    """The `nodes` paths that are likeliest to be accepted, as ranks of children; `ranks`[level][r] is the chance that the token
    of rank r is the target's behind right ones; the last row is that of all further levels. No tree of as many nodes has more
    accepted tokens to expect, if a level's chances are the same behind all paths."""

    def behind(level: int) -> list[tuple[int, float]]:
        return [(rank, share) for rank, share in enumerate(ranks[min(level, len(ranks) - 1)]) if share > 0]

    waiting: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in behind(0)]
    heapq.heapify(waiting)
    found: list[tuple[int, ...]] = []
    while waiting and len(found) < nodes:
        chance, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < levels:
            for rank, share in behind(len(path)):
                heapq.heappush(waiting, (chance * share, (*path, rank)))
    return found


def static_tree(ranks: Shares, nodes: int = NODES) -> Growth:
    """The growth of the best fixed tree."""
    return fixed_tree(best_paths(ranks, nodes))
