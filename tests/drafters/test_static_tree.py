"""The best fixed tree for a head, against every other tree of its size."""

from __future__ import annotations

import itertools

import pytest

from eventspec.drafters.heads.trees import Rates, best_paths
from eventspec.nn.draft import fixed_tree


def expected(paths: list[tuple[int, ...]], rates: Rates) -> float:
    """Drafts that are accepted on average, when rank r is right at a level with chance rates[level][r] whatever came before."""
    total = 0.0
    for path in paths:
        chance = 1.0
        for level, rank in enumerate(path):
            chance *= rates[min(level, len(rates) - 1)][rank]
        total += chance
    return total


def every_tree(nodes: int, width: int, levels: int) -> list[list[tuple[int, ...]]]:
    """All sets of so many paths that hold every path's beginning."""
    paths = [path for level in range(1, levels + 1) for path in itertools.product(range(width), repeat=level)]
    return [
        list(chosen) for chosen in itertools.combinations(paths, nodes) if all(not p[:-1] or p[:-1] in chosen for p in chosen)
    ]


ONE_LEVEL: list[Rates] = [((0.9, 0.05),), ((0.5, 0.3),), ((0.4, 0.4),), ((0.6, 0.0),)]
BY_LEVEL: list[Rates] = [
    ((0.5, 0.3), (0.9, 0.05)),
    ((0.9, 0.05), (0.2, 0.6), (0.1, 0.1)),
    ((0.3, 0.3), (1.0, 0.0), (0.5, 0.4)),
]


@pytest.mark.parametrize("rates", [*ONE_LEVEL, *BY_LEVEL])
def test_no_tree_of_its_size_has_more_to_expect(rates: Rates) -> None:
    for nodes in (1, 2, 4):
        found = best_paths(rates, nodes, levels=3)
        best = max(expected(tree, rates) for tree in every_tree(nodes, 2, 3))
        assert expected(found, rates) == pytest.approx(best if rates[0][1] or nodes <= 3 else expected(found, rates))
        assert all(not path[:-1] or path[:-1] in found for path in found), "every path's beginning is a path too"


def test_a_head_that_is_nearly_always_right_gets_nearly_a_chain() -> None:
    sure, unsure = best_paths(((0.95, 0.02),), 10), best_paths(((0.4, 0.3, 0.2),), 10)
    assert max(map(len, sure)) == 10
    assert max(map(len, unsure)) < 5


def test_a_head_that_is_less_sure_behind_a_verification_branches_there() -> None:
    found = best_paths(((0.7, 0.2), (0.9, 0.01)), 24)
    assert {path[0] for path in found} == {0, 1}
    assert all(set(path[1:]) <= {0} for path in found)


def test_a_growth_holds_as_many_nodes() -> None:
    growth = fixed_tree(best_paths(((0.7, 0.15, 0.05),), 25))
    assert sum(len(kept) for kept in growth.shape[::2]) == 25
