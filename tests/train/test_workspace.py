"""What a target said, in a folder that trainings and processes share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings.qa import Question
from eventspec.train.processes import Processes
from eventspec.train.workspace import Answers, target_answers

LONGEST = 8


def quiet(stage: str, progress: float, figures: dict[str, float]) -> None:
    """Shows nothing."""


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one", fit=False)


@pytest.fixture
def asked(tmp_path: Path) -> list[Question]:
    """A question about each of three recordings."""
    for name in "abc":
        shutil.copytree(DATA / "clips/street_scene", tmp_path / name)
    return [Question(name, tmp_path / name, "What is ahead?", "") for name in "abc"]


class OneOfTwo(Processes):
    """One of two processes; what happens `meanwhile`, happens when it waits for the other."""

    count = 2

    def __init__(self, rank: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.rank, self.meanwhile = rank, meanwhile

    def wait(self) -> None:
        self.meanwhile()


def test_a_process_that_comes_late_asks_what_is_left_to_it(pair: Pair, asked: list[Question], tmp_path: Path) -> None:
    """Its share is what it would have been in time: the other one does not ask it."""

    def answers(rank: int, meanwhile: Callable[[], object] = lambda: None) -> int:
        known = Answers(tmp_path / "work", "nano", LONGEST, rank)
        return len(target_answers(pair, tmp_path, asked, known, quiet, OneOfTwo(rank, meanwhile)))

    late = list[int]()
    assert answers(0, lambda: late.append(answers(1))) == 3
    assert late == [3]
    rows = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "work").iterdir()}
    assert rows == {"answers.jsonl": 2, "answers-1.jsonl": 1}
