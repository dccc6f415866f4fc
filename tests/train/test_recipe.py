"""Training: packing, schedules, resuming, and a loss that may not be NaN."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from eventspec.core import BadInput
from eventspec.train import data
from eventspec.train.data import Branch, augment_frames, pack, rendered
from eventspec.train.loop import Stage, StageState, TrainingFailed, learning_rate, run_stage


def silent(name: str, progress: float, figures: dict[str, float]) -> None:
    pass


def test_a_branch_sees_the_prefix_and_itself_only() -> None:
    packed = pack([[Branch([1, 2], [3, 4]), Branch([5], [6, 7])], [Branch([8], [9])]], prefix=3)
    assert packed.ids[0].tolist() == [1, 2, 3, 5, 6]
    assert packed.labels[0].tolist() == [-100, 3, 4, 6, 7]
    assert packed.offsets[0].tolist() == [0, 1, 2, 0, 1]
    mask = packed.mask[0, 0]
    assert mask[:, :3].all(), "everybody sees the recording"
    assert mask[:3, 3:6].tolist() == torch.ones(3, 3).tril().bool().tolist()
    assert not mask[3:5, 3:6].any(), "the second question does not see the first"
    assert packed.labels[1].tolist() == [9, -100, -100, -100, -100]


def test_the_rate_warms_up_and_falls() -> None:
    rates = [learning_rate(p / 100, 1.0) for p in range(101)]
    assert rates[0] < 0.1
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.02, abs=1e-3)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))


def test_a_stage_resumes_where_it_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(64, 3)
    y = x.sum(1, keepdim=True)

    def losses(batch: object, progress: float) -> dict[str, torch.Tensor]:
        return {"fit": ((model(x) - y) ** 2).mean(), "_seen": torch.tensor(progress)}

    run_stage(Stage("one", 0.2, 1e-2, 1), model, itertools.repeat(None), losses, tmp_path, silent)
    again = nn.Linear(3, 1)
    seconds, steps = StageState(tmp_path, "one").load(again, None)
    assert seconds >= 0.2
    assert steps > 0
    assert torch.equal(again.weight, model.weight)
    before = model.weight.clone()
    run_stage(Stage("one", 0.2, 1e-2, 1), model, itertools.repeat(None), losses, tmp_path, silent)
    assert torch.equal(model.weight, before), "a finished stage trains no further"


def test_steps_decide_where_they_are_given_and_two_runs_are_alike(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        model, x, seen = nn.Linear(3, 1), torch.randn(64, 3), list[float]()

        def losses(batch: object, progress: float) -> dict[str, torch.Tensor]:
            seen.append(progress)  # noqa: B023
            return {"fit": (model(x) ** 2).mean()}  # noqa: B023

        for _ in range(2):  # a finished stage trains no further
            run_stage(Stage("one", 0, 1e-2, 1, steps=4), model, itertools.repeat(None), losses, tmp_path / name, silent)
        assert seen == [0, 0.25, 0.5, 0.75]
        found.append(model.weight)
    assert torch.equal(*found)


def test_only_as_many_clips_are_rendered_as_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, render = [], data._render
    monkeypatch.setattr(data, "_render", lambda job: (made.append(job[2:]), render(job)))
    for wanted, jobs in ((2, [(0, 2)]), (1, []), (3, [(0, 3)])):
        made.clear()
        clips = rendered("render", tmp_path, "train", wanted, silent, 1)
        assert made == jobs and len(clips) >= wanted
    assert clips.column("frames", np.array([2])).shape[0] == 1 and len(clips) == 3


def test_figures_of_a_stage_are_kept_as_lines_and_for_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = nn.Linear(1, 1)
    run_stage(
        Stage("calm", 0.3, 1e-3, 1),
        model,
        itertools.repeat(None),
        lambda *_: {"fit": model(torch.ones(1, 1)).square().mean()},
        tmp_path,
        silent,
    )
    rows = [json.loads(line) for line in (tmp_path / "calm.jsonl").read_text().splitlines()]
    kept = EventAccumulator(str(tmp_path / "tensorboard/calm")).Reload().Scalars("fit")
    assert [row["step"] for row in rows] == [scalar.step for scalar in kept]
    assert [row["fit"] for row in rows] == pytest.approx([scalar.value for scalar in kept], abs=1e-4)


def test_an_interrupt_keeps_every_step(tmp_path: Path) -> None:
    model, calls = nn.Linear(1, 1), itertools.count()

    def losses(batch: object, progress: float) -> dict[str, torch.Tensor]:
        if next(calls) == 7:
            raise KeyboardInterrupt
        return {"fit": (model.weight.sum() - 3) ** 2}

    with pytest.raises(KeyboardInterrupt):
        run_stage(Stage("cut", 60, 1e-2, 1), model, itertools.repeat(None), losses, tmp_path, silent)
    again = nn.Linear(1, 1)
    assert StageState(tmp_path, "cut").load(again, None)[1] == 7
    assert torch.equal(again.weight, model.weight)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_a_damaged_checkpoint_is_told(content: bytes | None, tmp_path: Path) -> None:
    whole = StageState(tmp_path, "one")
    whole.save(nn.Linear(2, 2), None, 1.0, 1)
    whole.path.write_bytes(whole.path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(BadInput, match=r"one\.pt is damaged"):
        whole.load(nn.Linear(2, 2), None)


def test_a_checkpoint_of_other_models_is_told(tmp_path: Path) -> None:
    StageState(tmp_path, "one").save(nn.Linear(2, 2), None, 1.0, 1)
    with pytest.raises(BadInput, match="of other models"):
        StageState(tmp_path, "one").load(nn.Linear(3, 2), None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's budget is wall time")
def test_waiting_does_not_use_up_the_budget(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)

    def losses(batch: object, progress: float) -> dict[str, torch.Tensor]:
        time.sleep(0.05)
        return {"fit": model.weight.sum() ** 2}

    began = time.monotonic()
    run_stage(Stage("calm", 0.05, 1e-3, 1), model, itertools.repeat(None), losses, tmp_path, silent)
    assert time.monotonic() - began > 0.2


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    calls = itertools.count()

    def losses(batch: object, progress: float) -> dict[str, torch.Tensor]:
        return {"fit": model.weight.sum() * (float("nan") if next(calls) > 2 else 1.0)}

    with pytest.raises(TrainingFailed, match="step 3"):
        stage = Stage("bad", 60, 1e-3, 1, save_every=0.0)
        run_stage(stage, model, itertools.repeat(None), losses, tmp_path, silent)
    fresh = nn.Linear(1, 1)
    StageState(tmp_path, "bad").load(fresh, None)
    assert torch.isfinite(fresh.weight).all()


def test_augmentation_keeps_shape_and_range() -> None:
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (12, 4, 112, 112, 3)).astype(np.uint8))
    out = augment_frames(frames, rng)
    assert out.shape == (12, 4, 3, 112, 112)
    assert 0 <= float(out.min()) <= float(out.max()) <= 255
    grey = (out[:, :, 0] == out[:, :, 1]).flatten(1).all(1)
    assert 0 < int(grey.sum()) < 12, "some clips lose their colour, most keep it"
