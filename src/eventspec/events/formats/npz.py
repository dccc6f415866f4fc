"""Events in a numpy archive: arrays x, y, t, p [E], or of the usual longer names, and optionally width and height or another
of `SIZE_NAMES`, and `t_unit` ("us", "ns", ...). No pickle is loaded."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.columns import UNIT_NAMES, time_name
from eventspec.events.formats.family import (
    SIZE_NAMES,
    EventFile,
    Format,
    SensorSize,
    column_names,
    settled_size,
    size_in,
    whole_file,
)
from eventspec.events.formats.npy import npy_array
from eventspec.events.stream import Array, EventStream, Policy

NAME = "npz"
# Archives are read whole. Real events need 1.5 bytes packed, and 32 as four columns of 64 bits.
LARGEST_RATIO = 40
LEAST_BYTES = 1 << 25  # that may be unpacked however small the archive is
# What zipfile and zlib raise on damaged archives; names that are no text are ValueErrors.
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, struct.error, KeyError)


def matches(path: Path, head: bytes) -> bool:
    """A zip archive whose members are numpy arrays."""
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except DAMAGE:
        return path.suffix == ".npz"  # torn: let `read` say so


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            chosen = column_names(names, path, "an events archive")
            wanted = {*chosen, *(name for name in names if name.lower() in (*SIZE_NAMES, *UNIT_NAMES))}
            unpacked, packed = sum(archive.getinfo(names[name]).file_size for name in wanted), path.stat().st_size
            if unpacked > max(LEAST_BYTES, LARGEST_RATIO * packed):
                problem = f"{packed} bytes that unpack to {unpacked} are no recorded events"
                raise BadInput(f"{path}: {problem}: write them as .h5, which is read in parts")
            entries = {name: _member(archive, name, path) for name in wanted}
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: the archive is damaged or cut short ({reason}): copy or write it again") from None
    notes = ["t_offset is not added: times are taken as they stand"] if "t_offset" in names else []
    size = settled_size(size_in(entries, str(path), notes), sensor_size, str(path))
    time = time_name(entries, chosen[2], str(path))
    return whole_file(NAME, [entries[name] for name in chosen], size, path, policy, notes, time)


def write(path: Path, stream: EventStream) -> None:
    """Write the stream as x, y uint16, t int64, p uint8, width, height, t_unit; the caller chooses and renames the path."""
    x, y, t, p = stream.x, stream.y, stream.t, stream.p
    with path.open("wb") as file:
        np.savez_compressed(file, x=x, y=y, t=t, p=p, width=stream.width, height=stream.height, t_unit="us")


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        return npy_array(file, info.file_size, f"{path}: {name}")


FORMAT = Format(NAME, "npz with x, y, t, p", matches, read)
