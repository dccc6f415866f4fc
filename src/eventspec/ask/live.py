"""A camera pair as it runs: what it sends is read before anybody asks, so that a question waits for its own words only.

Every frame is encoded when it comes (no frame looks at another, so its rows are those of any window). A thread cuts a window
now and then and has it read in the background: the target's visual prefix, and what a method's drafters see. A question is
answered about the latest window that is ready, as `generate` answers it about that window of the recording: token by token,
where a frame's rows do not depend on which others are encoded with it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from eventspec.ask.context import RecordingContext
from eventspec.ask.generation import DEFAULT_METHOD, Generation, Methods
from eventspec.ask.incoming import Frame, Incoming
from eventspec.ask.live_policy import LiveAnswer, LiveCounts, LivePolicy
from eventspec.ask.result import Result
from eventspec.core import BadInput, EventspecError, Media, Sampling, Trace, Window
from eventspec.events.stream import EventStream
from eventspec.lanes import LaneThread
from eventspec.models.prompt import FrameEncoder
from eventspec.recordings.qa import check_question
from eventspec.video.clip import VideoClip


class Live:
    """What `pair.live()` gives: push from any thread, ask from one at a time; `close` it, or use it in a `with`. `encoder`
    encodes a frame ahead, for a target that will not encode it again; None: frames wait for their window."""

    def __init__(
        self,
        pair: Methods,
        method: str = DEFAULT_METHOD,
        policy: LivePolicy | None = None,
        encoder: FrameEncoder | None = None,
    ) -> None:
        self.pair, self.method, self.policy = pair, method, (policy or LivePolicy()).checked()
        self._encoder, self._process = encoder, os.getpid()
        pair.method(method)
        self._incoming = Incoming(2 * self.policy.window_us, self.policy.event_bytes, self.policy.frame_bytes)
        self._waiting: deque[tuple[Frame, int]] = deque()
        self._encoded: tuple[Frame, int, int] | None = None  # last of all: frame, time, packets that were dropped by then
        self._seen_us: int | None = None  # right after the latest frame that has rows, its own or another one's
        self._counts = self._incoming.counts
        self._standing: dict[str, Sampling] = {}
        self._ready: _Window | None = None
        self._behind: Generation | None = None  # a standing question that is being answered
        self._cut_us: int | None = None  # where the latest window ended
        self._anchor_us: int | None = None  # where a growing one began
        self._asking, self._closed = False, False
        self._changed = threading.Condition()
        self._one_asks = threading.Lock()
        self._reading: Iterator[None] | None = None  # a window, part by part
        self._rest_until = 0.0
        # The thread must not keep alive what only it holds.
        self._thread = LaneThread("live", _read_on, weakref.ref(self), self._changed)
        self._thread.start()

    # --------------------------------------------------------------------------------------------------------------- pushing
    def push_frame(self, frame: Frame, time_us: int) -> None:
        """One more frame uint8 [H, W, 3] RGB, later than those before. Copied; BadInput for what is none, or is not later."""
        self._open()
        own = self._incoming.push_frame(frame, time_us)
        with self._changed:
            if self._encoder is not None:
                self._waiting.append((own, int(time_us)))
            while len(self._waiting) > self.policy.waiting:
                self._waiting.popleft()
                self._counts.dropped += 1
            self._changed.notify_all()

    def push_events(self, events: EventStream) -> None:
        """One more packet of events, in order of time. Copied; BadInput for another sensor, or times that go back."""
        self._open()
        self._incoming.push_events(events)

    # ---------------------------------------------------------------------------------------------------------------- asking
    def ask(self, question: str, method: str | None = None, sampling: Sampling | None = None, **settings: Any) -> LiveAnswer:
        """Answer a question about the latest window that is ready, or about the latest there is when none is; as `generate`.
        BadInput before the first frame."""
        self._open()
        check_question(question)
        began, wanted = time.perf_counter(), self.pair.tokens.settings(sampling, settings)
        with self._one_asks:
            try:
                with self._changed:
                    self._asking = True
                    if self._behind is not None and self._standing.get(question) != wanted:
                        self._behind.cancel()
                    self._changed.wait_for(lambda: self._behind is None)
                    ready = self._ready
                return self._answered(ready or self._cut(), question, method or self.method, wanted, began)
            finally:
                with self._changed:
                    self._asking = False
                    self._changed.notify_all()

    def standing(self, question: str, sampling: Sampling | None = None, **settings: Any) -> None:
        """A question that is answered ahead about every window, in the background: asked with the same settings, its answer is
        there at once."""
        self._open()
        check_question(question)
        self._standing[question] = self.pair.tokens.settings(sampling, settings)

    def withdraw(self, question: str) -> None:
        """A question that stands no more; nothing for one that did not."""
        self._standing.pop(question, None)

    @property
    def counts(self) -> LiveCounts:
        """What came so far, and what became of it."""
        return replace(self._counts, notes=list(self._counts.notes))

    @property
    def window(self) -> Window | None:
        """The window that a question is answered about just now, None while none is ready."""
        return self._ready.window if self._ready else None

    def close(self) -> None:
        """End reading ahead; nothing can be pushed or asked afterwards."""
        with self._changed:
            self._closed = True
            if self._behind is not None:
                self._behind.cancel()
            self._changed.notify_all()
        if self._process == os.getpid():
            self._thread.join(10.0)  # a target that hangs is not waited for

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _answered(self, ready: _Window, question: str, method: str, sampling: Sampling, began: float) -> LiveAnswer:
        asked_for, known = ready.answers.get((question, method), (None, None))
        if known is not None and asked_for == sampling:
            return LiveAnswer(ready.window, known, time.perf_counter() - began, ahead=True)
        result = ready.context.generation(question, method, sampling, may_be_empty=QUIET).result()
        return LiveAnswer(ready.window, result, time.perf_counter() - began)

    def _open(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this stream was begun before a fork, and its thread stayed behind: begin another in the child")
        if self._closed:
            raise BadInput("this stream was closed: begin another one")

    # --------------------------------------------------------------------------------------------------------- reading ahead
    def idle(self) -> float:
        """Seconds to wait: there is nothing to read, a question is answered, or it is time to rest; 0: there is work. Under
        `_changed`."""
        if self._closed:
            return 0.0
        if (rest := self._rest_until - time.monotonic()) > 0:
            return min(rest, _LOOK)
        return _LOOK if self._asking or not (self._reading is not None or self._waiting or self._due()) else 0.0

    def turn(self) -> bool:
        """Encode a frame that waits, and read a part of the latest window or answer what stands about it, so that neither keeps
        the other from its turn; False once this is closed."""
        if self._closed:
            return False
        began = time.monotonic()
        try:
            self._encode_one()
            self._reading = self._reading or self._read_ahead()
            if next(self._reading, self) is self:
                self._reading = None
        except Exception as error:  # a question meets it again and raises it; a stream goes on
            self._reading = None
            self._note(error)
        ended = time.monotonic()
        self._rest_until = ended + (ended - began) * (1 / self.policy.share - 1)
        return True

    def _encode_one(self) -> None:
        """Encode the frame that has waited longest, if one waits, or take another one's rows for it."""
        with self._changed:
            if not self._waiting:
                return
            frame, time_us = self._waiting.popleft()
        assert self._encoder is not None  # else none waits
        self._seen_us = time_us + 1
        if self._looks_like_the_last(frame, time_us):
            self._counts.reused += 1
            return
        alone = Media(frames=VideoClip(frame[None], np.array([time_us], np.int64)))
        self.pair.workers.start("target", partial(self._encoder.encode, alone, Trace(), "target")).result()
        self._counts.encoded += 1
        self._encoded = frame, time_us, self._counts.dropped_packets

    def _looks_like_the_last(self, frame: Frame, time_us: int) -> bool:
        """Whether a frame has the rows of the one that was encoded last, because hardly an event came since."""
        sensor, below = self._incoming.sensor, self.policy.reuse_below
        if not below or self._encoded is None or sensor is None or self._encoder is None or self._encoder.kept is None:
            return False
        last, at, dropped = self._encoded
        if time_us - at > self.policy.window_us or self._counts.dropped_packets > dropped:
            return False  # its events may be forgotten
        came = self._incoming.count(Window(at, time_us)) / (sensor[0] * sensor[1])
        return came < below and self._encoder.kept.share(frame, last)

    def _due(self) -> bool:
        """Whether another window is to be cut."""
        end, policy = self._incoming.end_us, self.policy
        if end is None or self._cut_us is None:
            return end is not None
        since = end - self._cut_us
        if since < policy.hop_us or policy.windows != "triggered" or since >= policy.window_us:
            return since >= policy.hop_us
        fresh, before = Window(self._cut_us, end), Window(max(0, self._cut_us - policy.window_us), self._cut_us)
        usual = self._incoming.count(before) / max(1, before.duration_us)
        return self._incoming.count(fresh) / fresh.duration_us > policy.trigger * usual

    def _cut(self, end: int | None = None) -> _Window:
        """The window that ends there, by default the latest; BadInput before the first frame."""
        length = self.policy.window_us
        if end is None and (end := self._incoming.end_us) is None:
            raise BadInput("no frame has come yet: push frames first, then ask")
        start = max(0, end - length)
        if self.policy.windows == "growing":
            with self._changed:
                if self._anchor_us is None or end - self._anchor_us > length:
                    self._anchor_us = start if self._cut_us is None else max(start, self._cut_us)
                start = self._anchor_us
        window = Window(min(start, end - 1), end)
        return _Window(window, RecordingContext(self.pair, self._incoming.recording(window)))

    def _read_ahead(self) -> Iterator[None]:
        """Cut a window and read it, part by part; then the standing questions about it."""
        if not self._due():
            return
        end = self._incoming.end_us
        if self.policy.reuse_below:
            for _ in range(len(self._waiting)):
                self._encode_one()
            end = self._seen_us or end  # the window would encode those that came since
        self._cut_us = end  # first: what fails is not tried again before the next hop
        made = self._cut(end)
        yield from made.context.preparing(self.method, self.policy.rows, may_be_empty=QUIET)
        self._ready = made
        self._counts.windows += 1
        for question, sampling in list(self._standing.items()):
            while not self._answer_behind(made, question, sampling):
                yield
            yield

    def _answer_behind(self, made: _Window, question: str, sampling: Sampling) -> bool:
        """Answer a standing question; False when another question came meanwhile, which goes first."""
        asked = made.context.generation(question, self.method, sampling, may_be_empty=QUIET)
        with self._changed:
            if self._asking or self._closed:
                return self._closed
            self._behind = asked
        try:
            result = asked.result()
            if result.finish_reason == "cancelled":
                return False
            made.answers[question, self.method] = sampling, result
            return True
        finally:
            with self._changed:
                self._behind = None
                self._changed.notify_all()

    def _note(self, error: Exception) -> None:
        text = str(error) if isinstance(error, EventspecError) else f"{type(error).__name__}: {error}"
        if text not in self._counts.notes and len(self._counts.notes) < 16:
            self._counts.notes.append(text)


@dataclass
class _Window:
    """A window that was cut, and the answers to standing questions about it."""

    window: Window
    context: RecordingContext
    answers: dict[tuple[str, str], tuple[Sampling, Result]] = field(default_factory=dict)


QUIET = ("events",)
"""Senses of which nothing happens while nothing moves, which is seen too."""
_LOOK = 0.05
"""Seconds after which the thread looks whether its stream is still held."""


def _read_on(stream: weakref.ref[Live], changed: threading.Condition) -> None:
    """What a stream's thread does, for as long as the stream is held elsewhere."""
    while True:
        with changed:
            live = stream()
            if live is None:
                return
            if seconds := live.idle():
                del live
                changed.wait(seconds)
                continue
        if not live.turn():
            return
        del live
