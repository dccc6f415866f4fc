"""DSEC's events.h5: events/{x, y, t, p}, t_offset (us, added to t) and ms_to_idx, where each millisecond begins.

The data set's files are packed with Blosc, which h5py reads once the package hdf5plugin is there. They state no sensor size:
it is DSEC's 640x480 unless the caller or the file (as other programs in this layout, and our writer, do) says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats import hdf5
from eventspec.events.formats.family import EventFile, Format, SensorSize, size_or_dsec
from eventspec.events.stream import EventStream, Policy

NAME = "dsec-h5"
COLUMNS = {name: f"events/{name}" for name in ("x", "y", "t", "p")}
DTYPES = {"p": "<u1", "t": "<u4", "x": "<u2", "y": "<u2"}
LONGEST_US = 1 << 32  # t is 32 bits wide: 71.6 minutes


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(hdf5.MAGIC) and bool(hdf5.holds(path, tuple(COLUMNS.values())))


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    def table(file: Any) -> hdf5.Table:
        columns = {name: hdf5.dataset(file, place, path) for name, place in COLUMNS.items()}
        index = hdf5.dataset(file, "ms_to_idx", path) if "ms_to_idx" in file else None
        return hdf5.column_table(columns, path, offset_us or 0, index)

    notes: list[str] = []
    with hdf5.opened_h5(path) as file:
        stated = hdf5.stated_size(file, ("events",), sensor_size, path, notes)
        size = size_or_dsec(stated, sensor_size, str(path), notes)
        offset_us = hdf5.stated_offset(file, ("events",), path)
        if offset_us is None:
            notes.append("times are taken as they stand: there is no t_offset")
        return hdf5.h5_file(NAME, path, file, table, size, policy, notes)


def write(path: Path, stream: EventStream) -> None:
    """Write the stream in this layout, with Blosc when hdf5plugin is there and deflate when not.

    The caller chooses and renames the path. BadInput when the events last longer than t can say, or are not in order.
    """
    span = stream.span
    offset_us = span.start_us if span is not None else 0
    if not stream.ordered:
        raise BadInput("DSEC's layout needs events in order of time: read them with --monotonic clamp")
    if span is not None and span.duration_us > LONGEST_US:
        raise BadInput(f"the events last {span.duration_us} us, DSEC's layout has room for {LONGEST_US}: write cuts of it")
    with hdf5.written_h5(path) as file:
        group = file.create_group("events")
        hdf5.write_columns(group, stream, DTYPES, offset_us, **_packing())
        group.attrs["width"], group.attrs["height"] = np.int64(stream.width), np.int64(stream.height)
        file.create_dataset("t_offset", data=np.int64(offset_us), track_times=False)
        index = _index(group["t"], span.duration_us if span is not None else 0)
        file.create_dataset("ms_to_idx", data=index, track_times=False)


def _index(times: Any, duration_us: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """For each millisecond up to the last event's: the first event at or after its beginning."""
    milliseconds = np.arange((duration_us + 999) // 1000, dtype=np.int64) * 1000
    places = np.zeros(len(milliseconds), np.uint64)
    for start in range(0, len(times), 1 << 20):  # events before each millisecond, counted block by block
        places += np.searchsorted(times[start : start + (1 << 20)], milliseconds).astype(np.uint64)
    return places


def _packing() -> dict[str, Any]:
    try:
        import hdf5plugin
    except ImportError:
        return {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    return dict(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))


FORMAT = Format(NAME, "DSEC events.h5", matches, read)
