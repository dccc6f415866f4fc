"""One training loop for every recipe: a time budget, warm-up and cosine, checkpoints that resume, and a loss that may
not be NaN.

The budget is trained seconds (`trained_clock`), added up over interruptions: a run that is stopped, paused or crowded out ends
where an unbroken one does. Of several processes the slowest counts, step by step, so that all stop at the same one.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from eventspec.core import BadInput, EventspecError
from eventspec.files import append_line, parsed, write_text, write_whole
from eventspec.pairs.pair_file import PairFile
from eventspec.train.processes import ALONE, Processes

Batch = TypeVar("Batch")
Losses = Callable[[Batch, float], dict[str, Tensor]]
"""(batch, progress) -> named losses."""
PROVENANCE = "provenance.json"
"""Beside a part of a pair: what is known of its training."""
Report = Callable[[str, float, dict[str, float]], None]
"""Called with the stage's name, progress in [0, 1] and smoothed figures."""


@dataclass(frozen=True)
class Stage:
    """One stretch of training: `seconds` of it, or so many `steps`, at peak learning rate `rate`, for batches of `batch`
    recordings in every process: N processes learn from N x `batch` in a step, at the same rate."""

    name: str
    seconds: float
    rate: float
    batch: int
    weight_decay: float = 0.02
    tower: float = 1.0
    """Learning rate of a vision tower that is already trained, as a share of the others'."""
    save_every: float = 120.0
    """Seconds between two checkpoints."""
    snapshots: tuple[float, ...] = ()
    """Shares of the stage at which the state is kept as NAME-PERCENT.pt as well."""
    steps: int = 0
    """So many steps in place of the seconds, however long they take."""

    def progress(self, seconds: float, steps: int) -> float:
        """The share of it that is done."""
        return steps / self.steps if self.steps else seconds / self.seconds

    def fitting(self, count: int, processes: Processes) -> Stage:
        """The same with batches that so many examples suffice for, shared out among processes."""
        return replace(self, batch=max(1, min(self.batch, count // processes.count)))


class TrainingFailed(EventspecError):
    """The loss stopped being a number; the last good checkpoint is kept."""


def trained_clock() -> float:
    """Seconds that count as training: wall time on a GPU; on a CPU what the process got, a core's worth per intra-op thread."""
    return time.monotonic() if torch.cuda.is_available() else time.process_time() / torch.get_num_threads()


def learning_rate(progress: float, peak: float) -> float:
    """Warm-up over the first 3 %, then a cosine to 2 % of the peak."""
    if progress < 0.03:
        return peak * max(progress, 1e-3) / 0.03
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - 0.03) / 0.97))))


class StageState:
    """The state of one stage in `folder/NAME.pt`, written beside and renamed; loaded without executing anything."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.pt"
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, model: nn.Module, optimiser: torch.optim.Optimizer | None, seconds: float, steps: int) -> None:
        own = optimiser.state_dict() if optimiser else None
        state = {"model": model.state_dict(), "optimiser": own, "seconds": seconds, "steps": steps}
        write_whole(self.path, lambda part: torch.save(state, part))

    def require(self, model: nn.Module) -> None:
        """As `load`, for a stage that must have been trained; TrainingFailed when it was not."""
        if not self.path.exists():
            raise TrainingFailed(f"{self.path} is missing: that stage was not trained; run again with --resume")
        self.load(model, None)

    def load(self, model: nn.Module, optimiser: torch.optim.Optimizer | None) -> tuple[float, int]:
        """Seconds and steps trained so far; (0, 0) when there is no checkpoint."""
        if not self.path.exists():
            return 0.0, 0
        try:
            state = torch.load(self.path, weights_only=True, map_location="cpu")
            model.load_state_dict(state["model"])
            if optimiser and state["optimiser"]:
                optimiser.load_state_dict(state["optimiser"])
            return float(state["seconds"]), int(state["steps"])
        except (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, UnpicklingError):
            raise BadInput(f"{self.path} is damaged, or of other models: remove it to train that stage again") from None


def same_run(out: Path, what: Mapping[str, object]) -> None:
    """BadInput when a folder holds an earlier run with other settings, or run.json is damaged."""
    path = out / "run.json"
    if not path.exists():
        return
    try:
        before = parsed(path.read_bytes())
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise BadInput(f"{path} is damaged: choose another folder, or remove the file if the rest is of the same run")
    if wrong := [name for name in what if before.get(name) != what[name]]:
        apart = ", ".join(f"{name} {before.get(name)}, not {what[name]}" for name in wrong)
        raise BadInput(f"{out} holds an earlier run with {apart}: choose another folder")


def note_run(out: Path, what: Mapping[str, object]) -> None:
    """As `same_run`; the settings are written there the first time."""
    same_run(out, what)
    out.mkdir(parents=True, exist_ok=True)
    if not (path := out / "run.json").exists():
        write_text(path, json.dumps(what) + "\n")


@contextmanager
def changed_pair(file: PairFile, out: Path) -> Iterator[PairFile]:
    """The pair of a file, to be changed: when the block ends it takes the place of OUT/pair. A pair of ours is copied, one of
    checkpoints points to all that it had where it lies. BadInput where that would remove something it points to."""
    file.check_kept(out / "pair")
    part = out / ".pair.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        if file.load is None:
            shutil.copytree(file.folder, part)
            yield replace(file, folder=part)
        else:
            part.mkdir(parents=True)
            yield file.pointed_to_from(part)
        shutil.rmtree(out / "pair", ignore_errors=True)
        part.rename(out / "pair")
    finally:  # it was renamed, or is not whole
        shutil.rmtree(part, ignore_errors=True)


def add_part(
    file: PairFile,
    out: Path,
    place: str,
    write: Callable[[Path], object],
    about: Mapping[str, object],
    listed: Callable[[PairFile], PairFile],
) -> Path:
    """Write OUT/pair: a pair with what `write` puts into the folder `place` of it, where an earlier one stood; what is known
    `about` the training, in provenance.json; and its pair.toml as `listed` makes it."""
    with changed_pair(file, out) as made:
        folder = made.folder / place
        shutil.rmtree(folder, ignore_errors=True)
        write(folder)
        write_text(folder / PROVENANCE, json.dumps({**about, "torch": torch.__version__}) + "\n")
        listed(made).write()
    return out / "pair"


def _groups(stage: Stage, model: nn.Module) -> list[dict[str, object]]:
    """Parameter groups by decay (matrices only) and learning rate (the tower may have its own)."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((parameter.dim() > 1, ".tower." in name), []).append(parameter)
    return [
        {"params": found, "weight_decay": stage.weight_decay if matrix else 0.0, "scale": stage.tower if tower else 1.0}
        for (matrix, tower), found in groups.items()
    ]


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """One more JSON object in a file that has one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with io.FileIO(path, "a") as file:
        append_line(file, json.dumps(row))


def last_row(path: Path) -> dict[str, Any]:
    """The last of such a file's objects."""
    row: dict[str, Any] = parsed(path.read_bytes().splitlines()[-1])
    return row


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """To four places, as they are noted."""
    return {name: round(value, 4) for name, value in figures.items()}


class Calibration:
    """What `measured` gives on held-out recordings while a stage learns, every so many steps, a row each in `log`."""

    def __init__(self, measured: Callable[[], Mapping[str, Any]], log: Path, every: int = 0) -> None:
        self.measured, self.log, self.every = measured, log, every

    def note(self, where: Mapping[str, object]) -> dict[str, Any]:
        """Measure now; step -1 is the end."""
        row = {**where, **self.measured()}
        append_row(self.log, row)
        return row

    def note_first(self) -> dict[str, Any]:
        """What was measured before the first step."""
        if not self.log.exists():
            self.note({"step": 0})
        row: dict[str, Any] = parsed(self.log.read_bytes().splitlines()[0])
        return row

    def noting(self, report: Report) -> Report:
        """`report`, with the measurements."""

        def report_step(name: str, progress: float, figures: dict[str, float]) -> None:
            if figures.get("step", 1) % self.every == 0:
                self.note({"step": figures["step"], "progress": round(progress, 4)})
            report(name, progress, figures)

        return report_step


class _Log:
    """Smoothed figures of a stage, reported and appended to `folder/NAME.jsonl` every 20 steps, and written to
    `folder/tensorboard/NAME` where TensorBoard is installed: there a resumed stage drops what came after its checkpoint."""

    def __init__(self, folder: Path, stage: Stage, report: Report, steps: int, first: bool) -> None:
        self.path, self.stage, self.report = folder / f"{stage.name}.jsonl", stage, report
        self.smooth: dict[str, float] = {}
        self.scalars: Any = None
        if first:  # the import takes seconds: not while a stage's time runs
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self.scalars = SummaryWriter(folder / "tensorboard" / stage.name, purge_step=steps + 1, flush_secs=30)

    def add(self, figures: Mapping[str, float], steps: int, seconds: float) -> None:
        for name, figure in figures.items():
            self.smooth[name] = 0.95 * self.smooth.get(name, figure) + 0.05 * figure
        if steps % 20:
            return
        self.report(self.stage.name, self.stage.progress(seconds, steps), {**self.smooth, "step": steps})
        append_row(self.path, {"step": steps, "seconds": round(seconds, 1), **rounded(self.smooth)})
        if self.scalars is not None:
            for name, value in self.smooth.items():
                self.scalars.add_scalar(name.lstrip("_"), value, steps)

    def close(self) -> None:
        if self.scalars is not None:
            self.scalars.close()


def total(losses: Mapping[str, Tensor]) -> Tensor:
    """What is minimised: the sum of those whose name does not begin with `_`."""
    return torch.stack([loss for name, loss in losses.items() if not name.startswith("_")]).sum()


def run_stage(
    stage: Stage,
    model: nn.Module,
    batches: Iterable[Batch],
    losses: Losses[Batch],
    folder: Path,
    report: Report,
    clipped: Sequence[nn.Module] = (),
    processes: Processes = ALONE,
) -> None:
    """Train until the stage's seconds are used up, or its steps taken. `losses(batch, progress)` returns named parts; their sum
    is minimised (where none has a gradient, backward was run already), names that begin with `_` are only reported. `clipped`:
    modules whose gradients are clipped each for itself. Ctrl-C loses none of the steps that were taken. Of several `processes`,
    each with batches of its own, the first one saves and reports; TrainingFailed is raised in all of them at the same step."""
    optimiser = torch.optim.AdamW(_groups(stage, model), lr=stage.rate, betas=(0.9, 0.97), fused=True)
    checkpoint = StageState(folder, stage.name)
    seconds, steps = checkpoint.load(model, optimiser)
    if checkpoint.path.exists() and stage.progress(seconds, steps) >= 1:
        return
    log = _Log(folder, stage, report, steps, processes.first)
    processes.begin(model)
    saved, last = seconds, trained_clock()
    try:
        for batch in batches:
            if (progress := stage.progress(seconds, steps)) >= 1:
                break
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(progress, stage.rate) * group["scale"]
            parts = losses(batch, progress)
            loss = total(parts)
            if loss.requires_grad:
                loss.backward()
            figures = processes.average(model, parts)
            norms = [torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0) for part in clipped or (model,)]
            _require_numbers(figures, norms, steps, checkpoint)
            optimiser.step()
            optimiser.zero_grad()
            steps += 1
            now = trained_clock()
            seconds, last = processes.most(seconds + now - last), now
            if processes.first:
                log.add(figures, steps, seconds)
                for share in stage.snapshots:
                    if progress < share <= stage.progress(seconds, steps):
                        StageState(folder, f"{stage.name}-{share:.0%}".rstrip("%")).save(model, None, seconds, steps)
            if seconds - saved > stage.save_every:
                if processes.first:
                    checkpoint.save(model, optimiser, seconds, steps)
                processes.wait()
                saved, last = seconds, trained_clock()
    except KeyboardInterrupt:
        if processes.first:
            checkpoint.save(model, optimiser, seconds, steps)
        raise
    finally:
        log.close()
    if processes.first:
        checkpoint.save(model, optimiser, max(seconds, stage.seconds), steps)
    processes.wait()


def _require_numbers(figures: Mapping[str, float], norms: Sequence[Tensor], steps: int, checkpoint: StageState) -> None:
    """TrainingFailed when the loss or a gradient is NaN or infinite; before the step, so that such a state is never saved."""
    loss = sum(figure for name, figure in figures.items() if not name.startswith("_"))
    norm = float(torch.stack([norm.float() for norm in norms]).sum())
    if math.isfinite(loss) and math.isfinite(norm):
        return
    problem = f"the loss is {loss}" if not math.isfinite(loss) else f"a gradient's norm is {norm}"
    path = checkpoint.path
    kept = f"{path} keeps the last good state" if path.exists() else f"{path} was not yet written"
    raise TrainingFailed(f"{path.stem}: {problem} at step {steps}; {kept}")
