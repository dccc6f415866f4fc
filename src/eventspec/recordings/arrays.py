"""Events and frames that a program holds as arrays. Everything in them is checked, nothing of the right dtype is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eventspec.core import BadInput, FrameRows
from eventspec.events.formats import SensorSize
from eventspec.events.formats.columns import column_of, in_microseconds, names_of, time_name
from eventspec.events.formats.family import outside_notes, settled_size
from eventspec.events.stream import Block, EventStream, Policy
from eventspec.video.clip import VideoClip
from eventspec.video.stored import StoredFrames

Events = EventStream | Sequence[ArrayLike] | np.ndarray[Any, np.dtype[Any]] | Mapping[str, ArrayLike]
WANTED = "give (x, y, t, p), a structured array or a mapping with these names, or an EventStream"


def stream_of(events: Events, sensor: SensorSize | None, policy: Policy, source: str) -> tuple[EventStream, tuple[str, ...]]:
    """Events as a stream, and notes. Columns [E] of numbers, as a sequence x, y, t, p or under their usual names (as text files
    have them); t in whole microseconds, in nanoseconds where they are too large for that, or in the unit that its name states
    (``t_s``); p bool, {0, 1} or {-1, 1}. `sensor` (width, height) may lack for an `EventStream` only.
    """
    if isinstance(events, EventStream):
        settled_size((events.width, events.height), sensor, source)
        return events, ()
    (x, y, t, p), name = _columns(events, source)
    if sensor is None:
        raise BadInput(f"{source}: the sensor size is not known: give sensor=(width, height)")
    t, notes = _times(t, name)
    stream = EventStream.checked_block((x, y, t, p), *sensor, Block(source), policy)
    return stream, (*notes, *outside_notes(len(t) - len(stream), len(stream), sensor, source))


def _times(times: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """As `in_microseconds`, but for fractions without a unit: a program that counts seconds knows it, and is told to say so."""
    try:
        column = np.asarray(times)
    except ValueError:  # which the check of the columns says in words
        return times, ()
    stated = column_of(name)
    unsaid = (stated is None or not stated[1]) and column.dtype.kind == "f"
    return (column, ()) if unsaid and (column != np.floor(column)).any() else in_microseconds(column, name)


def clip_of(frames: Any, times_us: Any, source: str) -> tuple[VideoClip, tuple[str, ...]]:
    """Frames uint8 [K, H, W, 3] RGB or [K, H, W] grey as a clip, with whole microseconds [K] or what can only be nanoseconds,
    and notes; BadInput for anything else."""
    if times_us is None:
        raise BadInput(f"{source}: frames need times_us: one whole number of microseconds a frame, on the clock of the events")
    try:
        rows: FrameRows = frames if isinstance(frames, StoredFrames) else np.asarray(frames)
        times = np.asarray(times_us)
    except ValueError as error:
        raise BadInput(f"{source}: the frames or their times are no array ({error}): give frames of one size") from None
    if isinstance(rows, np.ndarray) and rows.ndim == 3 and rows.dtype == np.uint8:
        rows = np.repeat(rows[..., None], 3, axis=3)
    if times.size == 0 and times.ndim == 1:
        times = times.astype(np.int64)
    times, notes = _times(times, "t")
    return VideoClip.checked(rows, times, source=source), tuple(f"of the frames, {note}" for note in notes)


def _columns(events: Any, source: str) -> tuple[list[Any], str]:
    """x, y, t and p, in this order, and how t is called."""
    names = events.dtype.names if isinstance(events, np.ndarray) else tuple(events) if isinstance(events, Mapping) else None
    if names is not None:
        found = names_of(names)
        wrong = [key for key, fits in found.items() if len(fits) != 1]
        if wrong:
            raise BadInput(f"{source}: the events have {', '.join(map(str, names))}: one field for {wrong[0]} is needed")
        time = time_name(events if isinstance(events, Mapping) else {}, found["t"][0], source)
        return [events[fits[0]] for fits in found.values()], time
    if isinstance(events, np.ndarray) or not isinstance(events, Sequence) or len(events) != 4:
        what = f"an array of shape {events.shape}" if isinstance(events, np.ndarray) else f"a {type(events).__name__}"
        raise BadInput(f"{source}: the events are {what}: {WANTED}")
    return list(events), "t"
