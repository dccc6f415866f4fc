"""Lines of a qa.jsonl: what is asked about, a window of a recording too, and one line for every one that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trees
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.experiments.arms import Recordings
from eventspec.recordings import Recording, write_native
from eventspec.recordings.qa import Question, another, read_questions

STREET = "example:street"
SPAN = Recording.open(STREET).span


def written(folder: Path, *windows: Any, recording: str = STREET, **more: Any) -> Path:
    """A qa.jsonl with a question about each window; what is left out by `...` has none."""
    rows = [{"recording": recording, "question": f"{number}?", "answer": "-", **more} for number in range(len(windows))]
    rows = [row if window is ... else {**row, "window": window} for row, window in zip(rows, windows, strict=True)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "qa.jsonl"


@pytest.mark.parametrize(
    ("own", "others", "chosen"),
    [
        (("a", None), [("a", None), ("b/../a", (0, 9)), ("b", None)], 2),
        (("a", (0, 300)), [("a", (10, 310)), ("a", (300, 600)), ("b", None)], 2),
        (("a", (0, 300)), [("a", (10, 310)), ("a", (299, None)), ("a", (300, 600))], 2),
        (("a", (None, 300)), [("a", (None, 600)), ("a", (300, None))], 1),
        (("a", (400, None)), [("a", (None, 410)), ("a", (100, 400))], 1),
        (("a", (0, 300)), [("a", (10, 310)), ("a", None), ("a", (None, 10))], None),
        (("a", None), [("a", (0, 1))], None),
    ],
)
def test_a_control_is_of_another_recording_or_shares_no_moment(own: Any, others: Any, chosen: int | None) -> None:
    assert another(own, others) == chosen


def test_a_question_sees_its_window_of_events_and_frames(tmp_path: Path) -> None:
    begin, middle = SPAN.start_us, SPAN.start_us + 400_000
    asked = read_questions(written(tmp_path, ..., [begin, middle], [middle, None], [None, middle], None, [None, None]))
    whole = Recording.open(STREET)
    assert [question.window for question in asked] == [None, (begin, middle), (middle, None), (None, middle), None, None]
    for question, window in zip(
        asked[1:4], (Window(begin, middle), Window(middle, SPAN.end_us), Window(begin, middle)), strict=True
    ):
        seen, cut = question.open(), whole.slice(window)
        assert seen.events is not None
        assert cut.events is not None
        assert seen.video is not None
        assert cut.video is not None
        assert seen.events.t.tolist() == cut.events.t.tolist()
        assert seen.video.times_us.tolist() == cut.video.times_us.tolist()
    assert asked[0].open().span == SPAN


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ([10**12, 10**12 + 5], "is outside the recording: the recording spans"),
        ([None, -5], "up to -5 us is outside the recording"),
        ([5, 5], r"the window \[5, 5\) us is empty"),
        ([9, 5], "ends before it begins"),
        ([0.5, 9], r"window is \[0.5, 9\]: wanted \[start, end\], whole microseconds"),
        ([True, 9], r"window is \[True, 9\]"),
        (["0", "9"], "window is"),
        ([0, 2**63], "window is"),
        ([0], "window is"),
        ([0, 1, 2], "window is"),
        ("0:9", "window is 0:9"),
        ({"start": 0}, "window is"),
        (0, "window is 0"),
    ],
)
def test_a_window_that_cannot_be_names_file_and_line(tmp_path: Path, window: Any, says: str) -> None:
    with pytest.raises(BadInput, match=rf"qa\.jsonl, line 2: .*{says}") as raised:
        read_questions(written(tmp_path, [0, None], window))
    assert "\n" not in str(raised.value)


def test_a_window_in_which_nothing_was_recorded_is_refused(tmp_path: Path) -> None:
    frames, times = np.zeros((2, 4, 6, 3), np.uint8), [0, 1_000_000]
    events = ([1, 2], [1, 2], [0, 900_000], [0, 1])
    write_native(tmp_path / "gap", Recording.from_arrays(events=events, sensor=(6, 4), frames=frames, times_us=times))
    assert len(read_questions(written(tmp_path, [0, 10], [900_000, 999_999], recording="gap"))) == 2
    with pytest.raises(BadInput, match=r"line 1: .*nothing was recorded in the window \[10, 900000\) us"):
        read_questions(written(tmp_path, [10, 900_000], recording="gap"))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.integers(-(2**65), 2**65) | st.integers(-1000, 1_200_000), min_size=2, max_size=2))
def test_any_two_ends_give_a_part_of_the_recording_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, ends: list[Any]
) -> None:
    try:
        (question,) = read_questions(written(tmp_path_factory.mktemp("any"), ends))
    except BadInput as error:
        assert "line 1: " in str(error)
        assert "\n" not in str(error)
        return
    seen, (start, end) = question.open().span, (question.window or (None, None))
    assert max(SPAN.start_us, SPAN.start_us if start is None else start) <= seen.start_us
    assert seen.end_us <= (SPAN.end_us if end is None else end)


def test_questions_about_one_window_share_it_and_windows_are_shuffled_apart() -> None:
    begin = SPAN.start_us
    ends = [(begin, begin + 300_000), (begin, begin + 300_000), (begin + 100_000, begin + 350_000), (begin + 300_000, None)]
    asked = [Question(f"{number}", Path(STREET), "?", "-", window=window) for number, window in enumerate(ends)]
    opened = Recordings(asked)
    assert opened.real(asked[0]) is opened.real(asked[1])
    assert [opened.frames(question) for question in asked] == [len(opened.real(question).video or ()) for question in asked]
    assert another(asked[0].seen, [one.seen for one in opened.asked[1:]]) == 1, "the second shares a part of the first"
    other = opened.get(asked[0], "shuffled").events
    real = opened.real(asked[3]).events
    assert other is not None
    assert real is not None
    assert other.x.tolist() == real.x.tolist()
    with pytest.raises(BadInput, match="two windows of one that share no moment"):
        Recordings(asked[:3]).get(asked[0], "shuffled")


def test_a_question_may_have_no_answer(tmp_path: Path) -> None:
    (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": STREET, "question": "What is ahead?"}) + "\n")
    assert read_questions(tmp_path / "qa.jsonl")[0].answer == ""
    for answer in (None, "", 5):
        (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": STREET, "question": "?", "answer": answer}) + "\n")
        with pytest.raises(BadInput, match="line 1: wanted"):
            read_questions(tmp_path / "qa.jsonl")


def test_a_window_of_a_long_file_is_found_without_reading_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 10)
    folder = trees.dsec_sequence(tmp_path / "thun_00_a")
    stream = Recording.open(folder).events
    assert type(stream).__name__ == "StoredStream"
    assert stream is not None
    span = stream.span
    assert span is not None
    assert stream.has(Window(span.start_us, span.start_us + 1))
    assert not stream.has(Window(span.start_us - 50, span.start_us))
    assert stream.shifted(7).has(Window(span.start_us + 7, span.start_us + 8))
    asked = read_questions(written(tmp_path, [trees.START_US, trees.START_US + 100_000], recording="thun_00_a"))
    seen = asked[0].open()
    assert len(seen.video or ()) == 2
    assert seen.events is not None
    assert seen.span.start_us == trees.START_US


def test_a_recording_is_the_same_by_whatever_name(tmp_path: Path) -> None:
    """So that what a training keeps back, or learned from, is known again where another file asks about it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/recording.toml").write_text("")
    (tmp_path / "link").symlink_to("a")
    names = ("a", "link", "a/../a", "a/recording.toml")
    assert {Question("", tmp_path / name, "?", "").resolved for name in names} == {(tmp_path / "a").resolve()}
