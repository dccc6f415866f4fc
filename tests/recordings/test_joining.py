"""Event files and the sequences that they were cut from: windows, frames and events coincide to the microsecond; wrong joins
are refused with counts."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import encoders
import numpy as np
import pytest
import trees
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events.formats import read_events
from eventspec.recordings import Recording, datasets, joining
from eventspec.recordings.qa import read_questions

BEGIN, FRAME = trees.START_US, trees.FRAME_US


def match(file: Path, folder: Path) -> joining.Match:
    return joining.matches([file], folder)[file]


def test_windows_frames_and_events_coincide_to_the_microsecond(tmp_path: Path) -> None:
    """One of the three files has a clock of its own, as one of the two that were published."""
    trees.dsec(tmp_path / "DSEC")
    root = trees.cut_of_dsec(tmp_path / "cut")
    found = datasets.questions_of(root, dsec_folder=tmp_path / "DSEC")[1]
    datasets.write_questions(tmp_path / "qa.jsonl", found)
    asked = [question for question in read_questions(tmp_path / "qa.jsonl") if question.recording.name == "interlaken_00_c"]
    assert [question.window for question in asked] == [(BEGIN + n * FRAME, BEGIN + (n + 1) * FRAME) for n in range(3)]
    for number, question in enumerate(asked):
        seen, own = question.open(), read_events(root / f"interlaken_00_c/{number:06d}.npy")
        assert seen.events is not None
        assert seen.video is not None
        shift = BEGIN + FRAME if number == 1 else 0
        assert seen.events.t.tolist() == (own.t + shift).tolist()
        for name in ("x", "y", "p"):
            assert getattr(seen.events, name).tolist() == getattr(own, name).tolist()
        assert seen.video.times_us.tolist() == [BEGIN + number * FRAME]
        assert seen.video.frames[0][0, 0].tolist() == [number * 20, 40, 90], "the frame that was taken then"


def test_files_that_belong_to_no_window_are_counted_and_named(tmp_path: Path) -> None:
    trees.dsec(tmp_path / "DSEC")
    root = trees.cut_of_dsec(tmp_path / "cut")
    found = datasets.questions_of(root, dsec_folder=tmp_path / "DSEC")[1]
    assert len(found.rows) == 4
    assert found.missing == (
        "thun_01_a/000001.npy: no window of its sequence holds these events",
        "zurich_city_04_a/000000.npy: there is no sequence of this name",
    )
    assert found.notes == (
        "4 of 6 event files are joined with their sequences; 1: no window of its sequence holds these events; "
        "1: there is no sequence of this name",
    )
    report = datasets.inspect_joined(datasets.layout_of(root), root, None, tmp_path / "DSEC")
    assert {part.name: part.facts for part in report.parts} == {
        "interlaken_00_c": {"event_files": 3, "joined": 3},
        "thun_01_a": {"event_files": 2, "joined": 1, "not_found": 1},
        "zurich_city_04_a": {"event_files": 1, "joined": 0, "no_sequence": 1},
    }
    assert report.missing == found.missing


def test_a_wrong_or_doubtful_join_is_refused(tmp_path: Path) -> None:
    sequence = trees.dsec_sequence(tmp_path / "DSEC/train/thun_00_a")
    file = trees.event_file(tmp_path / "thun_00_a/000001.npy", BEGIN + FRAME, BEGIN + 2 * FRAME)
    assert match(file, tmp_path / "DSEC").window == Window(BEGIN + FRAME, BEGIN + 2 * FRAME)
    events = {name: column.copy() for name, column in trees.EVENTS.items()}
    inside = np.flatnonzero((events["t"] >= BEGIN + FRAME) & (events["t"] < BEGIN + 2 * FRAME))
    for name, value in (("p", 1 - events["p"][inside[40]]), ("x", 639 - events["x"][inside[40]]), ("t", None)):
        other = {key: column[inside].copy() for key, column in events.items()}
        if value is None:
            other = {key: np.delete(column, 40) for key, column in other.items()}
        else:
            other[name][40] = value
        file.write_bytes(encoders.eventgpt_npy(**other))
        assert match(file, tmp_path / "DSEC").why == "not_found", f"one event of {len(inside)} has another {name}"
    file.write_bytes(encoders.eventgpt_npy(**{key: column[inside[:1]] for key, column in events.items() if key != "t"}, t=[0]))
    repeated = {key: np.tile(column[inside[:1]], 3) for key, column in events.items() if key != "t"}
    apart = np.array([0, 30_000, 60_000]) + BEGIN
    (sequence / "events/left/events.h5").write_bytes(encoders.dsec(**repeated, t=apart, offset_us=BEGIN))
    assert match(file, tmp_path / "DSEC").why == "ambiguous", "three windows have this one event"
    file.write_bytes(b"\x93NUMPY nothing")
    assert match(file, tmp_path / "DSEC").why == "unreadable"


def test_a_sequence_must_be_whole_and_there_once(tmp_path: Path) -> None:
    file = trees.event_file(tmp_path / "thun_00_a/000000.npy", BEGIN, BEGIN + FRAME)
    with pytest.raises(BadInput, match="has no DSEC sequence"):
        match(file, tmp_path)
    folder = trees.dsec_sequence(tmp_path / "DSEC/a/thun_00_a")
    assert match(file, folder).sequence == folder, "the folder of one sequence"
    (tmp_path / "DSEC/b/thun_00_a/events/left").mkdir(parents=True)
    (tmp_path / "DSEC/b/thun_00_a/events/left/events.h5").write_bytes(encoders.dsec(**trees.EVENTS, offset_us=BEGIN))
    assert match(file, tmp_path / "DSEC").sequence == folder, "of the other one there are events alone"
    other = trees.dsec_sequence(tmp_path / "DSEC/c/thun_00_a")
    assert match(file, tmp_path / "DSEC").why == "several_sequences"
    (folder / "images/timestamps.txt").unlink()
    assert match(file, tmp_path / "DSEC").sequence == other
    (other / "images/timestamps.txt").write_text("nothing\n")
    assert match(file, tmp_path / "DSEC").why == "unreadable"
    (other / "images/timestamps.txt").unlink()
    assert match(file, tmp_path / "DSEC").why == "incomplete"


def test_a_window_without_a_frame_is_refused(tmp_path: Path) -> None:
    trees.dsec_sequence(tmp_path / "DSEC/thun_00_a")
    begin = BEGIN + 4 * FRAME + 1_000  # after the last frame
    assert match(trees.event_file(tmp_path / "thun_00_a/0.npy", begin, begin + FRAME), tmp_path / "DSEC").why == "no_frame"


def test_windows_with_more_than_their_events_and_without_conversations_are_read(tmp_path: Path) -> None:
    """As the sets of one-second clips have them: cut at whole milliseconds, with facts beside the columns, and nothing said."""
    trees.dsec_sequence(tmp_path / "DSEC/thun_00_a")
    begin, end = BEGIN + 17_000, BEGIN + 171_000
    kept = (trees.EVENTS["t"] >= begin) & (trees.EVENTS["t"] < end)
    facts = {"time_start": begin + 300, "time_end": end - 500, "image_indices_in_clip": [1, 2, 3], "duration_ms": 154.0}
    columns = {"p": np.uint8, "t": np.int64, "x": np.uint16, "y": np.uint16}
    clip = {**{name: trees.EVENTS[name][kept].astype(dtype) for name, dtype in columns.items()}, **facts}
    file = tmp_path / "cut/event_npy/thun_00_a/000000.npy"
    file.parent.mkdir(parents=True)
    head = encoders.eventgpt_npy([0], [0], [0], [0])[:128]
    file.write_bytes(head + pickle.dumps(np.array(clip, object), protocol=3))
    said = [{"from": "human", "value": ""}, {"from": "gpt", "value": ""}]
    record = {"id": "a", "split": "1s", "event_data": "thun_00_a/000000.npy", "conversations": said}
    (tmp_path / "cut/Subset.json").write_text(json.dumps([record]))
    with pytest.raises(BadInput, match="value is ''"):
        datasets.questions_of(tmp_path / "cut", dsec_folder=tmp_path / "DSEC")
    name, found = datasets.asked_of(tmp_path / "cut", ["What is there?", "And what moves?"], None, None, tmp_path / "DSEC")
    assert name == "eventgpt"
    assert [(row.question, row.answer) for row in found.rows] == [("What is there?", None), ("And what moves?", None)]
    window = found.rows[0].window
    assert window is not None
    seen = Recording.open(found.rows[0].recording).slice(window)
    assert seen.events is not None
    assert seen.video is not None
    assert seen.events.t.tolist() == clip["t"].tolist()
    assert seen.video.times_us.tolist() == [BEGIN + FRAME, BEGIN + 2 * FRAME, BEGIN + 3 * FRAME]


@settings(deadline=None, max_examples=40)
@given(start=st.integers(0, 190_000), length=st.integers(3_000, 200_000), shift=st.sampled_from([0, 0, 5, -BEGIN, 10**9]))
def test_any_cut_is_found_with_all_its_events_and_frames(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, shift: int
) -> None:
    """Also in a file that is read in parts, where a beginning lies in two of them."""
    root = tmp_path_factory.mktemp("any")
    folder = trees.dsec_sequence(root / "thun_00_a")
    begin, end = BEGIN + start, BEGIN + start + length
    file = trees.event_file(root / "cut/thun_00_a/0.npy", begin, end, shift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventspec.events.stored.HELD_EVENTS", 10)
        patch.setattr("eventspec.events.stream.BLOCK", 7)
        patch.setattr("eventspec.events.formats.hdf5.BLOCK", 7)
        found = match(file, folder)
    sequence = Recording.open(folder)
    assert sequence.events is not None
    assert sequence.video is not None
    own = sequence.events.slice(Window(begin, end))
    if found.why is not None:
        assert found.why == ("no_frame" if len(own) else "unreadable")
        assert own.span is None or not len(sequence.video.slice(own.span))
        return
    assert found.window is not None
    assert sequence.events.slice(found.window).t.tolist() == own.t.tolist()
    frames = set(sequence.video.slice(found.window).times_us.tolist())
    assert own.span is not None
    certain = sequence.video.slice(own.span).times_us.tolist()
    assert frames >= set(certain)
    assert len(frames) <= len(certain) + 1, "one more between two events at most, the latest before the first"
