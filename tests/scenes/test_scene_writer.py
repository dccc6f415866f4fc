"""Written scenes: readable, reproducible, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eventspec.core import BadInput
from eventspec.recordings.recording import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import write_scenes


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_recordings_and_questions_are_those_of_the_clips(tmp_path: Path) -> None:
    done: list[int] = []
    write_scenes(tmp_path / "a", 2, "test", 3, done.append)
    assert done == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    clip = make_clip(split_seed("test", 3, 1))
    recording = Recording.open(tmp_path / "a" / "clip_000001")
    assert recording.events is not None and recording.video is not None
    np.testing.assert_array_equal(recording.events.t, clip.events.t)
    np.testing.assert_array_equal(recording.events.p, clip.events.p)
    np.testing.assert_array_equal(recording.video.frames, clip.frames)
    np.testing.assert_array_equal(recording.video.times_us, clip.frame_times_us)
    rows = [json.loads(line) for line in (tmp_path / "a" / "qa.jsonl").read_text().splitlines()]
    mine = [row for row in rows if row["recording"] == "clip_000001"]
    asked = questions(clip.facts, clip.seed)
    assert [(row["kind"], row["question"], row["answer"]) for row in mine] == [(q.kind, q.question, q.answer) for q in asked]
    assert mine[0]["facts"] == json.loads(json.dumps(clip.facts.as_json()))


def test_the_same_arguments_give_the_same_bytes_and_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()  # an empty folder may be there
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_scenes(tmp_path / name, 1, "train", seed)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert first == second
    assert first.keys() == other.keys()
    assert first["clip_000000/events.h5"] != other["clip_000000/events.h5"]


@pytest.mark.parametrize(("clips", "split", "words"), [(0, "test", "at least 1"), (1, "dev", "train, calibration, test")])
def test_wrong_arguments_are_refused(tmp_path: Path, clips: int, split: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        write_scenes(tmp_path / "a", clips, split, 0)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("precious")
    with pytest.raises(BadInput, match="a: exists and is not an empty folder"):
        write_scenes(tmp_path / "a", 1, "test", 0)
    assert content(tmp_path / "a") == {"mine.txt": b"precious"}


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "a", 2, "test", 0, stop)
    assert not list(tmp_path.iterdir())
