"""What a training will take, before it begins: the recipe itself runs on a few recordings in a folder that is thrown away, and
what that took is scaled to the preset."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from eventspec.train.answers import TrainingPreset
from eventspec.train.loop import Report
from eventspec.train.material import ASKED
from eventspec.train.names import Given

SMOKE = "smoke"
"""The preset that is rehearsed."""
Recipe = Callable[[Path, Report, Given | None], object]
"""Runs a recipe with that preset, into a folder."""


@dataclass
class Watch:
    """A report that notes when the target had answered, and the memory in use then."""

    began: float = field(default_factory=time.monotonic)
    loaded: float = 0.0
    reports: int = 0
    prepared: float = 0.0
    held: int = 0

    def __call__(self, stage: str, progress: float, figures: dict[str, float]) -> None:
        now = time.monotonic() - self.began
        if stage in ("answer", "questions") or stage.startswith("render"):
            self.loaded = self.loaded or now
            self.reports += 1
            self.prepared, self.held = now, in_use()


@dataclass(frozen=True)
class Estimate:
    """Of a whole training: seconds, peak memory and bytes on disk, for so many questions that the target answers."""

    seconds: float
    memory_bytes: int
    disk_bytes: int
    questions: int
    seconds_a_question: float

    @property
    def line(self) -> str:
        """In words."""
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds / 60:.1f} min"
        sizes = f"{self.memory_bytes / 2**30:.1f} GiB of memory, {self.disk_bytes / 2**30:.2f} GiB on disk"
        asked = f"{self.questions} questions of {self.seconds_a_question:.2g} s each"
        return f"about {hours}, {sizes}; of that the target's answers: {asked}"


def rehearse(
    recipe: Recipe, preset: TrainingPreset, small: TrainingPreset, given: Given | None, seconds: float | None = None
) -> Estimate:
    """What the recipe takes with `preset`, from a run with `small`: answers by their number, memory of a step by its size, and
    the `seconds` of training that are fixed (None: those of the preset's stage; where it has steps, those that were measured).
    On CUDA the device's memory counts, else the process's. Whatever the recipe refuses is refused."""
    with tempfile.TemporaryDirectory(prefix="eventspec-dry-run-") as place:
        out, work = Path(place) / "out", Path(place) / "work"
        few = small.answered + small.held_out
        some = None if given is None else replace(given, work=work, limit=few)
        watch = Watch()
        recipe(out, watch, some)
        whole, peak = time.monotonic() - watch.began, most_in_use()
        sizes = [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in (out, work)]
    each = (watch.prepared - watch.loaded) / max(1, watch.reports - 1)  # the first one comes when one was answered
    count = preset.answered + preset.held_out if given is None else asked_of(given, preset)
    stage = preset.stage.seconds if seconds is None else seconds
    times = preset.stage.batch * preset.packed / (small.stage.batch * small.packed)
    memory = peak + max(0.0, times - 1) * max(0, peak - watch.held)
    disk = sizes[0] + sizes[1] / few * count
    return Estimate(whole + each * max(0, count - few) + stage, int(memory), int(disk), count, each)


def asked_of(given: Given, preset: TrainingPreset) -> int:
    """How many questions the preset takes of a file."""
    return len(given.asked(ASKED * (preset.answered + preset.held_out)))


def in_use() -> int:
    """Bytes that are in use now: of the device where there is one, else of the process."""
    if torch.cuda.is_available():
        return int(torch.cuda.memory_allocated())
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def most_in_use() -> int:
    """The most of them at once."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
