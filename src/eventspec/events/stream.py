"""The event stream: four columns of equal length on one sensor. It knows no file format and no picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np
from numpy.typing import ArrayLike

from eventspec.core import BadInput, Window
from eventspec.media import read_only

Monotonic = Literal["raise", "clamp", "keep"]
"""What to do with a time that is before its predecessor: refuse, lift it to the latest time so far, or leave it."""


class Policy(NamedTuple):
    """What becomes of events that cannot be used as they stand: of those whose time goes back, and of those outside the sensor,
    which are dropped, or else the file is refused."""

    monotonic: Monotonic = "raise"
    drop_outside: bool = False


STRICT = Policy()

Array = np.ndarray[Any, np.dtype[Any]]
Places = slice | np.ndarray[Any, np.dtype[np.int64]]
LARGEST_SIDE = 65536  # coordinates are uint16
Named = Callable[[str, int], str]
"""How a message calls the value of a column ("t") at an event of the file (0 is the first)."""
BLOCK = 1 << 17  # events in one block where a long stream is walked: they fit in a core's cache


@dataclass
class Block:
    """Where columns come from, for messages and checks across blocks: the file; of a block of a longer one also the index of
    its first event in the file, the latest time (us) before it, how the file's values are called (``t[5]`` unless `named`
    says otherwise), and how OFF is written, 0 or -1, once it was read: all blocks must agree. `kept`: the places of the events
    that are on the sensor, once the others are dropped."""

    source: str
    first: int = 0
    latest: int = 0
    named: Named | None = None
    off: int | None = None
    kept: Array | None = None

    def value_name(self, name: str, index: int) -> str:
        """How messages call the value of a column at one of these events."""
        index = self.first + (index if self.kept is None else int(self.kept[index]))
        return self.named(name, index) if self.named is not None else f"{name}[{index}]"

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, eq=False)
class EventStream:
    """Events of one sensor in order of time.

    x, y uint16 [E] pixels, origin top left; t int64 [E] microseconds; p uint8 [E], 1 = brighter (ON), 0 = darker (OFF);
    width, height of the sensor in pixels. `ordered` is False only for streams read with ``monotonic="keep"`` whose times
    do go back: they are sliced by a mask instead of a binary search.

    The plain constructor trusts its arguments; use `EventStream.checked` for anything that comes from outside.
    """

    x: np.ndarray[Any, np.dtype[np.uint16]]
    y: np.ndarray[Any, np.dtype[np.uint16]]
    t: np.ndarray[Any, np.dtype[np.int64]]
    p: np.ndarray[Any, np.dtype[np.uint8]]
    width: int
    height: int
    ordered: bool = True

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        return f"EventStream({len(self)} events, {self.width}x{self.height}, span={self.span})"

    def empty_copy(self) -> EventStream:
        return EventStream.empty(self.width, self.height)

    def read_only(self) -> EventStream:
        columns = read_only(self.x), read_only(self.y), read_only(self.t), read_only(self.p)
        return EventStream(*columns, self.width, self.height, self.ordered)

    @classmethod
    def empty(cls, width: int, height: int) -> EventStream:
        side = np.empty(0, np.uint16)
        return cls(side, side, np.empty(0, np.int64), np.empty(0, np.uint8), width, height)

    @classmethod
    def checked(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        t: ArrayLike,
        p: ArrayLike,
        width: int,
        height: int,
        *,
        source: str = "file",
        monotonic: Monotonic = "raise",
    ) -> EventStream:
        """Columns from outside (any numeric dtype, [E] each) as a stream; arrays of the right dtype are not copied.

        Polarity may be bool, {0, 1} or {-1, 1}. BadInput, with `source`, the field, the first bad index (``t[5]``) and the
        remedy, for unequal lengths, values that are no whole numbers, events outside the sensor, and (unless `monotonic` says
        otherwise) a time before its predecessor.
        """
        return cls.checked_block((x, y, t, p), width, height, Block(source), Policy(monotonic))

    @classmethod
    def checked_block(cls, columns: Sequence[ArrayLike], width: int, height: int, block: Block, policy: Policy) -> EventStream:
        """As `checked`, of columns x, y, t and p that may be one block of a longer file."""
        if policy.monotonic not in get_args(Monotonic):
            raise BadInput(f'monotonic is {policy.monotonic!r}: choose "raise", "clamp" or "keep"')
        _check_sensor(width, height, block.source)
        x, y, t, p = (_whole(values, name, block) for name, values in zip("xytp", columns, strict=True))
        if len({len(x), len(y), len(t), len(p)}) > 1:
            lengths = f"x {len(x)}, y {len(y)}, t {len(t)}, p {len(p)}"
            raise BadInput(f"{block}: the columns differ in length ({lengths}): every event needs x, y, t and p")
        if policy.drop_outside and not (inside := on_sensor(x, y, width, height)).all():
            block.kept = np.flatnonzero(inside)
            x, y, t, p = (column[block.kept] for column in (x, y, t, p))
        times, ordered = _times(t, block, policy.monotonic)
        return cls(
            _coordinates(x, "x", width, "width", block),
            _coordinates(y, "y", height, "height", block),
            times,
            _polarity(p, block),
            int(width),
            int(height),
            ordered,
        )

    @classmethod
    def joined(cls, parts: Iterable[EventStream], width: int, height: int) -> EventStream:
        """The parts, in the order given, as one stream; each column is copied once."""
        rows = list(parts)
        if not rows:
            return cls.empty(width, height)
        if len(rows) == 1:
            return rows[0]
        x, y, t, p = (np.concatenate([getattr(part, name) for part in rows]) for name in ("x", "y", "t", "p"))
        return cls(x, y, t, p, width, height, all(part.ordered for part in rows))

    @property
    def span(self) -> Window | None:
        """The smallest window that holds every event, or None without events."""
        if not len(self):
            return None
        if self.ordered:
            return Window(int(self.t[0]), int(self.t[-1]) + 1)
        return Window(int(self.t.min()), int(self.t.max()) + 1)

    def slice(self, window: Window) -> EventStream:
        """Events with ``start_us <= t < end_us``: views of the same memory (copies where the times are not ordered)."""
        if not self.ordered:
            return self.take(np.flatnonzero((self.t >= window.start_us) & (self.t < window.end_us)))
        first, last = np.searchsorted(self.t, [window.start_us, window.end_us], side="left")
        return self.take(slice(int(first), int(last)))

    def has(self, window: Window) -> bool:
        """Whether any event lies in the window."""
        return len(self.slice(window)) > 0

    def blocks(self) -> Iterator[EventStream]:
        """The whole stream in pieces of at most `BLOCK` events, in order: views of the same memory."""
        for start in range(0, len(self), BLOCK):
            yield self.take(slice(start, start + BLOCK))

    def take(self, places: Places) -> EventStream:
        """The events at these rising places: views for a slice, copies for an index array."""
        x, y, t, p = self.x[places], self.y[places], self.t[places], self.p[places]
        return EventStream(x, y, t, p, self.width, self.height, self.ordered)

    def shifted(self, delta_us: int) -> EventStream:
        return EventStream(self.x, self.y, self.t + np.int64(delta_us), self.p, self.width, self.height, self.ordered)


# ------------------------------------------------------------------------------------------------------------------ checks
def on_sensor(x: Array, y: Array, width: int, height: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the events [E] lie on a sensor of this size."""
    return (x >= 0) & (x < width) & (y >= 0) & (y < height)


def _check_sensor(width: int, height: int, source: str) -> None:
    for name, side in (("width", width), ("height", height)):
        if isinstance(side, bool) or not isinstance(side, int | np.integer) or not 1 <= side <= LARGEST_SIDE:
            raise BadInput(f"{source}: {name} is {side!r}: give the sensor size in whole pixels, 1 to {LARGEST_SIDE}")


def _refuse(place: Block, name: str, bad: Array, values: Array, remedy: str) -> NoReturn:
    """Raise for the first event where the bool column `bad` is true."""
    index = int(np.argmax(bad))
    raise BadInput(f"{place}: {place.value_name(name, index)} is {values[index]}: {remedy}")


def _whole(values: ArrayLike, name: str, place: Block) -> Array:
    """One column [E] as bool or integers; floats pass when every value is a whole number."""
    try:
        column = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{place}: {name} is not a list of numbers ({error})") from None
    if column.ndim != 1:
        raise BadInput(f"{place}: {name} has shape {column.shape}: it must be one column, one value an event")
    if not len(column):
        return np.empty(0, np.int64)
    if column.dtype.kind in "biu":
        return column
    column = column.astype(np.float32) if column.dtype == np.float16 else column  # which cannot be compared with large ones
    if column.dtype.kind != "f":
        raise BadInput(f"{place}: {name} holds {column.dtype}, not numbers: store it as whole numbers")
    remedy = "times must be whole microseconds (seconds need a conversion)" if name == "t" else "it must be a whole number"
    bad = ~np.isfinite(column) | (column != np.floor(column)) | (np.abs(column) >= 2.0**63)
    if bad.any():
        _refuse(place, name, bad, column, remedy)
    return column.astype(np.int64)


def _coordinates(column: Array, name: str, side: int, side_name: str, place: Block) -> np.ndarray[Any, np.dtype[np.uint16]]:
    if len(column) and ((column.dtype.kind != "u" and column.min() < 0) or column.max() >= side):
        bad = (column < 0) | (column >= side)
        drop = "or drop such events with drop_outside=True"
        remedy = f"outside the sensor ({side_name} {side}); give the right sensor_size, {drop}"
        _refuse(place, name, bad, column, remedy)
    return column.astype(np.uint16, copy=False)


def _times(column: Array, place: Block, monotonic: Monotonic) -> tuple[np.ndarray[Any, np.dtype[np.int64]], bool]:
    """Times int64 under the policy, and whether they are non-decreasing now."""
    latest, longest = place.latest, np.iinfo(np.int64).max
    if column.dtype == np.uint64 and len(column) and column.max() > longest:
        _refuse(place, "t", column > longest, column, "larger than int64 microseconds can be; the file is damaged")
    # uint64 is seen as int64 without a copy: it holds nothing larger.
    times = column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64, copy=False)
    rising = not (times[1:] < times[:-1]).any()
    late = len(times) > 0 and bool(times[0] < latest)
    # Times that never go back and begin after 0 need no look at each of them: a pass over a long column costs.
    if not len(times) or (rising and times[0] >= max(latest, 0)):
        return times, True
    if times.min() < 0:
        _refuse(place, "t", times < 0, times, "times count microseconds from 0 upwards; add an offset to all of them")
    if monotonic == "keep":
        return times, False
    if monotonic == "clamp":
        return np.maximum(np.maximum.accumulate(times), latest), True
    index = 0 if late else int(np.argmax(times[1:] < times[:-1])) + 1
    before = latest if late else times[index - 1]
    raise BadInput(
        f"{place}: {place.value_name('t', index)} is {times[index]}, before {place.value_name('t', index - 1)} = {before}: "
        f'sort the file, or read it with monotonic="clamp" (lifts late times) or monotonic="keep"'
    )


def lags(times: np.ndarray[Any, np.dtype[np.int64]], latest: int = 0) -> tuple[int, int]:
    """How many times [E] are before the latest one so far, and by how many microseconds at most; `latest` came before."""
    if not len(times) or (times[0] >= latest and not (times[1:] < times[:-1]).any()):
        return 0, 0
    lag = np.maximum(np.maximum.accumulate(times), latest) - times
    return int(np.count_nonzero(lag)), int(lag.max())


def _polarity(column: Array, place: Block) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """{0, 1}, {-1, 1} or bool as uint8 {0, 1}."""
    if column.dtype == np.bool_:
        return column.view(np.uint8)
    if column.dtype == np.uint8 and (not len(column) or column.max() <= 1):
        return column
    lowest = int(column.min()) if len(column) else 1
    signed = lowest < 0
    bad = (column != 1) & (column != (-1 if signed else 0))
    if bad.any():
        wanted = "-1 or 1 beside the negative ones" if signed else "0 or 1, or -1 or 1"
        _refuse(place, "p", bad, column, f"polarity must be {wanted}")
    if lowest < 1:
        if place.off not in (None, lowest):
            remedy = f"OFF is {place.off} in events that were read before; write all of them one way"
            _refuse(place, "p", column == lowest, column, remedy)
        place.off = lowest
    return (column > 0).view(np.uint8) if signed else column.astype(np.uint8, copy=False)
