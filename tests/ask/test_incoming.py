"""What a camera pair has sent of late: bounded, copied, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventspec.ask.incoming import Incoming
from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream


def packet(*times: int, width: int = 8, height: int = 6) -> EventStream:
    count = len(times)
    side = np.zeros(count, np.uint16)
    return EventStream(side, side.copy(), np.array(times, np.int64), np.ones(count, np.uint8), width, height)


def frame(value: int = 0, height: int = 4, width: int = 4) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((height, width, 3), value, np.uint8)


@given(
    gaps=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    start=st.integers(0, 3000),
    length=st.integers(1, 900),
)
def test_a_window_holds_what_was_pushed_of_it(gaps: list[int], start: int, length: int) -> None:
    incoming, times = Incoming(100_000, 1 << 20), np.cumsum(gaps).tolist()
    for time in times:
        incoming.push_events(packet(time, time))
        incoming.push_frame(frame(time % 251), time)
    found = incoming.recording(Window(start, start + length))
    wanted = [time for time in times if start <= time < start + length]
    assert (found.video is None) == (not wanted)
    if found.video is not None:
        assert found.video.times_us.tolist() == wanted
        assert [int(f[0, 0, 0]) for f in found.video.frames] == [time % 251 for time in wanted]
    assert found.events is not None
    assert found.events.t.tolist() == [time for time in wanted for _ in range(2)]
    assert incoming.count(Window(start, start + length)) == 2 * len(wanted)


def test_what_is_too_old_is_forgotten_and_memory_stays_bounded() -> None:
    incoming = Incoming(1_000, 1 << 20)
    for time in range(0, 100_000, 100):
        incoming.push_events(packet(time))
        incoming.push_frame(frame(), time)
    assert (incoming.counts.frames, incoming.counts.packets) == (1000, 1000)
    whole = incoming.recording(Window(0, 100_000))
    assert whole.video is not None
    assert whole.events is not None
    assert len(whole.video) <= 12
    assert len(whole.events) <= 12


def test_events_beyond_the_bound_are_dropped_by_the_packet_and_counted() -> None:
    incoming = Incoming(1 << 40, 10 * 13 * 20)
    for number in range(100):
        incoming.push_events(packet(*([number] * 20)))
    assert incoming.counts.dropped_packets == 90
    assert incoming.count(Window(0, 100)) == 200


def test_frames_beyond_the_bound_leave_the_later_ones() -> None:
    incoming = Incoming(1 << 40, 1 << 20, 5 * 48)
    for time in range(20):
        incoming.push_frame(frame(time), time)
    found = incoming.recording(Window(0, 20)).video
    assert found is not None
    assert found.times_us.tolist() == [15, 16, 17, 18, 19]
    assert incoming.counts.lost == 15
    assert found.slice(Window(17, 19)).times_us.tolist() == [17, 18]
    assert np.asarray(found.frames[np.array([0, 4])])[:, 0, 0, 0].tolist() == [15, 19]
    assert int(found.frames[1][0, 0, 0]) == 16
    assert np.asarray(found.frames).shape == (5, 4, 4, 3)


def test_a_camera_may_use_its_buffers_again() -> None:
    incoming, events, picture = Incoming(1000, 1 << 20), packet(1, 2), frame(7)
    incoming.push_events(events)
    kept = incoming.push_frame(picture, 3)
    events.t[:] = 0
    picture[:] = 0
    found = incoming.recording(Window(0, 10))
    assert found.events is not None
    assert found.events.t.tolist() == [1, 2]
    assert kept.min() == 7
    with pytest.raises(ValueError, match="read-only"):
        kept[:] = 0


@pytest.mark.parametrize(
    ("pushes", "message"),
    [
        ((("frame", frame(), 5), ("frame", frame(), 5)), r"a frame at 5 us after one at 5 us"),
        ((("frame", frame(), 5), ("frame", frame(), 4)), r"push frames in order of time"),
        ((("frame", frame(), 5), ("frame", frame(0, 5, 4), 6)), r"a frame of 4x5 after those of 4x4"),
        ((("frame", frame().astype(np.float32), 5),), r"float32 \[4, 4, 3\]: push uint8"),
        ((("frame", frame()[..., 0], 5),), r"uint8 \[4, 4\]: push uint8"),
        ((("frame", [[0]], 5),), r"a frame is list"),
        ((("frame", frame(), -1),), r"a frame's time is -1"),
        ((("frame", frame(), 1.5),), r"a frame's time is 1.5"),
        ((("frame", frame(), 2**70),), r"a frame's time is 1180591620717411303424"),
        ((("frame", frame(0, 0, 0), 5),), r"uint8 \[0, 0, 3\]: push uint8"),
        ((("events", packet(-5)),), r"events from -5 to -5 us: give microseconds from 0 on"),
        ((("events", packet(5)), ("events", packet(4))), r"events from 4 us on after those up to 5 us"),
        ((("events", packet(5)), ("events", packet(6, width=9))), r"a sensor of 9x6 after those of 8x6"),
        ((("events", [1, 2]),), r"events are a list: push an EventStream"),
    ],
)
def test_what_cannot_be_pushed_is_refused_and_leaves_no_trace(pushes: tuple[Any, ...], message: str) -> None:
    incoming = Incoming(1000, 1 << 20)
    *before, (kind, *last) = pushes
    for name, *values in before:
        getattr(incoming, {"frame": "push_frame", "events": "push_events"}[name])(*values)
    counts = replace(incoming.counts)
    with pytest.raises(BadInput, match=message):
        getattr(incoming, {"frame": "push_frame", "events": "push_events"}[kind])(*last)
    assert incoming.counts == counts
