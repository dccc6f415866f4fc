"""What a camera pair has sent of late: frames and events as they are pushed, until they are too old."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from eventspec.ask.live_policy import LiveCounts
from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream
from eventspec.media import read_only
from eventspec.process_lock import ProcessLock
from eventspec.recordings import Recording
from eventspec.video.clip import VideoClip

Frame = np.ndarray[Any, np.dtype[np.uint8]]
LATEST_US = 10**17
"""No clock in microseconds runs so long: from here on they are nanoseconds."""


class HeldFrames:
    """Frames uint8 [K, H, W, 3] that lie apart in memory, as `core.FrameRows`: joined when they are asked for."""

    dtype: np.dtype[np.uint8] = np.dtype(np.uint8)

    def __init__(self, frames: list[Frame]) -> None:
        self.frames, self.shape = frames, (len(frames), *frames[0].shape) if frames else (0, 0, 0, 3)

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)

    def __getitem__(self, places: Any, /) -> Any:
        if isinstance(places, slice):
            return HeldFrames(self.frames[places])
        if isinstance(places, int | np.integer):
            return self.frames[places]
        return np.stack([self.frames[place] for place in np.asarray(places).tolist()])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Frame:
        return np.stack(self.frames)


class Incoming:
    """The latest `keep_us` microseconds, copied. `event_bytes` and `frame_bytes` bound them: the oldest packets and frames go
    first, and packets are counted. Any thread may push."""

    def __init__(self, keep_us: int, event_bytes: int, frame_bytes: int = 1 << 30) -> None:
        self.keep_us, self.event_bytes, self.frame_bytes = keep_us, event_bytes, frame_bytes
        self.counts = LiveCounts()
        self._frames: deque[tuple[int, Frame]] = deque()
        self._events: deque[EventStream] = deque()
        self._held = 0
        self._latest_event = 0
        self.sensor: tuple[int, int] | None = None
        """Width and height of the event camera, None before its first packet."""
        self._lock = ProcessLock()

    @property
    def end_us(self) -> int | None:
        """Right after the latest frame, None before the first."""
        with self._lock:
            return self._frames[-1][0] + 1 if self._frames else None

    def push_frame(self, frame: Frame, time_us: int) -> Frame:
        """One more frame uint8 [H, W, 3] RGB; the copy that is kept. BadInput for another shape than before, or a time that is
        not later."""
        shaped = isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[-1] == 3 and frame.size > 0
        if not shaped or frame.dtype != np.uint8:
            got = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise BadInput(f"a frame is {got}: push uint8 [H, W, 3], one at a time")
        if isinstance(time_us, bool) or not isinstance(time_us, int | np.integer) or not 0 <= time_us < LATEST_US:
            raise BadInput(f"a frame's time is {time_us!r}: give whole microseconds from 0 on")
        with self._lock:
            if self._frames and frame.shape != self._frames[-1][1].shape:
                before = "x".join(map(str, self._frames[-1][1].shape[1::-1]))
                raise BadInput(f"a frame of {frame.shape[1]}x{frame.shape[0]} after those of {before}: begin another stream")
            if self._frames and time_us <= self._frames[-1][0]:
                raise BadInput(f"a frame at {time_us} us after one at {self._frames[-1][0]} us: push frames in order of time")
            own = read_only(frame.copy())
            self._frames.append((int(time_us), own))
            self.counts.frames += 1
            while len(self._frames) > 1 and len(self._frames) * own.nbytes > self.frame_bytes:
                self._frames.popleft()
                self.counts.lost += 1
            self._forget(int(time_us) - self.keep_us)
        return own

    def push_events(self, events: EventStream) -> None:
        """One more packet of events in order of time, none before the packet before; BadInput for what goes back, and for
        another sensor."""
        if not isinstance(events, EventStream):
            raise BadInput(f"events are a {type(events).__name__}: push an EventStream (see EventStream.checked)")
        sensor, first = (events.width, events.height), int(events.t[0]) if len(events) else None
        with self._lock:
            if self.sensor is not None and sensor != self.sensor:
                before, now = ("x".join(map(str, size)) for size in (self.sensor, sensor))
                raise BadInput(f"events of a sensor of {now} after those of {before}: begin another stream")
            if not events.ordered:
                raise BadInput("events of a packet go back in time: sort them")
            if first is not None and (first < 0 or int(events.t[-1]) >= LATEST_US):
                raise BadInput(f"events from {first} to {events.t[-1]} us: give microseconds from 0 on")
            if first is not None and first < self._latest_event:
                raise BadInput(
                    f"events from {first} us on after those up to {self._latest_event} us: push them in order of time"
                )
            self.sensor = sensor
            self.counts.packets += 1
            if first is not None:
                self._add(EventStream(events.x.copy(), events.y.copy(), events.t.copy(), events.p.copy(), *sensor))

    def _add(self, own: EventStream) -> None:
        self._latest_event = int(own.t[-1])
        self._events.append(own)
        self._held += _bytes(own)
        while self._held > self.event_bytes and len(self._events) > 1:
            self._held -= _bytes(self._events.popleft())
            self.counts.dropped_packets += 1
        self._forget(self._latest_event - self.keep_us)

    def recording(self, window: Window) -> Recording:
        """What is there of a window."""
        with self._lock:
            frames = [(time, frame) for time, frame in self._frames if window.start_us <= time < window.end_us]
            parts, sensor = [part.slice(window) for part in self._events], self.sensor
        events = None if sensor is None else EventStream.joined([part for part in parts if len(part)], *sensor)
        video = None
        if frames:
            times = np.array([time for time, _ in frames], np.int64)
            video = VideoClip(HeldFrames([frame for _, frame in frames]), times)
        return Recording(f"[{window.start_us}, {window.end_us}) us", events, video)

    def count(self, window: Window) -> int:
        """How many events there are of a window."""
        with self._lock:
            return sum(len(part.slice(window)) for part in self._events)

    def _forget(self, before_us: int) -> None:
        while len(self._frames) > 1 and self._frames[0][0] < before_us:
            self._frames.popleft()
        while self._events and int(self._events[0].t[-1]) < before_us:
            self._held -= _bytes(self._events.popleft())


def _bytes(events: EventStream) -> int:
    return events.x.nbytes + events.y.nbytes + events.t.nbytes + events.p.nbytes
