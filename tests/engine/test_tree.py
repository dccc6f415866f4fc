"""Draft trees: the mask is the ancestor relation, the best nodes bring their ancestors, re-rooting forgets nothing below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import Budget, Limits, Proposal
from eventspec.tree import BadProposal, DraftTree, check, depths, fit, is_chain, tree_mask, within

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=60)
parent_lists = st.integers(0, 14).flatmap(lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))).map(list)


def ancestors(parents: list[int], node: int) -> set[int]:
    found = set()
    while node >= 0:
        found.add(node)
        node = parents[node]
    return found


def grown(seed: int, rounds: int = 6, width: int = 2) -> DraftTree:
    """A random tree; shares are quarters, so that many values tie."""
    rng, tree = np.random.default_rng(seed), DraftTree()
    tree.grow(-1, [(int(t), 0.5) for t in rng.choice(9, 2, replace=False)], 0.0)
    for _ in range(rounds):
        leaves = tree.leaves(width, 0.0, 1 << 30, 1 << 30)
        for leaf in leaves:
            tree.grow(leaf, [(int(t), rng.integers(1, 3) / 4) for t in rng.choice(9, 3, replace=False)], 0.0)
        tree.expand(leaves)
    return tree


@FIXED
@given(parents=parent_lists, past=st.integers(0, 3), pending=st.integers(1, 3))
def test_the_mask_is_the_ancestor_relation(parents: list[int], past: int, pending: int) -> None:
    mask = tree_mask(parents, past, pending)
    rows = past + pending
    assert mask.shape == (pending + len(parents), rows + len(parents))
    assert torch.equal(mask[:pending, :rows], torch.ones(pending, rows).tril(past).bool())
    assert not mask[:pending, rows:].any()
    assert mask[pending:, :rows].all()
    for node in range(len(parents)):
        assert set(mask[pending + node, rows:].nonzero().flatten().tolist()) == ancestors(parents, node)
    assert torch.equal(tree_mask(parents, rows), mask[pending:])


@FIXED
@given(parents=parent_lists)
def test_depth_counts_ancestors_and_a_chain_is_one_branch(parents: list[int]) -> None:
    assert depths(parents) == [len(ancestors(parents, node)) - 1 for node in range(len(parents))]
    assert is_chain(parents) == (depths(parents) == list(range(len(parents))))


@FIXED
@given(seed=st.integers(0, 500), nodes=st.integers(1, 40), levels=st.integers(1, 6))
def test_a_proposal_is_the_most_valuable_nodes_with_every_ancestor(seed: int, nodes: int, levels: int) -> None:
    tree = grown(seed)
    budget = Budget(nodes, max_depth=levels)
    proposal = check(tree.proposal(budget, 0.0, "x"), budget)
    eligible = sorted((v for v, level in zip(tree.values, tree.levels, strict=True) if level < levels), reverse=True)
    assert len(proposal) == min(nodes, len(eligible))
    values = []
    for node, parent in enumerate(proposal.parents):
        above = 1.0 if parent < 0 else values[parent]
        path = [int(proposal.tokens[n]) for n in sorted(ancestors(proposal.parents.tolist(), node))]
        at = walk(tree, path)
        assert at is not None
        values.append(tree.values[at])
        assert values[-1] <= above
    assert sorted(values, reverse=True) == eligible[: len(proposal)]


def walk(tree: DraftTree, path: list[int]) -> int | None:
    node: int | None = -1
    for token in path:
        if node is not None:
            node = tree.child(node, token)
    return node


def test_ties_go_to_the_earlier_node_so_a_child_never_comes_without_its_parent() -> None:
    tree = DraftTree()
    tree.grow(-1, [(1, 1.0), (2, 1.0)], 0.0)
    tree.grow(0, [(3, 1.0)], 0.0)
    proposal = tree.proposal(Budget(2), 0.0, "x")
    assert proposal.tokens.tolist() == [1, 2]
    assert proposal.parents.tolist() == [-1, -1]


def test_nodes_below_the_floor_are_not_proposed_nor_grown() -> None:
    tree = DraftTree()
    tree.grow(-1, [(1, 0.5), (2, 0.3), (3, 0.05)], 0.1)
    assert tree.tokens == [1, 2]
    assert tree.proposal(Budget(9), 0.4, "x").tokens.tolist() == [1]
    assert tree.leaves(4, 0.4, 9, 9) == [0]


def test_nothing_grows_behind_the_end_token() -> None:
    tree = DraftTree()
    tree.grow(-1, [(7, 0.6), (1, 0.4)], 0.0, end=7)
    assert tree.leaves(4, 0.0, 9, 9) == [1]


def test_growing_stops_when_the_best_nodes_cannot_change_any_more() -> None:
    tree = DraftTree()
    tree.grow(-1, [(1, 0.6), (2, 0.4)], 0.0)
    assert tree.leaves(4, 0.0, 9, nodes=2) == [0]  # a child of node 0 may beat 0.4, a child of node 1 cannot
    tree.grow(0, [(3, 0.5)], 0.0)
    tree.expand([0])
    assert tree.leaves(4, 0.0, 9, nodes=2) == []


def test_a_drafter_that_is_sure_does_not_grow_past_its_budget() -> None:
    """Values of exactly 1 tie forever; a tie cannot change the best nodes."""
    tree = DraftTree()
    tree.grow(-1, [(1, 1.0)], 0.0)
    steps = 0
    while leaves := tree.leaves(4, 0.0, 1000, nodes=3):
        tree.grow(leaves[0], [(1, 1.0)], 0.0)
        tree.expand(leaves)
        steps += 1
    assert steps == 2
    assert len(tree) == 3


def test_levels_bound_the_depth() -> None:
    tree = DraftTree()
    tree.grow(-1, [(1, 1.0)], 0.0)
    assert tree.leaves(1, 0.0, levels=1, nodes=9) == []
    assert tree.leaves(1, 0.0, levels=2, nodes=9) == [0]
    tree.grow(0, [(2, 1.0)], 0.0)
    assert tree.proposal(Budget(9, max_depth=1), 0.0, "x").tokens.tolist() == [1]
    assert len(tree.proposal(Budget(9, max_depth=0), 0.0, "x")) == 0


@FIXED
@given(seed=st.integers(0, 500), steps=st.integers(1, 4))
def test_descending_keeps_everything_below_with_values_relative_to_the_new_root(seed: int, steps: int) -> None:
    tree, rng = grown(seed), np.random.default_rng(seed)
    node, tokens = -1, []
    for _ in range(steps):
        children = [n for n, parent in enumerate(tree.parents) if parent == node]
        if not children:
            break
        node = int(rng.choice(children))
        tokens.append(tree.tokens[node])
    path, below = tree.descend(tokens)
    assert [tree.tokens[n] for n in path] == tokens
    assert path[-1] == node
    inside = [n for n in range(len(tree)) if n != node and node in ancestors(tree.parents, n)]
    assert below.tokens == [tree.tokens[n] for n in inside]
    assert below.values == pytest.approx([tree.values[n] / tree.values[node] for n in inside])
    assert below.levels == depths(below.parents)
    place = {n: i for i, n in enumerate(inside)}
    assert below.parents == [place.get(tree.parents[n], -1) for n in inside]
    assert below.expanded == [place[n] for n in tree.expanded if n in place]
    assert set(below.leaves(99, 0.0, 1 << 30, 1 << 30)) == {place[n] for n in inside if n not in tree.expanded}


def test_descending_out_of_the_tree_gives_the_known_part_and_an_empty_tree() -> None:
    tree = DraftTree()
    tree.grow(-1, [(1, 0.6), (2, 0.4)], 0.0)
    tree.grow(0, [(3, 0.5)], 0.0)
    assert tree.descend([]) == ([], tree)
    path, below = tree.descend([1, 9])
    assert path == [0]
    assert len(below) == 0
    path, below = tree.descend([9, 1])
    assert path == []
    assert len(below) == 0


def test_the_best_chain_follows_the_most_valuable_child() -> None:
    tree = DraftTree()
    assert tree.best_chain() == []
    tree.grow(-1, [(1, 0.4), (2, 0.6)], 0.0)
    tree.grow(0, [(3, 1.0)], 0.0)
    tree.grow(1, [(4, 0.3), (5, 0.7)], 0.0)
    assert tree.best_chain() == [2, 5]
    assert tree.best_path() == [1, 4]


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_a_well_formed_proposal_passes_the_check_as_a_copy_that_its_maker_cannot_change() -> None:
    for proposal in (
        Proposal.empty(),
        Proposal.chain([3, 1]),
        Proposal(ints(1, 1, 2), ints(-1, -1, 1), torch.full((3, 4), 0.25), "origin"),
        Proposal(ints(2, 1, 3)[::-1], ints(-1, 9, 0, 9, 1)[::2]),
    ):
        checked = check(proposal, Budget(3, max_depth=3))
        before = proposal.tokens.tolist(), proposal.parents.tolist()
        for column in (proposal.tokens, proposal.parents):
            column[:] = 77
        if proposal.probs is not None:
            proposal.probs.zero_()
        assert (checked.tokens.tolist(), checked.parents.tolist()) == before
        assert checked.probs is None or bool((checked.probs == 0.25).all())
        assert checked.origin == proposal.origin
        torch.from_numpy(checked.tokens)  # which refuses a negative stride


class Lying(np.ndarray):
    """An array that says it holds three entries."""

    shape = property(lambda self: (3,))

    def __len__(self) -> int:
        return 3


def test_an_array_is_as_long_as_it_is_whatever_its_class_says() -> None:
    short, three = np.ones(1), ints(1, 2, 3)
    for tokens, parents, values in (
        (three, ints(-1, 0, 1), short.view(Lying)),
        (ints(1).view(Lying), ints(-1, 0, 1), None),
        (three, ints(-1).view(Lying), None),
    ):
        with pytest.raises(BadProposal):
            check(Proposal(tokens, parents, values=values), Budget(9))


LIMITS = Limits(vocabulary=4, layers=2, trees=True, rounding=0.0)
TREE = Proposal(ints(1, 2, 3, 0), ints(-1, 0, 0, 1), torch.full((4, 4), 0.25), "drawn")


@pytest.mark.parametrize("room", [0, 1, 3, 4, 9])
def test_a_proposal_is_cut_to_the_room_there_is(room: int) -> None:
    cut = within(TREE, room)
    assert cut.tokens.tolist() == [1, 2, 3, 0][:room]
    assert cut.parents.tolist() == [-1, 0, 0, 1][:room]
    assert cut.probs is not None
    assert len(cut.probs) == len(cut)
    assert cut.origin == "drawn"


def test_a_target_that_reads_chains_only_gets_the_first_branch() -> None:
    chains = replace(LIMITS, trees=False)
    assert fit(TREE, chains).tokens.tolist() == [1, 2, 0]
    assert fit(TREE, chains).parents.tolist() == [-1, 0, 1]
    assert within(fit(TREE, chains), 2).tokens.tolist() == [1, 2]
    chain = Proposal.chain([3, 2])
    assert fit(chain, chains) is chain


def test_what_the_target_has_no_row_for_is_named() -> None:
    with pytest.raises(BadProposal, match="token 4 is none of the target's 4"):
        fit(Proposal.chain([0, 4]), LIMITS)
    with pytest.raises(BadProposal, match=r"probs are \[1, 5\], wanted \[1, 4\]"):
        fit(Proposal.chain([0], probs=torch.full((1, 5), 0.2)), LIMITS)


@pytest.mark.parametrize(
    ("proposal", "told"),
    [
        (Proposal(ints(1, 2), ints(1, -1)), "before its parent"),
        (Proposal(ints(1), ints(0)), "before its parent"),
        (Proposal(ints(1), ints(-2)), "before its parent"),
        (Proposal(ints(1, -1), ints(-1, 0)), "token -1"),
        (Proposal(ints(1, 2), ints(-1)), "2 tokens but 1 parents"),
        (Proposal(np.array([1.5]), ints(-1)), r"not int64 \[N\]"),
        (Proposal([1, 2], [-1, 0]), r"not int64 \[N\]"),  # type: ignore[arg-type]
        (Proposal(ints(1, 2), ints(-1, 0), torch.ones(1, 4)), r"probs are float32 \[1, 4\], not float \[2, V\]"),
        (Proposal(ints(1), ints(-1), torch.ones(1, 4)), "no distribution"),
        (Proposal(ints(1), ints(-1), torch.tensor([[2.0, -1.0]])), "no distribution"),
        (Proposal(ints(1), ints(-1), torch.tensor([[float("nan"), 1.0]])), "no distribution"),
        (Proposal.chain([1, 2, 3, 4]), "4 nodes, asked for at most 3"),
        (replace(Proposal.chain([1, 2]), values=np.array([0.5])), "2 tokens but 1 values"),
        (replace(Proposal.chain([1, 2]), sources=ints(1)), "2 tokens but 1 sources"),
        (replace(Proposal.chain([1]), sources=ints(1, 1)), "1 tokens but 2 sources"),
    ],
)
def test_a_malformed_proposal_is_named(proposal: Proposal, told: str) -> None:
    with pytest.raises(BadProposal, match=told):
        check(proposal, Budget(3, max_depth=2))


def test_what_is_deeper_than_asked_for_is_cut(tree: Any) -> None:
    found = check(tree((1, -1), (2, 0), (3, -1), (4, 1), (5, 2), probs=torch.full((5, 9), 1 / 9)), Budget(9, max_depth=2))
    assert (found.tokens.tolist(), found.parents.tolist()) == ([1, 2, 3, 5], [-1, 0, -1, 2])
    assert found.probs is not None
    assert len(found.probs) == 4
    assert check(Proposal.chain([1, 2, 3]), Budget(9, max_depth=2)).tokens.tolist() == [1, 2]
