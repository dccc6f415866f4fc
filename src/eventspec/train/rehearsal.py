"""What a training will take, before it begins: the recipe itself asks a few questions and makes two steps of the preset's size,
in a folder that is thrown away. Time and disk are scaled to the preset; memory is what that took."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from eventspec.core import BadInput
from eventspec.recordings.qa import JUDGED
from eventspec.train.answers import TrainingPreset
from eventspec.train.material import ASKED
from eventspec.train.names import Given
from eventspec.train.recorded import EVENTS, FOLDER, FRAMES, MOST_BYTES
from eventspec.train.workspace import Answers

STEPS = 2
"""Of these the second one has the optimiser's state beside it."""
FEW = 8
"""Questions at least that are asked."""
Recipe = Callable[..., object]
"""Takes a preset (`size`), a folder (`out`), a `report`, and the questions that are `given`, if any are."""


@dataclass
class Watch:
    """A report that notes when the target had answered."""

    began: float = field(default_factory=time.monotonic)
    loaded: float = 0.0
    reports: int = 0
    prepared: float = 0.0

    def __call__(self, stage: str, progress: float, figures: dict[str, float]) -> None:
        if stage in ("answer", "questions") or stage.startswith("render"):
            self.prepared = time.monotonic() - self.began
            self.loaded = self.loaded or self.prepared
            self.reports += 1


@dataclass(frozen=True)
class Estimate:
    """Of a whole training: seconds, peak memory and bytes on disk, for so many questions that the target answers; of
    `answered` ones its workspace has the answers."""

    seconds: float
    memory_bytes: int
    disk_bytes: int
    questions: int
    answered: int
    seconds_a_question: float

    @property
    def line(self) -> str:
        """In words."""
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds / 60:.1f} min"
        sizes = f"{self.memory_bytes / 2**30:.1f} GiB of memory, {self.disk_bytes / 2**20:.0f} MiB on disk"
        asked = f"{self.questions} questions of {self.seconds_a_question:.2g} s each"
        asked += f", {self.answered} of which are answered already" if self.answered else ""
        return f"about {hours}, {sizes}; of that the target's answers: {asked}"


def rehearse(
    recipe: Recipe,
    preset: TrainingPreset,
    given: Given | None,
    seconds: float | None = None,
    known: Answers | None = None,
) -> Estimate:
    """What the recipe takes with a preset: answers by their number, but for those that are `known`; the `seconds` of training
    that are fixed (None: those of its stage); memory as two steps of its size take it, on the device where that is CUDA, else
    of the process. Whatever the recipe refuses is refused; BadInput where a step does not fit the device."""
    few = min(preset.answered, max(FEW, preset.stage.batch * JUDGED // (JUDGED - 1) + 2))
    step = replace(preset.stage, seconds=0, steps=min(STEPS, preset.stage.steps or STEPS))
    size = replace(preset, answered=few, held_out=min(preset.held_out, 2), stage=step)
    with tempfile.TemporaryDirectory(prefix="eventspec-dry-run-") as place:
        out, work = Path(place) / "out", Path(place) / "work"
        some = None if given is None else replace(given, work=work, limit=few)
        watch = Watch()
        try:
            recipe(size=size, out=out, report=watch, **({} if some is None else {"given": some}))
        except torch.OutOfMemoryError as error:
            raise BadInput(f"a step of preset {preset.name} does not fit: {str(error).split('. ')[0]}") from None
        whole, peak = time.monotonic() - watch.began, most_in_use()
        made, said, *pixels = (_sizes(folder) for folder in (out.rglob("*"), work.glob("*"), *_pixels(work)))
    each = (watch.prepared - watch.loaded) / max(1, watch.reports - 1)  # the first one comes when one was answered
    asked = [] if given is None else given.asked(ASKED * (preset.answered + preset.held_out))
    count = len(asked) or preset.answered + preset.held_out
    answered = 0 if known is None else known.count(asked)
    stage = preset.stage.seconds if seconds is None else seconds
    # Answers go by questions; of pixels each model has a file for what is asked about, however many questions there are.
    seen = sum(sum(own) / max(1, len(own)) for own in pixels) * len({question.seen for question in asked})
    disk = sum(made) + sum(said) / min(few, count) * count + min(seen, MOST_BYTES)
    return Estimate(whole + each * max(0, count - answered - few) + stage, peak, int(disk), count, answered, each)


def _pixels(work: Path) -> list[Iterator[Path]]:
    """The files of a workspace's pixels, by model."""
    return [(work / FOLDER).glob(f"{kind}-*") for kind in (FRAMES, EVENTS)]


def _sizes(paths: Iterable[Path]) -> list[int]:
    """Bytes of those that are files."""
    return [path.stat().st_size for path in paths if path.is_file()]


def most_in_use() -> int:
    """Bytes, the most at once: of the fullest device where there is one, else of the process."""
    if torch.cuda.is_available():
        return max(int(torch.cuda.max_memory_allocated(number)) for number in range(torch.cuda.device_count()))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
