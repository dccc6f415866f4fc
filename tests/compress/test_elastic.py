"""Every way to see fewer visual rows: what is kept, where it stands, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from eventspec.compress.elastic import FRUGAL, KINDS, SELECT, Elastic, Gate, Option, picture_of
from eventspec.compress.grid import grid_of, squares
from eventspec.compress.reductions import ImportancePruning, Resampler
from eventspec.core import BadCheckpoint, BadInput
from eventspec.pairs.names import BRANCHES


@pytest.mark.parametrize(
    ("total", "option", "places"),
    [
        (7, Option("prune", 3), [1, 4, 6]),
        (7, Option("pool", 3), [2, 5, 6]),
        (7, Option("convolve", 3), [2, 5, 6]),
        (7, Option("resample", 2), [5, 6]),
        (1, Option("prune", 20), [0]),
        (1, Option("pool", 20), [0]),
        (1, Option("resample", 2), [0]),
        (5, Option("none"), []),
    ],
)
def test_every_way_keeps_at_least_a_row_but_none(total: int, option: Option, places: list[int]) -> None:
    rows = torch.randn(total, 32)
    made = Elastic(16, "concat", (option,)).eval()
    kept, found = made(rows, rows[:, 16:])
    assert found.tolist() == places
    assert kept.shape == (len(places), 32)


def test_pooling_a_short_last_group_is_its_own_mean() -> None:
    rows = torch.arange(14.0).reshape(7, 2)
    pooled, _ = Elastic(1, "concat", (Option("pool", 3),))(rows, rows[:, 1:])
    assert pooled.tolist() == [[2.0, 3.0], [8.0, 9.0], [12.0, 13.0]]


@pytest.mark.parametrize(
    ("total", "option", "groups"),
    [
        (12, Option("pool", 1, 2), [[0, 4], [1, 5], [2, 6], [3, 7], [8], [9], [10], [11]]),
        (12, Option("pool", 3, 3), [[0, 1, 2, 4, 5, 6, 8, 9, 10], [3, 7, 11]]),
        (16, Option("pool", 2, 3), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11], [12, 13], [14, 15]]),
        (4, Option("pool", 2, 8), [[0, 1], [2, 3]]),
        (10, Option("pool", 2, 2), [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9]]),
        (3, Option("pool", 2, 2), [[0, 1], [2]]),
        (0, Option("pool", 2, 2), []),
    ],
)
def test_pooling_over_frames_is_the_mean_of_patches_in_the_same_places(
    total: int, option: Option, groups: list[list[int]]
) -> None:
    """Frames of four rows. What lies behind the last whole one is a frame of its own."""
    rows = torch.randn(2, total, 6)
    kept, places = Elastic(3, "concat", (option,), frame=4).branches_of(rows)[0]
    expected = torch.stack([rows[:, group].mean(1) for group in groups], 1) if groups else rows
    torch.testing.assert_close(kept, expected)
    assert places.tolist() == [max(group) for group in groups]


@torch.inference_mode()
def test_a_branch_is_computed_once_a_recording() -> None:
    torch.manual_seed(0)
    made = Elastic(8, "select", (Option("pool", 2), Option("convolve", 3))).eval()
    assert isinstance(made.gate, Gate)
    made.gate.out.weight.normal_()
    rows, other = torch.randn(2, 12, 16)
    questions = torch.randn(40, 3, 8)
    calls = [0, 0]

    def counted(place: int, *_: object) -> None:
        calls[place] += 1

    for place, branch in enumerate(made.branches):
        branch.register_forward_hook(partial(counted, place))
    found = [made(rows.clone(), question) for question in questions]
    assert calls == [1, 1], "both were chosen, each was computed for the first question that did"
    made(other, questions[0])
    assert sum(calls) == 3, "another recording is another"
    for question, (kept, places) in zip(questions, found, strict=True):
        fresh = Elastic(8, "select", made.options).eval()
        fresh.load_state_dict(made.state_dict())
        assert torch.equal(fresh(rows, question)[0], kept)
        assert torch.equal(fresh(rows, question)[1], places)
    before = sum(calls)
    made.train().eval()(other, questions[0])
    assert sum(calls) == before + 1, "its weights may be others behind a training"
    made.load_state_dict(made.state_dict())
    made(other, questions[0])
    assert sum(calls) == before + 2, "and when others were loaded"
    made.requires_grad_(False)  # its weights are an inference's
    with torch.inference_mode(False), torch.enable_grad():
        assert not made(other.clone(), questions[0].clone())[0].is_inference(), "what was kept is of no use for gradients"


def test_frames_are_for_pooling_and_are_counted() -> None:
    assert [Option(kind).cost(0.2) for kind in ("prune", "pool", "convolve", "resample")] == [0.2, 0.2, 0.45, 1 / 6]
    assert Option("pool", 2).as_json() == {"kind": "pool", "size": 2}, "as heads before were written"
    made = Elastic(3, "select", FRUGAL, frame=4)
    again = Elastic.from_json(3, made.as_json())
    assert (again.options, again.frame, again.picture) == (made.options, 4, True)
    half: Any = 2.0
    for kind, frames, said in (("prune", 3, "only pool goes over frames"), ("pool", half, "give a whole number, 1 to 4096")):
        with pytest.raises(BadCheckpoint, match=said):
            Option(kind, 2, frames)
    with pytest.raises(BadCheckpoint, match="cannot be without frame"):
        Elastic(3, "select", FRUGAL)
    with pytest.raises(BadCheckpoint, match="one ratio"):
        Elastic(3, "weighted", (Option("pool", 2, 3), Option("prune", 2)), frame=4)


def test_turning_the_queries_gives_the_shares_of_turning_the_rows() -> None:
    resampler, rows = Resampler(8, 2), torch.randn(7, 16)
    hidden = rows[:, 8:]
    shares = (resampler.queries @ resampler.keys(hidden).T * 8**-0.5).softmax(-1)
    torch.testing.assert_close(resampler(rows)[0], torch.cat((shares @ rows[:, :8], resampler.values(shares @ hidden)), 1))


@pytest.mark.parametrize(("kind", "size"), [("prune", 0), ("pool", -1), ("shrink", 3)])
def test_a_ratio_that_leaves_no_visual_token_is_refused(kind: str, size: int) -> None:
    with pytest.raises(BadCheckpoint, match=r"leaves no visual token|is unknown"):
        Option(kind, size)


@pytest.mark.parametrize("size", [2.5, float("nan"), True, "3", None, 4097, 10**19])
def test_a_size_that_is_no_small_whole_number_is_refused(size: Any) -> None:
    for kind in ("pool", "convolve", "resample"):
        with pytest.raises(BadCheckpoint, match="whole number, 1 to 4096"):
            Option(kind, size)
    assert Option("pool", 4096).size == 4096


def test_squares_of_a_grid_keep_the_class_token_apart_and_frames_apart() -> None:
    """Two frames of a class token and three patches a side; squares of two reach beyond, and repeat the last row and column."""
    assert (grid_of(10), grid_of(9), grid_of(1), grid_of(2)) == ((1, 3), (0, 3), (0, 1), (1, 1))
    assert squares(10, 2).tolist() == [[1, 2, 4, 5], [3, 3, 6, 6], [7, 8, 7, 8], [9, 9, 9, 9]]
    rows = torch.randn(3, 23, 8)
    wanted = [[0], [1, 2, 4, 5], [3, 3, 6, 6], [7, 8, 7, 8], [9, 9, 9, 9]]
    groups = [[at + place for place in group] for at in (0, 10) for group in wanted] + [[20, 21, 22]]
    for kind in ("pool", "max", "convolve"):
        kept, places = Elastic(4, "select", (Option(kind, 2, grid=True),), frame=10).branches_of(rows)[0]
        assert places.tolist() == [group[-1] for group in groups], kind
        means = torch.stack([rows[:, group].mean(1) for group in groups], 1)
        torch.testing.assert_close(kept[..., :4], means[..., :4], msg="embeddings are averaged")
        most = torch.stack([rows[:, group].amax(1) for group in groups[:-1]], 1)
        features = torch.cat((most, means[:, -1:]), 1) if kind == "max" else means
        torch.testing.assert_close(kept[..., 4:], features[..., 4:], msg=f"{kind}: a convolution starts as the mean")


def test_importance_keeps_what_its_weight_says_and_learns_what_helps() -> None:
    made = ImportancePruning(2, 3)
    rows = torch.tensor([[0.0, 0, 1, 0], [0, 0, 3, 0], [0, 0, 2, 0], [0, 0, -1, 5], [0, 0, 0, 9]])
    with torch.no_grad():
        made.weight.copy_(torch.tensor([1.0, 0.0]))
        assert made.eval()(rows)[1].tolist() == [1, 2]
        made.weight.copy_(torch.tensor([0.0, 1.0]))
        assert made(rows)[1].tolist() == [3, 4], "another weight, other rows"
    kept, places = made(rows)
    assert torch.equal(kept, rows[places]), "its gradient's factor is 1"
    torch.manual_seed(0)
    begun = ImportancePruning(2, 3).train()
    tried = {tuple(begun(rows)[1].tolist()) for _ in range(200)}
    assert len(tried) == 10, "while importances are alike, every choice of two of five comes"
    # The loss wants the second channel large: rows that have it are to be kept.
    optimiser = torch.optim.Adam([begun.weight], 0.05)
    for _ in range(200):
        optimiser.zero_grad()
        (-begun(rows)[0][:, 3].sum()).backward()
        optimiser.step()
    assert begun.eval()(rows)[1].tolist() == [3, 4]


def test_a_gate_chooses_by_question_and_picture_and_may_be_overruled() -> None:
    torch.manual_seed(0)
    made = Elastic(8, "select", SELECT, frame=5).eval()
    assert isinstance(made.gate, Gate)
    with torch.no_grad():
        made.gate.out.weight.normal_()
    question, other = torch.randn(2, 4, 8)
    pictures = torch.randn(60, 10, 16)
    by_picture = {made.chosen(picture, question) for picture in pictures}
    by_question = {made.chosen(pictures[0], asked) for asked in torch.randn(60, 4, 8)}
    assert len(by_picture) > 1 < len(by_question), "either of them alone makes it choose otherwise"
    assert picture_of(pictures[0][:0]).tolist() == [[0.0] * 8] * 2, "no visual row, no picture"
    for kind in KINDS:
        made.force(kind)
        assert {SELECT[made.chosen(picture, other) or 0].kind for picture in pictures} == {kind}
    with pytest.raises(
        BadInput, match=r"branch 'attention' is unknown: choose one of prune, pool, max, convolve, resample, none"
    ):
        made.force("attention")
    with pytest.raises(BadInput, match="in mode concat nothing is chosen"):
        Elastic(8, "concat", (Option("prune", 2),)).force("prune")
    assert BRANCHES == KINDS, "what the command line knows without loading torch"


def test_while_training_every_branch_is_drawn_as_often() -> None:
    torch.manual_seed(0)
    made = Elastic(8, "select", SELECT, frame=5).train()
    shares = made.shares(torch.randn(3000, 8), torch.randn(3000, 2, 8))
    assert torch.equal(shares.sum(-1), torch.ones(3000))
    assert float((shares.mean(0) - 1 / 6).abs().max()) < 0.03


def test_a_gate_of_earlier_versions_is_read_and_looks_at_the_question_alone() -> None:
    made = Elastic.from_json(8, {"mode": "select", "options": [{"kind": "prune", "size": 5}, {"kind": "none", "size": 1}]})
    assert isinstance(made.gate, torch.nn.Linear)
    assert not made.picture
    question = torch.randn(4, 8)
    assert len({made.eval().chosen(picture, question) for picture in torch.randn(40, 10, 16)}) == 1
    assert "picture" not in made.as_json()
