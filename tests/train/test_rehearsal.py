"""What a dry run says of a whole training, from a recipe that writes files of known sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eventspec.pairs.pair_file import DATA
from eventspec.train.answers import TrainingPreset
from eventspec.train.loop import Report, Stage
from eventspec.train.names import Given
from eventspec.train.recorded import FOLDER
from eventspec.train.rehearsal import rehearse

ANSWER, FRAMES, EVENTS, MADE = 100, 7000, 900, 50_000
PRESET = TrainingPreset(100, 4, Stage("x", 0, 1e-3, 2, steps=4), 2)


@pytest.mark.parametrize(("recordings", "questions"), [(2, 60), (4, 22), (12, 1)])
def test_pixels_take_room_by_recordings_and_answers_by_questions(recordings: int, questions: int, tmp_path: Path) -> None:
    names = [f"clip{number}" for number in range(recordings)]
    for name in names:
        shutil.copytree(DATA / "clips/street_scene", tmp_path / name)
    rows = [{"recording": name, "question": f"What, {turn}?"} for name in names for turn in range(questions)]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def recipe(size: TrainingPreset, out: Path, report: Report, given: Given) -> None:
        asked = given.asked(0)
        (given.work / FOLDER).mkdir(parents=True)
        out.mkdir()
        (out / "pair.bin").write_bytes(bytes(MADE))
        (given.work / "answers.jsonl").write_bytes(bytes(ANSWER * len(asked)))
        for number in range(len({question.seen for question in asked})):
            (given.work / FOLDER / f"frames-{number}.npy").write_bytes(bytes(FRAMES))
        (given.work / FOLDER / "events-0.npy").write_bytes(bytes(EVENTS))  # two steps need not see all

    found = rehearse(recipe, PRESET, Given(tmp_path / "qa.jsonl", tmp_path / "work"))
    assert found.questions == recordings * questions
    wanted = MADE + ANSWER * recordings * questions + (FRAMES + EVENTS) * recordings
    assert found.disk_bytes == pytest.approx(wanted, rel=0.01)
