"""What every family of event files provides: how to recognise a file, and how to read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.events.formats.columns import in_microseconds, names_of
from eventspec.events.stored import Source, StoredStream
from eventspec.events.stream import Block, EventStream, Policy, lags

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Frames = tuple[Callable[[int], Picture], tuple[int, int], np.ndarray[Any, np.dtype[np.int64]]]
"""A function from a place to its picture, uint8 [H, W, 3] RGB; their (H, W); their times int64 [K] us, in order."""
Inertial = tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]
"""An IMU's times [N] in us, acceleration [N, 3] in m/s^2 and rotation [N, 3] in rad/s, as they stand in the file, unchecked."""
MOST_SAMPLES = 1 << 24
"""Of an IMU that are read of a file, four hours at 1 kHz: packed ones may unpack into any number."""
SensorSize = tuple[int, int]
"""(width, height) in pixels."""
DSEC: SensorSize = (640, 480)


@dataclass(frozen=True, eq=False)
class EventFile:
    """What one file held.

    events: None when the file has no event stream at all; notes: what the reader assumed or lost, one sentence each;
    frames: None when the family knows none; imu: None where the file has no inertial samples, or the family knows none.
    """

    format: str
    events: EventStream | None
    notes: tuple[str, ...] = ()
    frames: Frames | None = None
    imu: Inertial | None = None


@dataclass(frozen=True)
class Format:
    """One family: its name in reports, how a person calls it, and its functions.

    ``matches(path, head)`` sees the first bytes (up to `HEAD_BYTES`) and may open the file; ``read(path, sensor_size,
    policy)`` raises BadInput, one line, for a file of this family it cannot use.
    """

    name: str
    title: str
    matches: Callable[[Path, bytes], bool]
    read: Callable[[Path, SensorSize | None, Policy], EventFile]


HEAD_BYTES = 4096
LONG_NOTE = "the file is long: its events stay in it, and are read and checked when they are used"


class SizeUnknown(BadInput):
    """A file that can be read once the caller says how large its sensor is."""


def settled_size(stated: SensorSize | None, asked: SensorSize | None, source: str) -> SensorSize:
    """The sensor size from the file or from the caller; BadInput when they disagree, and SizeUnknown when neither knows."""
    size = stated or asked
    if size is None:
        raise SizeUnknown(f"{source}: the sensor size is not in the file: give it, such as sensor_size=(640, 480)")
    if stated is not None and asked is not None and stated != asked:
        raise BadInput(
            f"{source}: the file says {stated[0]}x{stated[1]} pixels but sensor_size is {asked[0]}x{asked[1]}: "
            "leave sensor_size out"
        )
    return size


def size_or_dsec(stated: SensorSize | None, asked: SensorSize | None, source: str, notes: list[str]) -> SensorSize:
    """As `settled_size`; where neither knows it is DSEC's, and a note says so."""
    if stated is None and asked is None:
        notes.append(f"sensor size {DSEC[0]}x{DSEC[1]} (DSEC) is assumed: the file does not say, and every event fits")
        return DSEC
    return settled_size(stated, asked, source)


def order_notes(late: int, largest_lag_us: int, lifted: bool) -> tuple[str, ...]:
    """What the policy for time did to `late` events; nothing when none was late."""
    if not late:
        return ()
    done = "each is lifted to the latest time before it" if lifted else "they are left as they are"
    return (f"{several(late, 'event time goes', 'event times go')} back, by at most {largest_lag_us} us: {done}",)


def outside_notes(outside: int, kept: int, size: SensorSize, source: str) -> tuple[str, ...]:
    """How many events were dropped, as they are not on the sensor; BadInput where none is left."""
    sensor = f"the sensor of {size[0]}x{size[1]}"
    if outside and not kept:
        raise BadInput(f"{source}: all of its events ({outside}) lie outside {sensor}: give the right sensor_size")
    return (f"{outside} of {outside + kept} events are dropped: they lie outside {sensor}",) if outside else ()


def file_of(name: str, source: Source, stream: EventStream, notes: Iterable[str]) -> EventFile:
    """A file as a whole, of the family `name`, once `stream` was read from its source or left in it."""
    if source.policy.drop_outside and isinstance(stream, StoredStream):
        for _ in source.blocks():  # to its end, so that what is dropped is counted
            pass
    outside = outside_notes(source.outside, len(stream), (source.width, source.height), str(source)) if source.outside else ()
    found = (*notes, *order_notes(source.late, source.largest_lag_us, source.ordered), *outside)
    return EventFile(name, stream, (*found, LONG_NOTE) if isinstance(stream, StoredStream) else found)


def whole_file(
    name: str,
    columns: Sequence[Any],
    size: SensorSize,
    path: Path,
    policy: Policy,
    notes: Iterable[str] = (),
    time: str = "t",
) -> EventFile:
    """A file whose columns x, y, t and p were read as a whole, checked; `time` is how it calls t, which may state the unit."""
    x, y, t, p = columns
    t, taken = in_microseconds(t, time)
    block = Block(str(path))
    stream = EventStream.checked_block((x, y, t, p), *size, block, policy)
    late = 0, 0
    if policy.monotonic != "raise":
        late = lags(np.asarray(t).astype(np.int64)[... if block.kept is None else block.kept])
    outside = outside_notes(len(t) - len(stream), len(stream), size, str(path))
    return EventFile(name, stream, (*notes, *taken, *order_notes(*late, policy.monotonic == "clamp"), *outside))


def column_names(names: Iterable[str], path: Path, kind: str) -> list[str]:
    """How the entries of an archive or record call x, y, t and p, plain letters before longer names; BadInput, with the `kind`
    of file, where one is missing or has several."""
    known = list(names)
    found = {key: [key] if key in known else called for key, called in names_of(known).items()}
    missing = [key for key, called in found.items() if len(called) != 1]
    if missing:
        held = " ".join(", ".join(sorted(known)).split())[:120] or "nothing"
        raise BadInput(f"{path}: holds {held}, lacks {', '.join(missing)}: {kind} has x, y, t and p")
    return [called[0] for called in found.values()]


# ------------------------------------------------------------------------------------------------------ sensor sizes in a file
_SIDES = (("width", "height"), ("sensor_width", "sensor_height"))
_BOTH = ("geometry", "resolution", "sensor_size", "sensor_resolution", "sensor_geometry")
SIZE_NAMES = (*_SIDES[0], *_SIDES[1], *_BOTH)
_PAIR = re.compile(r"\D{0,2}(\d{1,5})\s*[x,; ]\s*(\d{1,5})\D{0,2}")


def size_in(entries: Mapping[str, Any], source: str, notes: list[str]) -> SensorSize | None:
    """The sensor size that entries of the names in `SIZE_NAMES` (in either case) state: numbers, or text such as 1280x720; None
    without one.

    Of two numbers the larger is the width, as sensors lie; a note says so where it is the second. BadInput for what is no size.
    """
    entries = {name.lower(): value for name, value in entries.items()}
    for name in _BOTH:
        if name in entries:
            value = entries[name]
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            pair = _PAIR.fullmatch(text.strip()) if isinstance(text, str) else None
            first, second = pair.groups() if pair else np.ravel(text) if np.size(text) == 2 else (text, text)
            sides = _side(first, name, source), _side(second, name, source)
            if pair is None and sides[0] < sides[1]:
                height, width = sides
                notes.append(f"{name} {height}, {width} is taken for height and width: the sensor is {width}x{height}")
                return width, height
            return sides
    for names in _SIDES:
        if all(name in entries for name in names):
            return _side(entries[names[0]], names[0], source), _side(entries[names[1]], names[1], source)
    return None


def _side(value: Any, name: str, source: str) -> int:
    found = np.ravel(value.decode("latin-1") if isinstance(value, bytes) else value)
    text = str(found[0]).strip().removesuffix(".0") if len(found) == 1 else ""
    if not re.fullmatch(r"\d{1,9}", text):
        shown = " ".join(str(value).split())[:60]
        raise BadInput(f"{source}: {name} is not one whole number but {shown}: store the sensor size in pixels")
    return int(text)
