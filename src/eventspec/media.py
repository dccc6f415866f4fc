"""What was recorded in a slice of time, as it crosses the walls between rooms: a stream for each sense.

Axis letters: E events, K frames, H W sensor. Times are int64 microseconds on the recording's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np

from eventspec.errors import BadInput

Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Modality = Literal["frames", "events", "imu"]
"""The senses that ship; no model sees the IMU yet. Another one is a name here, a reader, a stream with `Stream`'s methods, and
a model that sees it."""


def read_only(array: Array) -> Array:
    """A view of the same memory that cannot be written through; numpy will not make it writable again."""
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type, return-value]


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


class Needing(Protocol):
    """A method, as far as recordings must suit it."""

    @property
    def target_needs(self) -> Modality: ...
    @property
    def drafter_needs(self) -> Modality | None: ...


_TWO_FILES = "frames and events in two files are one recording by --video FILE --events FILE of generate, chat and live"
_LACKS = {
    ("target", "frames"): "{} has no RGB frames: method {} needs them for the target; "
    + _TWO_FILES
    + "; an EventGPT checkpoint as the target answers from events alone",
    ("target", "events"): "{} has no events: the target is an event model and sees nothing else; "
    + _TWO_FILES
    + "; `eventspec events simulate` makes some, or choose another target",
    (
        "drafter",
        "events",
    ): "{} has no events: method {} needs them for the drafter; use --method eagle, which reads frames only; " + _TWO_FILES,
    ("drafter", "frames"): "{} has no RGB frames: method {} needs them for the drafter; " + _TWO_FILES,
}


def check_senses(name: str, senses: Collection[str], method: str, how: Needing) -> None:
    """BadInput when the recording `name`, which has these senses, lacks one that the method of that name needs."""
    for who, sense in (("target", how.target_needs), ("drafter", how.drafter_needs)):
        if sense is not None and sense not in senses:
            raise BadInput(_LACKS[who, sense].format(name, method))


class Stream(Protocol):
    """What one sense recorded: events, frames."""

    def __len__(self) -> int: ...
    @property
    def span(self) -> Window | None:
        """The smallest window that holds all of it, None where nothing was recorded."""

    def slice(self, window: Window) -> Self:
        """What of it lies in a window, as views."""

    def empty_copy(self) -> Self:
        """The same sensor, with nothing recorded."""

    def read_only(self) -> Self:
        """The same, which cannot be written to through this stream."""


class EventSlice(Stream, Protocol):
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


class FrameSlice(Stream, Protocol):
    """Frames of one window and int64 [K] times; see ``eventspec.video.clip.VideoClip``."""

    @property
    def frames(self) -> FrameRows: ...
    @property
    def times_us(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...


class Media(Mapping[str, Stream]):
    """What was recorded in one window, read-only: streams by the name of their sense, `Media(events=..., frames=...)`; a sense
    that was not recorded is absent. One object is one recording for everything that is kept about it, so it is compared by
    identity."""

    def __init__(self, **streams: Stream | None) -> None:
        self._streams = {sense: stream for sense, stream in streams.items() if stream is not None}

    def __getitem__(self, sense: str) -> Stream:
        return self._streams[sense]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    __eq__, __hash__ = object.__eq__, object.__hash__

    @property
    def events(self) -> EventSlice | None:
        """The entry `events`."""
        return self._streams.get("events")  # type: ignore[return-value]

    @property
    def frames(self) -> FrameSlice | None:
        """The entry `frames`."""
        return self._streams.get("frames")  # type: ignore[return-value]
