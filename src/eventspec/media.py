"""What was recorded in a slice of time, as it crosses the walls between rooms.

Axis letters: E events, K frames, H W sensor. Times are int64 microseconds on the recording's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eventspec.errors import BadInput


@dataclass(frozen=True)
class Window:
    """A half-open time slice ``[start_us, end_us)`` of a recording, int64 microseconds."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        if not all(isinstance(time, int | np.integer) for time in (self.start_us, self.end_us)):
            raise BadInput(f"window [{self.start_us!r}, {self.end_us!r}) us: both must be whole numbers")
        if self.end_us <= self.start_us:
            raise BadInput(f"window [{self.start_us}, {self.end_us}) us is empty: its end must be after its start")

    @property
    def duration_us(self) -> int:
        return self.end_us - self.start_us


class EventSlice(Protocol):
    """Events of one window, columns of equal length [E]; see ``eventspec.events.stream.EventStream``."""

    @property
    def x(self) -> np.ndarray[Any, np.dtype[np.uint16]]: ...
    @property
    def y(self) -> np.ndarray[Any, np.dtype[np.uint16]]: ...
    @property
    def t(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...
    @property
    def p(self) -> np.ndarray[Any, np.dtype[np.uint8]]: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


class FrameRows(Protocol):
    """Frames uint8 [K, H, W, 3] RGB: an array, or ``eventspec.video.stored.StoredFrames``, which are read when asked for.

    Index by an array of places for those frames as an array; ``np.asarray`` would read all of them.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.uint8]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Any: ...
    def __getitem__(self, places: Any, /) -> Any: ...


class FrameSlice(Protocol):
    """Frames of one window and int64 [K] times; see ``eventspec.video.clip.VideoClip``."""

    @property
    def frames(self) -> FrameRows: ...
    @property
    def times_us(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...


@dataclass(frozen=True, eq=False)
class Media:
    """What was recorded in one window; both halves are read-only views. One object is one recording to everybody who keeps
    work about it, so it is compared by identity."""

    events: EventSlice | None = None
    video: FrameSlice | None = None
