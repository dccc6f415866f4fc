"""What a stream does and reports: its windows and bounds, an answer, and what became of what came."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from eventspec.ask.result import Result
from eventspec.core import BadInput, Window
from eventspec.errors import BadSetting

Windows = Literal["sliding", "growing", "triggered"]

MOST = 2**53
"""Of a policy's whole numbers. Times are int64 microseconds, to which a window is added: so many are 285 years."""


@dataclass(frozen=True)
class LivePolicy:
    """Which windows are cut, and what reading ahead may cost.

    A prefix is exact, so a window that is not the last one's beginning is read from scratch: its frames are encoded, but the
    prefill of all visual rows is paid once a window, of which `share` and `hop_us` say how many there are.
    """

    window_us: int = 1_000_000
    """How long a window is, at most."""
    windows: Windows = "sliding"
    """sliding: the latest `window_us`. growing: from where the last one ended, until it is `window_us` long. triggered: as
    sliding, but cut only when events come `trigger` times as fast as over the window before, and once a window at least."""
    hop_us: int = 250_000
    """A window is cut so long after the one before, at the earliest."""
    trigger: float = 1.5
    share: float = 0.5
    """Of the target's time that reading ahead may take between questions."""
    rows: int = 64
    """Rows of a prompt that are read in one go. A question waits for what is being read just now: so many rows, a frame, or the
    last part of a window, in which drafters read their own prompt."""
    waiting: int = 4
    """Frames that may wait to be encoded ahead. When one more comes, the one that has waited longest is dropped: it is encoded
    when a window needs it, and otherwise never."""
    event_bytes: int = 256 << 20
    """Of the events that are held; the oldest packets are dropped beyond."""
    frame_bytes: int = 1 << 30
    """Of the frames that are held; beyond, a window has the later ones only."""
    reuse_below: float = 0.0
    """LOSSY unless 0: a frame is not encoded, and has the rows of the frame that was encoded last, where fewer events than so
    many a pixel came between the two. Without an event camera, when that frame is older than a window, and when packets were
    dropped since, it is encoded. Push the events up to a frame's time before the frame: those that come later do not count."""

    def checked(self) -> LivePolicy:
        """Itself; BadInput for what cannot be."""
        if self.windows not in get_args(Windows):
            raise BadInput(f"windows '{self.windows}' are unknown: choose {', '.join(get_args(Windows))}")
        for name in ("window_us", "hop_us", "rows", "waiting", "event_bytes", "frame_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
                raise BadSetting(name, f"is {value!r}: give a whole number from 1 to {MOST}")
        for name in ("share", "trigger", "reuse_below"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadSetting(name, f"is {value!r}: give a number")
        if not 0 < self.share <= 1:
            raise BadSetting("share", f"is {self.share!r}: give a part of the target's time above 0, up to 1")
        if not self.trigger > 0:
            raise BadSetting("trigger", f"is {self.trigger!r}: give how many times as fast, above 0")
        if not 0 <= self.reuse_below < math.inf:
            raise BadSetting("reuse_below", f"is {self.reuse_below!r}: give events a pixel, above 0; 0 encodes every frame")
        return self


@dataclass(frozen=True)
class LiveAnswer:
    """An answer about a window of a stream. `seconds` between question and answer; a standing question's answer may have been
    there before it was asked."""

    window: Window
    result: Result
    seconds: float
    ahead: bool = False

    @property
    def text(self) -> str:
        return self.result.text

    @property
    def token_ids(self) -> list[int]:
        return self.result.token_ids


@dataclass
class LiveCounts:
    """What came and what became of it."""

    frames: int = 0
    encoded: int = 0
    dropped: int = 0
    """Frames that were not encoded ahead because others came too soon after them."""
    reused: int = 0
    """Frames that have another one's rows (`LivePolicy.reuse_below`)."""
    lost: int = 0
    """Frames that no window has: the oldest go first where more bytes were held than may be."""
    packets: int = 0
    dropped_packets: int = 0
    windows: int = 0
    """Windows that were read ahead."""
    notes: list[str] = field(default_factory=list)
