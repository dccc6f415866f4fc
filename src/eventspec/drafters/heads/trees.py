"""The kinds of draft trees that a head grows, and the best fixed one for a head. EAGLE-1's was shaped by hand for a head that
is right less often; here the shape follows from how often each of the head's choices was right: Sequoia's acceptance vector
(2402.12374, section 3.1), but one for every level, since answers end and a head is not as sure at every level."""

from __future__ import annotations

import heapq

from eventspec.core import BadInput
from eventspec.models import configuration as fields
from eventspec.nn.draft import TreeConfig, fixed_tree

Rates = tuple[tuple[float, ...], ...]
"""Acceptance rates: by level, how often a head's first, second, ... choice is right after right ones."""
STATIC = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)
"""EAGLE-1's tree of 25 drafts in five levels, as its code ships it."""
LEVELS = 24
"""As deep as drafts are likely to pay: EAGLE-2's 6 levels in the paper and 8 in its code were set by hand."""
EAGLE2 = TreeConfig(width=10, levels=1 + 7, whole=True)
"""EAGLE-2's tree as its released code grows it (2406.16858, section 4; SafeAILab/EAGLE: top_k=10, depth=7, total_token=60):
the root's 10 likeliest children, then 7 times the 10 likeliest paths of a level with 10 children each, and of these 710 nodes
the 59 likeliest, which are 60 tokens with the root: the `max_nodes` of a head's method (`pairs.methods.drafted_by_head`)."""
TREES = {
    "dynamic": TreeConfig(levels=LEVELS),
    "published": fixed_tree(STATIC),
    "chain": TreeConfig(1, LEVELS),
    "eagle2": EAGLE2,
}
"""EAGLE-2's dynamic tree as deep and as large as it pays, the fixed one that EAGLE-1's code ships, no tree at all, and
EAGLE-2's as published."""
TREE_POLICIES = (*TREES, "static")
NODES = 25
"""As many as EAGLE-1's own tree has."""
MOST_LEVELS = 64


def read_rates(data: fields.Fields, most: int) -> Rates:
    """Field `ranks` of a head that names `most` tokens: by level, or one list for all alike. Empty, which is not known, also
    where no first choice was right. BadField for what they cannot be."""
    found, most = data.get("ranks", []), min(most, 64)
    levels = found if isinstance(found, list) and any(isinstance(level, list) for level in found) else [found]
    sane = len(levels) <= MOST_LEVELS and all(isinstance(level, list) and len(level) <= most for level in levels)
    sane = sane and all(type(share) in (int, float) and 0 <= share <= 1 for level in levels for share in level)
    sane = sane and all(sum(level) < 1.01 for level in levels)  # choices of a level exclude each other
    fields.require(data, "ranks", sane, f"shares of 1 for up to {most} ranks, or up to {MOST_LEVELS} lists of them")
    return tuple(tuple(map(float, level)) for level in levels) if any(levels[0]) else ()


def best_paths(rates: Rates, nodes: int, levels: int = LEVELS) -> list[tuple[int, ...]]:
    """The `nodes` paths that are likeliest to be accepted, as ranks of children; `rates`[level][r] is the chance that the token
    of rank r is the target's after right ones; the last row is that of all further levels. No tree of as many nodes has more
    accepted tokens to expect, if a level's chances are the same after all paths."""
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    found: list[tuple[int, ...]] = []
    while waiting and len(found) <= nodes:
        chance, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < levels:
            for rank, share in enumerate(rates[min(len(path), len(rates) - 1)]):
                if share > 0:
                    heapq.heappush(waiting, (chance * share, (*path, rank)))
    return found[1:]  # without the root


def tree_config(tree: str, rates: Rates) -> TreeConfig:
    """A kind of tree; the best static one for how often each of the head's choices was right when it was trained."""
    if tree != "static":
        return TREES[tree]
    if not rates:
        raise BadInput("the head does not say how often its choices are right (ranks), which a static tree is made for")
    return fixed_tree(best_paths(rates, NODES))
