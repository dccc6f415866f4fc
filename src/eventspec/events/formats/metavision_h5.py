"""Metavision's HDF5: CD/events, records of x, y, p and t in us; the root's attributes say what a RAW header would.

The SDK packs them with ECF, a filter of its own. h5py reads it with Prophesee's plugin; without that, the package evlib decodes
the file as a whole. Files without ECF, or packed with deflate, need nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.family import EventFile, Format, SensorSize, settled_size, whole_file
from eventspec.events.formats.hdf5 import MAGIC, EcfMissing, Table, dataset, h5_file, holds, opened_h5, stated_size
from eventspec.events.formats.prophesee import Header
from eventspec.events.stored import Columns
from eventspec.events.stream import Policy

NAME = "metavision-h5"
EVENTS, TRIGGERS = "CD/events", "EXT_TRIGGER/events"
FIELDS = ("x", "y", "p", "t")


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and bool(holds(path, (EVENTS,)))


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    def table(file: Any) -> Table:
        records = dataset(file, EVENTS, path, fields=FIELDS)

        def rows(first: int, last: int) -> Columns:
            found = records[first:last]
            return Columns(found["x"], found["y"], found["t"].astype(np.int64), found["p"])

        return Table(len(records), rows, lambda place: int(records[place]["t"]))

    notes: list[str] = []
    with opened_h5(path) as file:
        if _has_triggers(file, path):
            notes.append("external trigger events are not read")
        attributes = Header(_attributes(file), 0)
        stated = stated_size(file, ("CD", EVENTS), sensor_size, path, notes)
        size = settled_size(stated, sensor_size, str(path)) if stated is not None else attributes.size(path, sensor_size, notes)
        try:
            table(file)
        except EcfMissing as missing:
            count, refusal = len(file[EVENTS]), missing
        else:
            return h5_file(NAME, path, file, table, size, policy, notes)
    columns = _through_evlib(path, count, refusal)
    notes.append("the events are decoded by evlib, all of them at once")
    return whole_file(NAME, columns, size, path, policy, notes)


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
    except EcfMissing:  # an empty dataset is not packed
        return True


def _attributes(file: Any) -> dict[str, str]:
    """The root's attributes as text, by their names in lower case."""
    found = {}
    for name, value in file.attrs.items():
        if isinstance(value, bytes | str | int | np.integer):
            found[str(name).lower()] = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return found


FORMAT = Format(NAME, "Metavision HDF5", matches, read)
