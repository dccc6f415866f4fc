"""Training in two processes: one gradient, the same parameters, one end; and what a run in one process does when its loss is
no number. Run by a launcher, this file is one of the processes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from eventspec.cli import run
from eventspec.core import BadInput
from eventspec.drafters.heads import RECIPES
from eventspec.train import heads as recipe
from eventspec.train import loop
from eventspec.train.data import Branch, Clips, shuffled
from eventspec.train.distillation import HeadTraining
from eventspec.train.loop import Stage, TrainingFailed
from eventspec.train.processes import ALONE, Processes, started


class Pictures(Clips):
    """Eight clips of noise in the place of rendered ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def column(self, name: str, index: np.ndarray[Any, Any]) -> torch.Tensor:
        pictures = [np.random.default_rng(int(i)).integers(0, 256, (8, 112, 112, 3), dtype=np.uint8) for i in index]
        return torch.from_numpy(np.stack(pictures))


class Watched(HeadTraining):
    """The heads in training, which note their batches; the loss of one call may be no number."""

    made: ClassVar[list[Watched]] = []
    bad_call: ClassVar[int] = -1

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batches: list[list[int]] = []
        self.made.append(self)

    def losses(self, index: object, progress: float) -> dict[str, torch.Tensor]:
        assert isinstance(index, np.ndarray)
        self.batches.append(index.tolist())
        parts = super().losses(index, progress)
        return {name: part * float("nan" if len(self.batches) - 1 == self.bad_call else 1) for name, part in parts.items()}


def answered(pair: Path, out: Path, split: str, count: int, *how: Any) -> tuple[Pictures, dict[int, list[Branch]]]:
    """The clips, and two questions about each of the first `count` of them."""
    two = {number: [Branch([9, 8, 7], [20 + number, 30, 31, 2]), Branch([9, 5], [40, 41, 2])] for number in range(count)}
    return Pictures(out), two


def heads(out: Path, seconds: float, processes: Processes = ALONE, bad_call: int = -1) -> Watched:
    """The recipe on those clips until it has trained `seconds` in all; a step takes one, in the second process two."""
    Watched.made.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "trained_clock", partial(next, itertools.count(0, 1 + processes.rank)))
        patch.setattr(Watched, "bad_call", bad_call)
        patch.setitem(recipe.PRESETS, "tiny", recipe.TrainingPreset(8, 2, Stage("heads", seconds, 1e-3, 2), 2))
        patch.setattr(recipe, "HeadTraining", Watched)
        patch.setattr(recipe, "answered", answered)
        recipe.train("nano", "tiny", ["eagle1"], out, lambda *told: None, processes=processes)
    return Watched.made[0]


def digest(model: nn.Module) -> str:
    rows = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(rows)).hexdigest()


def steps_in(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["steps"])


class Half(nn.Module):
    """A matrix, a vector that one process alone uses, and one that none does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.all, self.one, self.none = (nn.Parameter(torch.randn(shape)) for shape in ((4, 3), (3,), (3,)))

    def loss(self, rows: torch.Tensor, extra: bool) -> torch.Tensor:
        return (rows @ self.all.T).square().mean() + (2 * self.one.sum() if extra else 0)


def averaged(processes: Processes) -> dict[str, Any]:
    """The averaged gradient of a loss on this process's rows, and the gradient of one process on all rows."""
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(7))
    model, whole = Half(processes.rank), Half(0)
    processes.begin(model)
    loss = model.loss(rows.chunk(2)[processes.rank], extra=processes.rank == 1)
    loss.backward()
    figures = processes.average(model, {"loss": loss})
    joined = (whole.loss(rows, False) + whole.loss(rows, True)) / 2
    joined.backward()
    pairs = list(zip(model.parameters(), whole.parameters(), strict=True))
    return {
        "same": all(torch.equal(own, wanted) for own, wanted in pairs),
        "none": model.none.grad is None,
        "apart": max(float((own.grad - wanted.grad).abs().max()) for own, wanted in pairs if wanted.grad is not None),
        "loss": [figures["loss"], float(joined)],
        "most": processes.most(float(processes.rank)),
    }


def one_of_two(out: Path) -> None:
    """What each of the two processes does; told in OUT/told-RANK.json."""
    with started() as processes:
        told = averaged(processes)
        trained = heads(out, 8.0, processes)
        told |= {"digest": digest(trained), "batches": trained.batches}
        processes.wait()  # until the first has written the pair
        try:
            heads(out, 60.0, processes, bad_call=3 if processes.rank == 1 else -1)
        except TrainingFailed as failed:
            told |= {"failed": str(failed), "calls": len(Watched.made[0].batches)}
        (out / f"told-{processes.rank}.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The folder of a run in two processes, and what each of them told."""
    pytest.importorskip("accelerate")
    out = tmp_path_factory.mktemp("two")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    quiet = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, __file__, str(out)], check=False, env=quiet, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    yield out, [json.loads((out / f"told-{rank}.json").read_text()) for rank in (0, 1)]


Two = tuple[Path, list[dict[str, Any]]]


@pytest.mark.long
def test_the_averaged_gradient_is_that_of_one_process_on_the_joined_batch(two: Two) -> None:
    for told in two[1]:
        assert told["same"], "both begin with the first one's parameters"
        assert told["apart"] < 1e-6
        assert told["loss"][0] == pytest.approx(told["loss"][1])
        assert told["none"], "a parameter that no process used has no gradient, not zeros"
        assert told["most"] == 1.0


@pytest.mark.long
def test_processes_learn_from_different_clips_and_stay_bit_identical(two: Two) -> None:
    first, second = two[1]
    assert len(first["batches"]) == len(second["batches"]) == 4, "the slower one's seconds count for both"
    assert first["digest"] == second["digest"]
    for mine, yours in zip(first["batches"], second["batches"], strict=True):
        assert len({*mine, *yours}) == 4
    assert len({number for told in two[1] for batch in told["batches"][:2] for number in batch}) == 8, "one shuffle, dealt out"


@pytest.mark.long
def test_a_loss_that_is_no_number_in_one_process_stops_both_and_another_number_of_processes_goes_on(two: Two) -> None:
    out, told = two
    assert steps_in(out / "heads.pt") == 4, "the checkpoint of the run before is kept"
    assert [each["calls"] for each in told] == [4, 4]
    assert told[0]["failed"] == told[1]["failed"]
    assert "the loss is nan at step 7;" in told[0]["failed"]
    heads(out, 10.0)
    assert steps_in(out / "heads.pt") == 6


def test_a_loss_that_is_no_number_stops_the_heads_and_keeps_their_last_good_state(tmp_path: Path) -> None:
    heads(tmp_path, 1.0)
    kept = (tmp_path / "heads.pt").read_bytes()
    with pytest.raises(TrainingFailed, match=r"the loss is nan at step 3; .*heads\.pt keeps the last good state"):
        heads(tmp_path, 60.0, bad_call=2)
    assert (tmp_path / "heads.pt").read_bytes() == kept
    heads(tmp_path, 2.0)
    assert steps_in(tmp_path / "heads.pt") == 2


def test_too_few_clips_for_a_batch_in_every_process_are_refused() -> None:
    many = Processes()
    many.count = 3
    with pytest.raises(BadInput, match="8 clips to train on are fewer than 3 x 4"):
        next(shuffled(range(8), 4, 0, Path("here"), many))


def test_without_accelerate_many_processes_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(BadInput, match=r"2 processes needs accelerate: pip install 'eventspec\[train\]'"), started():
        pass


@pytest.mark.parametrize(("rank", "code"), [("0", 2), ("1", 0)])
def test_the_first_process_alone_tells_what_stopped_all(
    rank: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*given: Any, **named: Any) -> Path:
        raise TrainingFailed("heads: the loss is nan at step 3")

    @contextmanager
    def pretended() -> Iterator[Processes]:
        one = Processes()
        one.rank = int(rank)
        yield one

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(recipe, "train", failing)
    monkeypatch.setattr("eventspec.train.processes.started", pretended)
    assert run(["train", "heads", "--out", str(tmp_path / "new")]) == code
    told = f"training into {tmp_path / 'new'} ...\neventspec: heads: the loss is nan at step 3"
    assert capsys.readouterr().err.strip() == (told if code else "")


def test_only_the_first_process_minds_a_folder_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first may have begun to write there when the second looks."""
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(recipe, "train", lambda *given, **named: pytest.fail("began"))
    assert run(["train", "heads", "--out", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(BaseException, match="began"):
        run(["train", "heads", "--out", str(tmp_path)])


@pytest.mark.parametrize("what", ["embedded", "mixture"])
def test_what_one_process_trains_is_not_trained_by_a_launcher(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["train", what, "--out", str(tmp_path / "new")]) == 2
    assert "in one process, not in 2" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["two", "0", "-1", "", "\u0662"])
@pytest.mark.parametrize("what", ["embedded", "heads", "packer"])
def test_a_count_of_processes_that_is_none_is_one_line(
    what: str, count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", count)
    assert run(["train", what, "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"eventspec: WORLD_SIZE is '{count}'")
    assert said.count("\n") == 1


def test_a_head_without_weights_to_begin_with_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict[str, Any]()

    def noted(*rest: Any, **named: Any) -> Path:
        given.update(named)
        raise TrainingFailed("enough")

    monkeypatch.setattr(recipe, "train", noted)
    monkeypatch.setitem(RECIPES, "dream", replace(RECIPES["dream"], begins_with="medusa"))  # which the pair has not
    words = ["train", "heads", "--out", str(tmp_path / "new"), "--head", "eagle", "--head", "dream", "--head", "msd"]
    assert run([*words, "--begin-with", "nano"]) == 2
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: pair nano has no head medusa: dream has nothing to begin with but random weights",
        "note: msd begins with the weights of the pair's head eagle",
    ]
    assert given["begin_with"] == "nano"
    run(words)
    assert "note: " not in capsys.readouterr().err


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]))
