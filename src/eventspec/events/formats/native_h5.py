"""events.h5 of the native recording folder: datasets x, y uint16, t int64, p uint8 [E]; attributes width, height."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.family import EventFile, Format, SensorSize, settled_size
from eventspec.events.stream import EventStream, Monotonic

NAME = "native-h5"
MAGIC = b"\x89HDF\r\n\x1a\n"
COLUMNS = ("x", "y", "t", "p")
CHUNK = 1 << 16  # events a chunk
# Deflate cannot shrink data more than 1032:1, so a dataset that claims more than this was not written by anyone honest.
LARGEST_RATIO = 1100


def matches(path: Path, head: bytes) -> bool:
    """An HDF5 file with x, y, t and p at its root."""
    if not head.startswith(MAGIC):
        return False
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return all(name in file for name in COLUMNS)
    except OSError:
        return path.name == "events.h5"  # torn: let `read` say so


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """Read the file; BadInput when it is damaged, points outside itself, or holds columns that do not fit."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            columns = [_column(file, name, path) for name in COLUMNS]
            stated = None
            if "width" in file.attrs and "height" in file.attrs:
                stated = (_side(file.attrs["width"], "width", path), _side(file.attrs["height"], "height", path))
    except (OSError, RuntimeError, KeyError) as error:
        raise BadInput(f"{path}: the HDF5 file is damaged or cut short ({_short(error)}): copy or write it again") from None
    width, height = settled_size(stated, sensor_size, str(path))
    x, y, t, p = columns
    return EventFile(NAME, EventStream.checked(x, y, t, p, width, height, source=str(path), monotonic=monotonic))


def write(path: Path, stream: EventStream) -> None:
    """Write the stream; the same stream gives the same bytes. The caller chooses and renames the path."""
    import h5py

    columns = (("x", stream.x, "<u2"), ("y", stream.y, "<u2"), ("t", stream.t, "<i8"), ("p", stream.p, "<u1"))
    with h5py.File(path, "w", track_order=False) as file:
        for name, values, dtype in columns:
            chunks = (max(1, min(CHUNK, len(values))),)
            file.create_dataset(
                name,
                data=values.astype(dtype, copy=False),
                maxshape=(None,),
                chunks=chunks,
                compression="gzip",
                compression_opts=6,
                shuffle=True,
                track_times=False,  # creation times would make every file different
            )
        file.attrs["width"] = np.int64(stream.width)
        file.attrs["height"] = np.int64(stream.height)


def _column(file: Any, name: str, path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    import h5py

    link = file.get(name, getlink=True)
    data = file[name] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise BadInput(f"{path}: {name} is not a dataset stored in the file itself: write x, y, t and p as plain datasets")
    if data.nbytes > LARGEST_RATIO * data.id.get_storage_size() + CHUNK * 8:
        raise BadInput(f"{path}: {name} claims {data.nbytes} bytes but stores {data.id.get_storage_size()}: write it again")
    values: np.ndarray[Any, np.dtype[Any]] = data[...]
    return values


def _side(value: Any, name: str, path: Path) -> int:
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "iu":
        raise BadInput(f"{path}: attribute {name} is not one whole number: store the sensor size in pixels")
    return int(number.reshape(-1)[0])


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


FORMAT = Format(NAME, "native events.h5", matches, read)
