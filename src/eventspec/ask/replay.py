"""A recording as if it came from the camera just now."""

from __future__ import annotations

import threading
import time
from itertools import count

import numpy as np

from eventspec.ask.live import Live
from eventspec.core import BadInput, Window
from eventspec.recordings import Recording

PACKET_US = 10_000
"""Of events that are pushed together, as cameras send them."""
LEAST_TURN_US = 100_000
"""A recording that is repeated takes at least so long: a single picture has no length."""


class Replay(threading.Thread):
    """Pushes a recording in real time, for so many seconds; what it cannot push ends it and is raised by `join`.

    A recording that is shorter is repeated on a clock that goes on, so much later that no window holds the end of one turn and
    the beginning of the next."""

    def __init__(self, live: Live, recording: Recording, seconds: float) -> None:
        if recording.video is None or not len(recording.video):
            raise BadInput(f"{recording.name} has no RGB frames: a stream without frames cannot be asked about")
        super().__init__(name="eventspec-replay", daemon=True)
        self.live, self.recording, self.seconds = live, recording, seconds
        self.turn_us = recording.span.duration_us + live.policy.window_us
        """How much later a turn's times are than those of the turn before."""
        self.lead_us = max(0, -recording.span.start_us)
        """How much later the first turn's are than the recording's: a stream begins at 0, events that were moved may not."""
        self.late_us = 0
        """How far behind the clock a push was, at worst."""
        self.turns = 0
        """How often the recording was begun."""
        self._error: Exception | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End with the packet that is being pushed."""
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, but not longer than so many seconds; raises what ended it early."""
        super().join(timeout)
        if self._error is not None:
            raise self._error

    @property
    def notes(self) -> list[str]:
        """What of the recording does not suit the stream's windows, one sentence each."""
        window, length = self.live.policy.window_us, self.recording.span.duration_us
        lasts, notes = f"{length / 1e6:.3g} s", list[str]()
        if window > length + PACKET_US:  # a clip of a second ends with its last event, a little before that
            notes.append(f"windows of {window / 1e6:g} s are longer than the recording ({lasts}): choose shorter ones")
        if self.turns > 1:
            notes.append(f"the recording lasts {lasts}: it was begun {self.turns} times in {self.seconds:g} s")
        return notes

    def on_recording(self, window: Window) -> Window:
        """A window of the stream on the recording's own clock."""
        shift = max(0, (window.end_us - 1 - self.lead_us - self.recording.span.start_us) // self.turn_us) * self.turn_us
        shift += self.lead_us
        return Window(window.start_us - shift, window.end_us - shift)

    def run(self) -> None:
        """What the thread does."""
        due, span = time.perf_counter(), self.recording.span
        end = due + self.seconds
        try:
            for turn in count():
                begun = due
                for start in range(span.start_us, span.end_us, PACKET_US):
                    step = Window(start, min(start + PACKET_US, span.end_us))
                    due += step.duration_us / 1e6
                    if due > end or self._stopped.wait(max(0.0, due - time.perf_counter())):
                        return
                    self.late_us = max(self.late_us, round(1e6 * (time.perf_counter() - due)))
                    self.turns = turn + 1
                    self._push(step, turn * self.turn_us + self.lead_us)
                due = max(due, begun + LEAST_TURN_US / 1e6)
        except Exception as error:
            self._error = error

    def _push(self, step: Window, shift: int) -> None:
        """What the recording has of a step, events first."""
        if self.recording.events is not None:
            self.live.push_events(self.recording.events.slice(step).shifted(shift))
        if self.recording.video is not None:
            clip = self.recording.video.slice(step)
            for frame, at in zip(clip.frames, clip.times_us.tolist(), strict=True):
                self.live.push_frame(np.asarray(frame), at + shift)
