"""events.h5 of the native recording folder: datasets x, y uint16, t int64, p uint8 [E]; attributes width, height."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.events.formats import hdf5
from eventspec.events.formats.family import EventFile, Format, SensorSize, settled_size
from eventspec.events.stream import EventStream, Policy

NAME = "native-h5"
DTYPES = {"x": "<u2", "y": "<u2", "t": "<i8", "p": "<u1"}


def matches(path: Path, head: bytes) -> bool:
    """An HDF5 file with x, y, t and p at its root, or one that is torn: `read` says so."""
    return head.startswith(hdf5.MAGIC) and hdf5.holds(path, tuple(DTYPES)) is not False


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    def table(file: Any) -> hdf5.Table:
        columns = {name: hdf5.dataset(file, name, path) for name in DTYPES}
        return hdf5.column_table(columns, path, hdf5.stated_offset(file, (), path) or 0)

    with hdf5.opened_h5(path) as file:
        notes: list[str] = []
        size = settled_size(hdf5.stated_size(file, (), sensor_size, path, notes), sensor_size, str(path))
        return hdf5.h5_file(NAME, path, file, table, size, policy, notes)


def write(path: Path, stream: EventStream) -> None:
    """Write the stream; the same stream gives the same bytes. The caller chooses and renames the path."""
    with hdf5.written_h5(path) as file:
        hdf5.write_columns(file, stream, DTYPES, 0, compression="gzip", compression_opts=6, shuffle=True)
        file.attrs["width"] = np.int64(stream.width)
        file.attrs["height"] = np.int64(stream.height)


FORMAT = Format(NAME, "native events.h5", matches, read)
