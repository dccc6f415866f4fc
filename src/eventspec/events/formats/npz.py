"""Events in a numpy archive: arrays x, y, t, p [E], or of the usual longer names, and optionally width and height or another
of `SIZE_NAMES`. No pickle is loaded."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from eventspec.core import BadInput
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
from eventspec.events.stream import Array, EventStream, Monotonic

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


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            chosen = column_names(names, path, "an events archive")
            sides = {name.lower(): name for name in names if name.lower() in SIZE_NAMES}
            wanted = {*chosen, *sides.values()}
            unpacked, packed = sum(archive.getinfo(names[name]).file_size for name in wanted), path.stat().st_size
            if unpacked > max(LEAST_BYTES, LARGEST_RATIO * packed):
                problem = f"{packed} bytes that unpack to {unpacked} are no recorded events"
                raise BadInput(f"{path}: {problem}: write them as .h5, which is read in parts")
            columns = [_member(archive, name, path) for name in chosen]
            stated = {side: _member(archive, name, path) for side, name in sides.items()}
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: the archive is damaged or cut short ({reason}): copy or write it again") from None
    notes: list[str] = []
    size = settled_size(size_in(stated, str(path), notes), sensor_size, str(path))
    return whole_file(NAME, columns, size, path, monotonic, notes, chosen[2])


def write(path: Path, stream: EventStream) -> None:
    """Write the stream as x, y uint16, t int64, p uint8, width, height; the caller chooses and renames the path."""
    with path.open("wb") as file:
        np.savez_compressed(file, x=stream.x, y=stream.y, t=stream.t, p=stream.p, width=stream.width, height=stream.height)


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    """One array, after its header was compared with the size that the archive stores."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        try:
            shape, dtype, header = npy_header(file)
        except ValueError as error:
            raise BadInput(f"{path}: {name} has no readable numpy header ({error}): write the archive again") from None
        if dtype.hasobject:
            raise BadInput(f"{path}: {name} is a pickled object array, which is never loaded: store plain numbers")
        size = math.prod(shape) * dtype.itemsize
        if header + size != info.file_size:
            held = info.file_size - header
            raise BadInput(f"{path}: {name} claims {size} bytes but the archive holds {held}: write it again")
        return np.frombuffer(file.read(size), dtype).reshape(shape)


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and length in bytes of a .npy header; ValueError when it is not one. No data is read."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"numpy format version {version[0]}.{version[1]}")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = parse(file)
    except Exception as error:  # numpy runs a damaged header through Python's tokenizer, which has errors of its own
        raise ValueError(" ".join(str(error).split())[:100]) from None
    return shape, dtype, file.tell()


FORMAT = Format(NAME, "npz with x, y, t, p", matches, read)
