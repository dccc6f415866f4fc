"""The event stream: what is refused at the border, and what a slice is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events import EventStream


def checked(x: Any = (0, 1), y: Any = (0, 1), t: Any = (5, 6), p: Any = (0, 1), **options: Any) -> EventStream:
    return EventStream.checked(x, y, t, p, 4, 3, source="a.h5", **options)


def test_columns_have_the_documented_types() -> None:
    stream = checked()
    assert [column.dtype for column in (stream.x, stream.y, stream.t, stream.p)] == [np.uint16, np.uint16, np.int64, np.uint8]
    assert len(stream) == 2 and stream.span == Window(5, 7) and stream.ordered


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": (0, 4)}, "a.h5: x[1] is 4: outside the sensor (width 4)"),
        ({"y": (3, 0)}, "a.h5: y[0] is 3: outside the sensor (height 3)"),
        ({"x": (0, -1)}, "a.h5: x[1] is -1: outside the sensor"),
        ({"x": (0, np.nan)}, "a.h5: x[1] is nan: it must be a whole number"),
        ({"y": (0.5, 1)}, "a.h5: y[0] is 0.5: it must be a whole number"),
        ({"t": (5.0, np.inf)}, "a.h5: t[1] is inf: times must be whole microseconds"),
        ({"t": (0.1, 0.2)}, "a.h5: t[0] is 0.1: times must be whole microseconds"),
        ({"t": (-1, 0)}, "a.h5: t[0] is -1: times count microseconds from 0"),
        ({"t": np.array([1, 2**63], np.uint64)}, "a.h5: t[1] is 9223372036854775808: larger than int64"),
        ({"t": (6, 5)}, "a.h5: t[1] is 5, before t[0] = 6"),
        ({"p": (0, 2)}, "a.h5: p[1] is 2: polarity must be 0 or 1"),
        ({"p": (-1, 0)}, "a.h5: p[1] is 0: polarity must be -1 or 1"),
        ({"p": (1,)}, "a.h5: the columns differ in length (x 2, y 2, t 2, p 1)"),
        ({"x": [[0, 1]]}, "a.h5: x has shape (1, 2)"),
        ({"x": ("a", "b")}, "a.h5: x holds <U1, not numbers"),
        ({"x": ([1], [1, 2])}, "a.h5: x is not a list of numbers"),
    ],
)
def test_a_refusal_is_one_line_with_file_field_index_and_remedy(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        checked(**columns)
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value) and len(str(refused.value)) > len("a.h5: ") + 20


@pytest.mark.parametrize("size", [(0, 3), (4, -1), (4, 65537), (4.0, 3), (True, 3), ("4", 3)])
def test_a_sensor_size_must_be_whole_pixels(size: Any) -> None:
    with pytest.raises(BadInput, match="sensor size in whole pixels"):
        EventStream.checked([], [], [], [], *size)


@pytest.mark.parametrize(
    "polarity",
    [
        np.array([False, True]),
        np.array([0, 1], np.uint8),
        np.array([-1, 1], np.int8),
        np.array([-1.0, 1.0]),
        np.array([0, 1], np.int64),
    ],
    ids=["bool", "uint8", "signed", "float", "int64"],
)
def test_every_way_to_write_polarity_becomes_0_and_1(polarity: Any) -> None:
    stream = checked(p=polarity)
    assert stream.p.dtype == np.uint8 and stream.p.tolist() == [0, 1]


def test_time_that_goes_back_is_clamped_or_kept_on_request() -> None:
    times = [5, 9, 7, 8, 10]
    columns = {"x": [0] * 5, "y": [0] * 5, "t": times, "p": [0] * 5}
    clamped = checked(**columns, monotonic="clamp")
    assert clamped.t.tolist() == [5, 9, 9, 9, 10] and clamped.ordered
    kept = checked(**columns, monotonic="keep")
    assert kept.t.tolist() == times and not kept.ordered
    assert kept.slice(Window(7, 9)).t.tolist() == [7, 8]
    assert kept.span == Window(5, 11)
    with pytest.raises(BadInput, match="monotonic is 'sort'"):
        checked(**columns, monotonic="sort")


def test_a_stream_without_events_is_a_stream() -> None:
    for stream in (checked(x=[], y=[], t=[], p=[]), EventStream.empty(4, 3)):
        assert len(stream) == 0 and stream.span is None and len(stream.slice(Window(0, 9))) == 0
        assert stream.p.dtype == np.uint8 and stream.shifted(5).width == 4


def test_right_columns_are_not_copied_and_a_slice_is_a_view() -> None:
    times = np.arange(100, dtype=np.int64)
    stream = checked(x=np.zeros(100, np.uint16), y=np.zeros(100, np.uint16), t=times, p=np.zeros(100, np.bool_))
    assert np.shares_memory(stream.t, times) and np.shares_memory(stream.slice(Window(10, 20)).t, times)


@settings(deadline=None)
@given(
    times=st.lists(st.integers(0, 50), max_size=30).map(sorted),
    start=st.integers(0, 55),
    length=st.integers(1, 55),
    ordered=st.booleans(),
)
def test_a_slice_holds_exactly_the_half_open_window(times: list[int], start: int, length: int, ordered: bool) -> None:
    places = np.arange(len(times))
    stream = EventStream.checked(places, places, times, places % 2, 64, 64)
    stream = EventStream(stream.x, stream.y, stream.t, stream.p, 64, 64, ordered)
    cut = stream.slice(Window(start, start + length))
    wanted = [place for place, time in enumerate(times) if start <= time < start + length]
    assert cut.x.tolist() == wanted and cut.p.tolist() == [place % 2 for place in wanted]
    assert (cut.width, cut.height) == (64, 64)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**62), st.booleans()), max_size=20))
def test_what_passes_the_border_is_kept_unchanged(events: list[tuple[int, int, int, bool]]) -> None:
    events.sort(key=lambda event: event[2])
    x, y, t, p = ([event[k] for event in events] for k in range(4))
    stream = checked(x, y, t, p)
    rows = zip(stream.x.tolist(), stream.y.tolist(), stream.t.tolist(), map(bool, stream.p.tolist()), strict=True)
    assert list(rows) == events


@pytest.mark.parametrize("dtype", ["<i8", "<u4", "<u8", "<i2", "<f8"])
def test_a_time_that_goes_back_is_found_wherever_it_stands(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are walked in pieces: none of their borders may hide a fall."""
    monkeypatch.setattr("eventspec.events.stream.BLOCK", 4)
    for place in range(1, 13):
        times = np.arange(20, 33).astype(dtype)
        times[place] = 3
        with pytest.raises(BadInput, match=rf"t\[{place}\] is 3, before t\[{place - 1}\] = {19 + place}"):
            EventStream.checked([1] * 13, [1] * 13, times, [1] * 13, 4, 3)
        times[place] = 20 + place
        assert EventStream.checked([1] * 13, [1] * 13, times, [1] * 13, 4, 3).t.tolist() == list(range(20, 33))
