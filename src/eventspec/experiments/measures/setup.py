"""What every measurement is given, and what several of them need: held-out scenes, comparisons, one thread."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from eventspec.experiments.compare import Comparison, compare
from eventspec.experiments.figures import Row
from eventspec.experiments.rows import RowFile, beside
from eventspec.recordings import Recording
from eventspec.recordings.qa import Question, read_questions
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import QA, questions
from eventspec.scenes.writer import as_recording, write_scenes

QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")
Found = dict[str, Any]
Finding = tuple[tuple[str, ...], Found]
"""Keys of a place in a results file, and what is found there; no key: the whole file."""
Size = TypeVar("Size")


@dataclass(frozen=True)
class Setup:
    """What a measurement is given. `quick`: the smallest sizes, which show that it runs. `folders`: of trainings or
    checkpoints, for those that read some. `work`: where scenes and rows are kept, to go on with where a run
    was stopped; rows of a finished one go, unless `keep`. `known`: what the results file holds."""

    pair: str = "nano"
    quick: bool = False
    folders: tuple[Path, ...] = ()
    work: Path | None = None
    keep: bool = False
    known: Found = field(default_factory=dict)
    progress: Callable[[float], None] = lambda share: None

    def size(self, whole: Size, quick: Size) -> Size:
        return quick if self.quick else whole

    def known_at(self, place: Sequence[str]) -> Found:
        """What the results file holds at a place, nothing where there is none."""
        found: Any = self.known
        for key in place:
            found = found.get(key, {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}


@contextmanager
def street(
    setup: Setup, name: str, seed: int, scenes: int, limit: int, words: int = 0
) -> Iterator[tuple[list[Question], Path]]:
    """At most `limit` questions about rendered scenes that were held out, whose right answers have at least so many words; and
    the file for an experiment's rows beside their recordings."""
    with nullcontext(str(setup.work)) if setup.work else tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"street-{seed}-{scenes}")
        if not (place / "qa.jsonl").exists():
            write_scenes(place, scenes, "test", seed)
        questions = [q for q in read_questions(place / "qa.jsonl", None) if len(q.answer.split()) >= words]
        yield questions[:limit], Path(folder, f"{name}.jsonl")


def compared(asked: Comparison, rows: Path, setup: Setup) -> tuple[Found, dict[str, list[Row]]]:
    """The summary of a comparison, which goes on with the rows that are there, and all rows by arm."""
    part = compare(asked, rows, lambda done, total: setup.progress(done / total), resume=rows.exists())
    found: dict[str, list[Row]] = {}
    for (arm, _), row in RowFile(rows, resume=True).rows.items():
        found.setdefault(arm, []).append(row)
    for path in () if setup.keep else (rows, beside(rows)):
        path.unlink(missing_ok=True)
    return part, found


def scene(seed: int, index: int, split: str = "test") -> tuple[Recording, list[QA]]:
    """A scene of a split, rendered on the spot, and questions about it."""
    clip = make_clip(split_seed(split, seed, index))
    return as_recording(clip, f"scene {index}"), questions(clip.facts, index)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on a single thread, for as long as the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
