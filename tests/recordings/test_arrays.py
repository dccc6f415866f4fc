"""Recordings made of arrays, and the windows that slide over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eventspec as es
from eventspec.core import BadInput, Window
from eventspec.recordings.examples import EXAMPLES, place

X, Y, T, P = (np.array(values) for values in ([0, 3, 1], [2, 0, 1], [10, 20, 20], [1, 0, 1]))
FRAMES = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
SIZE = (4, 3)


def structured(*names: str) -> np.ndarray[Any, np.dtype[Any]]:
    kinds: list[tuple[str, str]] = list(zip(names, ("<u2", "<u2", "<i8", "?"), strict=True))
    return np.array(list(zip(X, Y, T, P, strict=True)), kinds)


@pytest.mark.parametrize(
    "events",
    [
        (X, Y, T, P),
        [X.tolist(), Y.tolist(), T.tolist(), P.tolist()],
        (X.astype(float), Y, T.astype(np.uint64), P.astype(bool)),
        (X, Y, T, P * 2 - 1),
        structured("x", "y", "t", "p"),
        structured("x", "y", "timestamp", "polarity")[["polarity", "timestamp", "y", "x"]],
        {"p": P, "ts": T, "y": Y, "x": X, "label": 3},
        es.EventStream.checked(X, Y, T, P, 4, 3),
    ],
    ids=["columns", "lists", "other dtypes", "signed", "structured", "other names and order", "mapping", "stream"],
)
def test_events_come_in_many_forms(events: Any) -> None:
    found = es.Recording.from_arrays(events=events, sensor=SIZE)
    assert found.events is not None and found.video is None
    for name, column in zip("xytp", (X, Y, T, P), strict=True):
        assert getattr(found.events, name).tolist() == column.tolist()
    assert (found.events.width, found.events.height, found.events.p.dtype) == (4, 3, np.uint8)


def test_frames_are_colour_or_grey_and_stand_alone_or_beside_events() -> None:
    both = es.Recording.from_arrays(events=(X, Y, T, P), frames=FRAMES, times_us=[5, 25], sensor=SIZE, name="mine")
    assert both.video is not None and both.video.frames is FRAMES and both.name == "mine" and both.span == Window(5, 26)
    grey = es.Recording.from_arrays(frames=FRAMES[..., 0], times_us=np.array([5, 25])).video
    assert grey is not None and grey.frames.shape == (2, 3, 4, 3) and (grey.frames[0][..., 2] == FRAMES[0][..., 0]).all()
    none = es.Recording.from_arrays(events=([], [], [], []), sensor=SIZE)
    assert none.events is not None and len(none.events) == 0
    still = es.Recording.from_arrays(frames=np.empty((0, 3, 4, 3), np.uint8), times_us=[])
    assert still.video is not None and len(still.video) == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "neither events nor frames"),
        ({"events": (X, Y, T, P)}, "give sensor=(width, height)"),
        ({"events": (X, Y, T, P), "sensor": (3, 3)}, "x[1] is 3: outside the sensor (width 3)"),
        ({"events": (X, Y, T / 1e6, P), "sensor": SIZE}, "times must be whole microseconds"),
        ({"events": (X, Y, T[::-1], P), "sensor": SIZE}, "t[2] is 10, before t[1]"),
        ({"events": (X, Y, T), "sensor": SIZE}, "the events are a tuple: give (x, y, t, p)"),
        ({"events": np.stack([X, Y, T, P], 1), "sensor": SIZE}, "the events are an array of shape (3, 4): give (x, y, t, p)"),
        ({"events": {"x": X, "y": Y, "t": T}, "sensor": SIZE}, "the events have x, y, t: one field for p is needed"),
        ({"events": {"x": X, "y": Y, "t": T, "ts": T, "p": P}, "sensor": SIZE}, "one field for t is needed"),
        ({"events": es.EventStream.empty(4, 3), "sensor": (5, 3)}, "the file says 4x3"),
        ({"frames": FRAMES}, "frames need times_us"),
        ({"frames": FRAMES, "times_us": [1]}, "2 frames but times_us"),
        ({"frames": FRAMES, "times_us": [2, 1]}, "sort the frames by time"),
        ({"frames": FRAMES / 255, "times_us": [1, 2]}, "they must be uint8 [frames, height, width, 3]"),
        ({"frames": [FRAMES[0], FRAMES[1][:2]], "times_us": [1, 2]}, "give frames of one size"),
        ({"times_us": [1], "events": (X, Y, T, P), "sensor": SIZE}, "times_us is for frames, and there are none"),
        ({"frames": FRAMES, "times_us": [1, 2], "sensor": SIZE}, "sensor is for events, and there are none"),
        ({"events": (X, Y, T, P), "sensor": SIZE, "frames": FRAMES, "times_us": [70, 80]}, "do not overlap"),
    ],
)
def test_arrays_that_are_no_recording_are_refused_in_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput) as refusal:
        es.Recording.from_arrays(**given)
    assert told in str(refusal.value) and "\n" not in str(refusal.value)


def test_windows_slide_over_events_and_frames() -> None:
    recording = es.Recording.from_arrays(events=(X, Y, T, P), frames=FRAMES, times_us=[10, 22], sensor=SIZE)
    spans = [(len(part.events or ()), len(part.video or ())) for part in es.sliding_windows(recording, 6)]
    assert spans == [(1, 1), (2, 0)]  # [10, 16), [16, 22)
    whole = [len(part.events or ()) for part in es.sliding_windows(recording, 8, 4, partial=True)]
    assert whole == [1, 2, 2, 0]  # from 10, 14, 18 and 22
    assert list(es.sliding_windows(recording, 14)) == []
    assert [len(part.events or ()) for part in es.sliding_windows(recording, 14, partial=True)] == [3]


@pytest.mark.parametrize(("length", "step"), [(0, None), (5, 0), (-1, 5), (5.0, None), (True, None)])
def test_windows_without_a_length_are_refused_at_once(length: Any, step: Any) -> None:
    recording = es.Recording.from_arrays(events=(X, Y, T, P), sensor=SIZE)
    with pytest.raises(BadInput, match="give whole microseconds from 1 on"):
        es.sliding_windows(recording, length, step)
    with pytest.raises(BadInput, match="neither events nor frames"):
        es.sliding_windows(es.Recording("r", None, None), 5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bundled_clips_have_names(name: str) -> None:
    recording = es.Recording.open(f"example:{name}")
    assert recording.events is not None and recording.video is not None and len(recording.events) > 1000
    grid = es.voxel_grid(recording.events, bins=3)
    assert grid.shape == (3, recording.events.height, recording.events.width)


def test_an_example_that_is_none_is_refused_with_the_list() -> None:
    for wrong in ("example:", "example:Street", "example:street/frames"):
        with pytest.raises(BadInput, match="choose one of example:street, example:davis"):
            place(wrong)
    assert place("examples").name == "examples"


def test_events_outside_the_sensor_are_dropped_where_that_is_asked() -> None:
    found = es.Recording.from_arrays(events=(X, Y, T, P), sensor=(3, 3), drop_outside=True)
    assert found.events is not None and found.events.x.tolist() == [x for x in X.tolist() if x < 3]
    assert found.notes == ("1 of 3 events are dropped: they lie outside the sensor of 3x3",)
    with pytest.raises(es.BadInput, match=r"all of its events \(3\) lie outside the sensor of 1x1"):
        es.Recording.from_arrays(events=(X + 1, Y, T, P), sensor=(1, 1), drop_outside=True)
