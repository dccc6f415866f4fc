"""Metavision's HDF5: CD/events, records of x, y, p and t in us; the root's attributes say what a RAW header would.

The SDK packs them with ECF, a filter of its own. h5py reads it with Prophesee's plugin; without that, the package evlib decodes
the file as a whole. Files without ECF, or packed with deflate, need nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.family import EventFile, Format, SensorSize, policy_notes
from eventspec.events.formats.hdf5 import MAGIC, EcfMissing, H5Source, dataset, h5_file, holds, opened_h5
from eventspec.events.formats.prophesee import Header
from eventspec.events.formats.sequential import Columns
from eventspec.events.stream import BLOCK, EventStream, Monotonic

NAME = "metavision-h5"
EVENTS, TRIGGERS = "CD/events", "EXT_TRIGGER/events"
FIELDS = ("x", "y", "p", "t")


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and bool(holds(path, (EVENTS,)))


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """Read the file; BadInput when it is damaged, is packed with a filter that is not there, or holds other columns."""

    def table(file: Any) -> RecordTable:
        return RecordTable(dataset(file, EVENTS, path, fields=FIELDS))

    notes: list[str] = []
    with opened_h5(path) as file:
        if _has_triggers(file, path):
            notes.append("external trigger events are not read")
        attributes = Header(_attributes(file, path), 0)
        try:
            records = table(file)
        except EcfMissing as missing:
            count, refusal = len(file[EVENTS]), missing
        else:
            source = H5Source(path, attributes.size(path, sensor_size, notes), monotonic, table, records.count)
            return h5_file(NAME, source, records, path, tuple(notes))
    columns = _through_evlib(path, count, refusal)
    notes.append("the events are decoded by evlib, all of them at once")
    width, height = attributes.size(path, sensor_size, notes)
    stream = EventStream.checked(*columns, width, height, source=str(path), monotonic=monotonic)
    return EventFile(NAME, stream, (*notes, *policy_notes(columns.t, monotonic)))


def _through_evlib(path: Path, count: int, refusal: BadInput) -> Columns:
    """The columns of a file packed with ECF; the refusal where evlib is not installed."""
    try:
        import evlib
    except ImportError:
        raise refusal from None
    try:
        rows = evlib.load_events(str(path)).collect()
        x, y, p = (rows[name].to_numpy() for name in ("x", "y", "polarity"))
        t = rows["t"].dt.total_microseconds().to_numpy()
    except Exception as error:  # from its Rust and from polars, without a class in common
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: evlib cannot decode the events ({reason}): convert the file to RAW or DAT") from None
    if len(t) != count:
        raise BadInput(f"{path}: evlib decodes {len(t)} of {count} events: convert the file to RAW or DAT")
    return Columns(x, y, t, p)


def _has_triggers(file: Any, path: Path) -> bool:
    try:
        return TRIGGERS in file and len(dataset(file, TRIGGERS, path, fields=("p", "t"))) > 0
    except EcfMissing:  # nobody packs nothing
        return True


def _attributes(file: Any, path: Path) -> dict[str, str]:
    """The root's attributes as text, by their names in lower case."""
    found = {}
    for name, value in file.attrs.items():
        if isinstance(value, bytes | str | int | np.integer):
            found[str(name).lower()] = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        elif name.lower() == "geometry":
            raise BadInput(f"{path}: the attribute geometry is {value!r}: write it as WIDTHxHEIGHT")
    return found


class RecordTable:
    """Events as records of one dataset."""

    at_once = BLOCK

    def __init__(self, records: Any) -> None:
        self._records, self.count = records, len(records)

    def rows(self, first: int, last: int) -> Columns:
        rows = self._records[first:last]
        return Columns(rows["x"], rows["y"], rows["t"].astype(np.int64), rows["p"])

    def times(self, first: int, last: int) -> np.ndarray[Any, np.dtype[Any]]:
        times: np.ndarray[Any, np.dtype[Any]] = self._records[first:last]["t"].astype(np.int64)
        return times

    def near(self, time_us: int) -> tuple[int, int]:
        return 0, self.count


FORMAT = Format(NAME, "Metavision HDF5", matches, read)
