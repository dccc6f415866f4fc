"""What every family of event files provides: how to recognise a file, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.stored import Source, StoredStream
from eventspec.events.stream import EventStream, Monotonic, lags

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Frames = tuple[Callable[[int], Picture], tuple[int, int], np.ndarray[Any, np.dtype[np.int64]]]
"""A function from a place to its picture, uint8 [H, W, 3] RGB; their (H, W); their times int64 [K] us, in order."""
SensorSize = tuple[int, int]
"""(width, height) in pixels."""


@dataclass(frozen=True, eq=False)
class EventFile:
    """What one file held.

    events: None when the file has no event stream at all; notes: what the reader assumed or lost, one sentence each;
    frames: None when the family knows none.
    """

    format: str
    events: EventStream | None
    notes: tuple[str, ...] = ()
    frames: Frames | None = None


@dataclass(frozen=True)
class Format:
    """One family: its name in reports, how a person calls it, and its functions.

    ``matches(path, head)`` sees the first bytes (up to `HEAD_BYTES`) and may open the file; ``read(path, sensor_size,
    monotonic)`` raises BadInput, one line, for a file of this family it cannot use.
    """

    name: str
    title: str
    matches: Callable[[Path, bytes], bool]
    read: Callable[[Path, SensorSize | None, Monotonic], EventFile]


HEAD_BYTES = 4096
LONG_NOTE = "the file is long: its events stay in it, and are read and checked when they are used"


class SizeUnknown(BadInput):
    """A file that can be read once the caller says how large its sensor is."""


def settled_size(stated: SensorSize | None, asked: SensorSize | None, source: str) -> SensorSize:
    """The sensor size from the file or from the caller; BadInput when they disagree, and SizeUnknown when neither knows."""
    size = stated or asked
    if size is None:
        raise SizeUnknown(
            f"{source}: the sensor size is not in the file: give sensor_size=(width, height), "
            "on the command line --sensor 640x480 or a name such as davis346"
        )
    if stated is not None and asked is not None and stated != asked:
        raise BadInput(
            f"{source}: the file says {stated[0]}x{stated[1]} pixels but sensor_size is {asked[0]}x{asked[1]}: "
            "leave sensor_size out"
        )
    return size


def order_notes(late: int, largest_lag_us: int, lifted: bool) -> tuple[str, ...]:
    """What the policy for time did to `late` events; nothing when none was late."""
    if not late:
        return ()
    done = "each is lifted to the latest time before it" if lifted else "they are left as they are"
    return (f"{late} event times go back, by at most {largest_lag_us} us: {done}",)


def file_of(name: str, source: Source, stream: EventStream, notes: Iterable[str]) -> EventFile:
    """A file as a whole, of the family `name`, once `stream` was read from its source or left in it."""
    found = (*notes, *order_notes(source.late, source.largest_lag_us, source.ordered))
    return EventFile(name, stream, (*found, LONG_NOTE) if isinstance(stream, StoredStream) else found)


def whole_file(
    name: str, columns: Sequence[Any], size: SensorSize, path: Path, monotonic: Monotonic, notes: Iterable[str] = ()
) -> EventFile:
    """A file whose columns x, y, t and p were read as a whole, checked."""
    x, y, t, p = columns
    stream = EventStream.checked(x, y, t, p, *size, source=str(path), monotonic=monotonic)
    late = (0, 0) if monotonic == "raise" else lags(np.asarray(t).astype(np.int64))
    return EventFile(name, stream, (*notes, *order_notes(*late, lifted=monotonic == "clamp")))


def four_columns(columns: Mapping[str, Any], path: Path, kind: str) -> list[Any]:
    """Of an archive's entries x, y, t and p; BadInput, with the `kind` of archive, where one is missing."""
    missing = [name for name in "xytp" if name not in columns]
    if missing:
        held = " ".join(", ".join(sorted(columns)).split())[:120] or "nothing"
        raise BadInput(f"{path}: holds {held}, lacks {', '.join(missing)}: {kind} has x, y, t and p")
    return [columns[name] for name in "xytp"]
