"""Logits that are no numbers end an answer with an error, and never become tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import BadInput, Budget, NonFiniteLogits, Proposal, Sampling
from eventspec.engine.distribution import choose, position_rng
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.verify import verify
from eventspec.lanes.workers import Workers
from eventspec.tree import BadProposal, DraftTree, best_nodes

ONE = Workers("one")
EAGER = DraftPolicy(max_nodes=6, head_nodes=6, patience=1, step_seconds=1)
SAMPLINGS = [
    Sampling(),
    Sampling(banned_ids=(1, 2)),
    Sampling(temperature=1.0, top_k=3),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(logit_bias={7: 100.0}),
    Sampling(repetition_penalty=1.5, bad_words=((0,),), min_new_tokens=2, stop_ids=(3,)),
]


def spoilt(rows: torch.Tensor, how: str) -> torch.Tensor:
    """Logits of which some, or all, are no numbers."""
    rows = rows.clone()
    if how == "one NaN":
        rows[..., 11] = torch.nan
    else:
        rows[...] = {"NaN": torch.nan, "inf": torch.inf, "-inf": -torch.inf}[how]
    return rows


@pytest.mark.parametrize("how", ["NaN", "one NaN", "inf", "-inf"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_nothing_is_drawn_from_what_is_no_number(how: str, sampling: Sampling, tree: Any) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (3, 20)))
    with pytest.raises(NonFiniteLogits, match="not finite after 2 tokens"):
        choose(spoilt(rows[0], how), [5, 6], sampling, None, position_rng(0))
    drafted = tree((4, -1), (5, 0))
    drawn = replace(drafted, probs=torch.full((2, 20), 0.05, dtype=torch.float64))
    for logits, proposal in ((rows[:1], Proposal.empty()), (rows, drafted), (rows, drawn)):
        with pytest.raises(NonFiniteLogits):
            verify(spoilt(logits, how), proposal, sampling, [5, 6], position_rng(0))


def test_what_is_banned_may_be_anything_and_a_grammar_does_not_hide_the_rest(maze: Any) -> None:
    row = torch.zeros(1, 40, dtype=torch.float64)
    row[0, 3], row[0, 2] = 1.0, torch.nan
    for sampling in (Sampling(banned_ids=(2,)), Sampling(banned_ids=(2,), logit_bias={5: 0.0})):
        assert verify(row, Proposal.empty(), sampling, [], position_rng(0)).tokens.tolist() == [3]
    with pytest.raises(NonFiniteLogits):
        verify(spoilt(row, "NaN"), Proposal.empty(), Sampling(), [], position_rng(0), maze())
    with pytest.raises(BadInput, match="nothing may be said"):
        choose(row[0].nan_to_num(), [], Sampling(banned_ids=tuple(range(40))), None, position_rng(0))


def test_rows_behind_the_path_may_be_anything(tree: Any) -> None:
    """A node that is not on the path, and one whose own row is bad: what comes before it counts."""
    rows = torch.zeros(3, 8, dtype=torch.float64)
    rows[0, 4], rows[1], rows[2, 6] = 1.0, torch.nan, 1.0
    for proposal, said in ((tree((3, -1), (4, -1)), [4, 6]), (tree((4, -1), (5, -1)), [4])):
        for sampling in (Sampling(), Sampling(min_new_tokens=1)):
            assert verify(rows, proposal, sampling, [], position_rng(0)).tokens.tolist() == said


@pytest.fixture
def poisoned(tiny: Any) -> Callable[[float], tuple[Any, list[int], int]]:
    """A world in which one token that the answer has not is read as what is no number; the answer; the token."""

    def make(value: float) -> tuple[Any, list[int], int]:
        with torch.inference_mode(False):
            world = type(tiny())(5)
            truth = world.answer(world.request(max_new_tokens=14))
            token = next(t for t in range(40) if t not in truth and str(t) not in world.prompt.split())
            world.language.embed.weight.data[token] = value
            return world, truth, token

    return make


@pytest.mark.parametrize("sampling", [{}, {"logit_bias": {0: 0.0}}], ids=["greedy", "general"])
@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_drafted_token_that_spoils_the_forward_changes_no_answer(
    value: float, settle: bool, sampling: dict[str, Any], poisoned: Any, oracle: Any, decoded: Any
) -> None:
    """Attention gives a masked row no weight, and nothing times NaN is NaN."""
    world, truth, token = poisoned(value)

    def draft(at: int, budget: Budget) -> Proposal:
        tokens = [token, *truth[at : at + 3]]
        return Proposal(np.array(tokens), np.array([-1, -1, *range(1, len(tokens) - 1)]), origin="oracle")

    drafter = oracle(truth, draft, concurrent=False)
    ran = decoded(world, drafter, world.request(max_new_tokens=14, **sampling), replace(EAGER, settle=settle), ONE)
    assert ran.outcome.token_ids == truth
    assert ran.trace.drafted > 0


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_target_of_nan_ends_the_answer(concurrent: bool, tiny: Any, oracle: Any, decoded: Any, poisoned: Any) -> None:
    world, truth, _ = poisoned(torch.nan)
    at = next(i for i, said in enumerate(truth) if str(said) not in world.prompt.split())
    assert at < len(truth) - 1, "the last token is not read"
    world.language.embed.weight.data[truth[at]] = torch.nan
    drafter = oracle(truth, concurrent=concurrent)
    with pytest.raises(NonFiniteLogits, match=f"after {at + 1} tokens"):
        decoded(world, drafter, world.request(max_new_tokens=14), EAGER, ONE)


def test_a_drafter_of_nan_is_told() -> None:
    logs = np.array([-0.1, np.nan, -2.0], np.float32)
    with pytest.raises(BadProposal, match="NaN"):
        best_nodes(np.arange(3), np.array([-1, -1, 0]), logs, Budget(8, min_path_prob=0.1), "head")
    with pytest.raises(BadProposal, match="NaN"):
        DraftTree().grow(-1, [(3, 0.5), (4, float("nan"))], 0.1)
