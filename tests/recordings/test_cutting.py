"""Recordings cut into windows, with the questions of a file about each; an image as a recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trees
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from eventspec.core import BadInput, Window
from eventspec.recordings import Recording, datasets, sliding_windows, write_native
from eventspec.recordings.cutting import cut, texts_of

ASK = ["What is ahead?", "What moves?"]


def test_every_question_is_asked_about_every_window_of_every_sequence(tmp_path: Path) -> None:
    root = trees.dsec(tmp_path / "DSEC")
    name, found = datasets.asked_of(root, ASK, cutting=(50_000, 25_000))
    assert name == "dsec"
    assert {row.recording.name for row in found.rows} == {"interlaken_00_c", "thun_01_a"}
    assert [row.question for row in found.rows[:4]] == [*ASK, *ASK]
    assert all(row.answer is None and row.kind is None for row in found.rows)
    for folder in (root / "train/interlaken_00_c", root / "test/thun_01_a"):
        recording, windows = Recording.open(folder), [row.window for row in found.rows if row.recording == folder][::2]
        assert windows
        for window in windows:
            assert window is not None
            seen = recording.slice(window)
            assert seen.events is not None
            assert len(seen.events) > 0
            assert len(seen.video or ()) > 0
    every = sum(len(list(sliding_windows(Recording.open(row), 50_000, 25_000))) for row in {r.recording for r in found.rows})
    assert found.left_out == every - len(found.rows) // 2 > 0, "frames end before the events"


def test_mvsec_and_recordings_by_themselves_are_cut_too(tmp_path: Path) -> None:
    root = trees.mvsec(tmp_path / "MVSEC")
    name, found = datasets.asked_of(root, ASK, cutting=(10_000, 10_000))
    assert name == "mvsec"
    assert len({row.recording for row in found.rows}) == 2
    name, found = datasets.asked_of(Path("example:street"), ASK[:1], cutting=(250_000, 250_000))
    assert name == "recording"
    begin = Recording.open("example:street").span.start_us
    assert [row.window for row in found.rows] == [Window(begin + n * 250_000, begin + (n + 1) * 250_000) for n in range(3)]
    datasets.write_questions(tmp_path / "qa.jsonl", found)
    line = (tmp_path / "qa.jsonl").read_text().splitlines()[0]
    assert line.startswith('{"recording": "example:street", "window": [')
    assert '"answer"' not in line


def test_a_sequence_of_a_data_set_that_lacks_frames_is_left_out_and_a_video_by_itself_is_not(tmp_path: Path) -> None:
    root = trees.dsec(tmp_path / "DSEC")
    for image in (root / "test/thun_01_a/images/left/rectified").iterdir():
        image.unlink()
    found = datasets.asked_of(root, ASK, cutting=(50_000, 50_000))[1]
    assert found.missing == ("thun_01_a: has no frames",)
    assert {row.recording.name for row in found.rows} == {"interlaken_00_c"}
    video = trees.video(tmp_path / "one.mp4")
    found = datasets.asked_of(video, ASK, cutting=(80_000, 80_000))[1]
    assert found.notes == ("one.mp4: has no events: windows are cut by what it has",)
    assert len(found.rows) == 2
    with pytest.raises(BadInput, match=r"it lasts 120001 us, less than one window of 5000000: nothing is asked"):
        datasets.asked_of(video, ASK, cutting=(5_000_000, 1))


def test_recordings_of_a_data_set_with_questions_of_its_own_can_be_asked_others(tmp_path: Path) -> None:
    root = trees.activitynet_qa(tmp_path / "qa")
    name, found = datasets.asked_of(root, ASK)
    assert name == "activitynet-qa"
    assert [(row.recording.name, row.window) for row in found.rows[::2]] == [
        ("v_abcdefghijk.mp4", None),
        ("v_v_underscor.mp4", None),
    ]
    assert len(found.missing) == 1


def test_too_many_questions_are_refused_before_a_window_is_looked_at() -> None:
    with pytest.raises(BadInput, match="more than 1000000 questions"):
        cut([Path("example:street")], ASK, 1, 1, whole=False)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 1_000), min_size=1, max_size=6), st.lists(st.integers(0, 1_000), min_size=1, max_size=6), st.data()
)
def test_windows_are_those_in_which_both_senses_have_something(
    tmp_path_factory: pytest.TempPathFactory, events: list[int], frames: list[int], data: st.DataObject
) -> None:
    t, times = np.sort(events), np.sort(frames)
    columns = (np.zeros(len(t), int), np.zeros(len(t), int), t, np.ones(len(t), int))
    folder = tmp_path_factory.mktemp("any") / "made"
    pictures = np.zeros((len(times), 2, 2, 3), np.uint8)
    try:
        write_native(folder, Recording.from_arrays(events=columns, sensor=(2, 2), frames=pictures, times_us=times))
    except BadInput:  # the two never meet
        return
    length, stride = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 400))
    found = cut([folder], ["?"], length, stride, whole=True)
    begin, end = min(t[0], times[0]), max(t[-1], times[-1]) + 1
    every = [(start, start + length) for start in range(begin, end, stride) if start + length <= end]
    full = [(a, b) for a, b in every if any(a <= x < b for x in t) and any(a <= x < b for x in times)]
    assert [(row.window.start_us, row.window.end_us) for row in found.rows if row.window is not None] == full
    assert found.left_out == len(every) - len(full)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"\n \n", "has no question"), (b"\xff\xfe?", "is no text in UTF-8")],
)
def test_a_file_of_no_questions_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "ask.txt").write_bytes(content)
    with pytest.raises(BadInput, match=says):
        texts_of(tmp_path / "ask.txt")


def test_questions_are_lines_once_each(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("﻿What is ahead?\r\n\n  What moves? \nWhat moves?\n", encoding="utf-8")
    assert texts_of(tmp_path / "ask.txt") == ASK


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tif", "bin"])
def test_an_image_is_a_recording_of_one_frame_whatever_it_is_called(tmp_path: Path, suffix: str) -> None:
    image = Image.new("RGB", (6, 4), (200, 10, 10))
    image.save(tmp_path / f"one.{suffix}", format="png" if suffix == "bin" else None, quality=95)
    found = Recording.open(tmp_path / f"one.{suffix}")
    assert found.source_format == "image"
    assert found.video is not None
    assert found.events is None
    assert found.video.frames.shape == (1, 4, 6, 3)
    assert abs(int(found.video.frames[0][0, 0][0]) - 200) < 12
    with pytest.raises(BadInput, match="is an image, and sensor_size is for events"):
        Recording.open(tmp_path / f"one.{suffix}", (6, 4))
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(BadInput, match="not a readable image"):
        Recording.open(tmp_path / "torn.jpg")
