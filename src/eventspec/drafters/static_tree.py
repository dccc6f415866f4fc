"""The best fixed tree for a head. EAGLE-1's was shaped by hand for a head that is right less often; here the shape follows from
how often each of the head's choices was right (as in Sequoia, 2402.12374, section 3.1)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from eventspec.drafters.feature import LEVELS
from eventspec.nn.draft import Growth, fixed_tree

NODES = 25
"""As many as EAGLE-1's own tree has."""


def best_paths(ranks: Sequence[float], nodes: int, levels: int = LEVELS) -> list[tuple[int, ...]]:
    """The `nodes` paths that are likeliest to be accepted, as ranks of children; `ranks`[r] is the chance that the token of
    rank r is the target's. No tree of as many nodes has more accepted tokens to expect, if levels do not differ."""
    waiting: list[tuple[float, tuple[int, ...]]] = [(-share, (rank,)) for rank, share in enumerate(ranks) if share > 0]
    heapq.heapify(waiting)
    found: list[tuple[int, ...]] = []
    while waiting and len(found) < nodes:
        chance, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < levels:
            for rank, share in enumerate(ranks):
                if share > 0:
                    heapq.heappush(waiting, (chance * share, (*path, rank)))
    return found


def static_tree(ranks: Sequence[float], nodes: int = NODES) -> Growth:
    """The growth of the best fixed tree."""
    return fixed_tree(best_paths(ranks, nodes))
