"""What a target said, in a folder that trainings and processes share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eventspec.core import BadInput
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA, PairFile
from eventspec.recordings.qa import Question, read_questions
from eventspec.recordings.recording import whole_of
from eventspec.train.processes import Processes
from eventspec.train.workspace import Answers, Example, apart, loading_of, target_answers, who_answers

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


def test_one_recording_is_not_learned_from_and_judged_by_two_names(asked: list[Question], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = ("a", "b", "link", "c", "b/../a", "./b", "a/recording.toml")
    lines = [{"recording": name, "question": f"What is ahead, {turn}?"} for turn in range(2) for name in names]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_questions(tmp_path / "qa.jsonl")
    assert [question.recording.name for question in read[:3]] == ["a", "b", "c"]
    assert {question.recording for question in read} == {tmp_path / name for name in "abc"}
    examples = [Example(Question("", tmp_path / name, "?", ""), (1, 2, 3)) for name in names]
    parts = [
        {whole_of(example.question.recording).resolve() for example in part}
        for part in apart(examples, [one.question for one in examples])
    ]
    assert all(parts)
    assert not parts[0] & parts[1]


def test_short_answers_do_not_decide_which_recordings_are_held_out(tmp_path: Path) -> None:
    examples = [Example(Question("", tmp_path / f"{number}", "?", ""), (1,) * (1 + number % 3)) for number in range(20)]
    asked = [one.question for one in examples]
    every, some = apart(examples, asked), apart(examples, asked, 2)
    assert every[1] == [examples[number] for number in (0, 8, 16)]
    assert some == tuple([example for example in part if len(example.answer) >= 2] for part in every)
    assert apart(examples[:2], asked[:2], 2) == ([examples[1]], [examples[1]]), "what is left is of one recording"


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


def test_two_trainings_at_once_lose_no_answer_of_each_other(pair: Pair, asked: list[Question], tmp_path: Path) -> None:
    said = ([5, 6, 7], [[5], [6], [7]], [[0.0], [0.0], [0.0]])
    one = Answers(tmp_path / "work", "nano", LONGEST)
    one.add(asked[0], said)
    there = one.path.read_bytes()
    with one.path.open("ab") as cut_off:
        cut_off.write(there[:20])
    held = one.path.open("ab", buffering=0)  # a training that began before the next one, and goes on
    other = Answers(tmp_path / "work", "nano", LONGEST)
    held.write(there)
    other.add(asked[1], said)
    one.add(asked[2], said)
    assert one.path.read_bytes().startswith(there + there[:20] + b"\n" + there)
    assert len(Answers(tmp_path / "work", "nano", LONGEST).known) == 3
    held.close()


def test_short_answers_are_answers_and_empty_ones_teach_nothing(pair: Pair, asked: list[Question], tmp_path: Path) -> None:
    for length in (2, 1):
        for question in asked:
            Answers(tmp_path / "work", "nano", length).add(question, ([5, 2][-length:], [[5]] * length, [[0.0]] * length))
    brief = target_answers(pair, tmp_path, asked, Answers(tmp_path / "work", "nano", 2), quiet)
    assert [example.answer for example in brief] == [(5, 2)] * 3
    with pytest.raises(BadInput, match="the target's 3 answers are empty"):
        target_answers(pair, tmp_path, asked, Answers(tmp_path / "work", "nano", 1), quiet)


def test_what_decides_an_answer_decides_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    usual = LoadOptions()
    who = who_answers(tmp_path, usual)
    for other in ({"frames": 1}, {"dtype": torch.bfloat16}, {"ignore_generation_config": True}):
        assert who_answers(tmp_path, replace(usual, **other)) != who, other
    assert who_answers(tmp_path, replace(usual, drafter_device="cpu", feature_bytes=9)) == who
    for name, data in (("projector.safetensors", b"0"), ("generation_config.json", b"{}"), ("projector.safetensors", b"1")):
        (tmp_path / name).write_bytes(data)
        found = who_answers(tmp_path, usual)
        assert found != who, name
        who = found
    load = {"vocabulary": "same", "frames": 2, "dtype": "bfloat16"}
    assert loading_of(PairFile(tmp_path, "mine", load=load)) == LoadOptions(torch.bfloat16, frames=2)


def test_a_recording_that_was_replaced_is_asked_about_again(pair: Pair, asked: list[Question], tmp_path: Path) -> None:
    def known() -> int:
        """How many answers are there, before those that are lacking are asked for."""
        answers = Answers(tmp_path / "work", "nano", LONGEST)
        there = sum(answers.key_of(question) in answers.known for question in asked)
        assert len(target_answers(pair, tmp_path, asked, answers, quiet)) == 3
        return there

    assert [known(), known()] == [0, 3]
    events = next(path for path in (tmp_path / "b").iterdir() if path.is_file())
    os.utime(events, ns=(1, 1))
    assert [known(), known()] == [2, 3]
