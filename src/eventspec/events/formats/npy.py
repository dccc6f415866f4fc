"""Events in a .npy of plain numbers: a matrix [E, 4] of one of the usual orders, or records with fields x, y, t, p. No pickle.

A matrix does not name its columns: the order is the one of `columns.ORDERS` that its values can have, and where they can have
several, it is refused.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import IO, Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.columns import order_of, places_in
from eventspec.events.formats.family import EventFile, Format, SensorSize, column_names, settled_size, whole_file
from eventspec.events.stream import BLOCK, Array, Policy

NAME = "npy"
MAGIC = b"\x93NUMPY"
REMEDY = "save the columns by their names, with np.savez(path, x=x, y=y, t=t, p=p)"


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and not pickled(head)


def pickled(head: bytes) -> bool:
    """Whether the array of this header holds objects, or the header is damaged."""
    try:
        return npy_header(io.BytesIO(head))[2].hasobject
    except ValueError:
        return True


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    with path.open("rb") as file:
        array = npy_array(file, path.stat().st_size, str(path))
    what = f"{path}: a {array.dtype.name} array of shape {array.shape}"
    if array.dtype.names is not None and array.ndim == 1:
        names = column_names(array.dtype.names, path, "a record of an event")
        size = settled_size(None, sensor_size, str(path))
        return whole_file(NAME, [array[name] for name in names], size, path, policy, (), names[2])
    if array.ndim != 2 or 4 not in array.shape or array.dtype.kind not in "iuf":
        raise BadInput(f"{what}: events are numbers [E, 4], or records x, y, t, p: {REMEDY}")
    rows = array if array.shape[1] == 4 else array.T
    order, certain = order_of(rows[:BLOCK].astype(np.float64)) if len(rows) else ("xytp", True)
    if not certain:
        likely = f" ({' '.join(order)} is likely)" if order else ""
        raise BadInput(f"{what}: its values do not tell which columns are x, y, t and p{likely}: {REMEDY}")
    size = settled_size(None, sensor_size, str(path))
    t, x, y, p = (rows[:, place] for place in places_in(order))
    taken = f"the columns are taken for {' '.join(order)}: their values fit no other order"
    return whole_file(NAME, (x, y, t, p), size, path, policy, [taken])


def npy_array(file: IO[bytes], size: int, what: str) -> Array:
    """The array of a .npy of `size` bytes, called `what`; BadInput unless it is plain numbers, as many as are there."""
    try:
        shape, fortran, dtype = npy_header(file)
        if dtype.hasobject:
            raise BadInput(f"{what} is a pickled object array, which is never loaded: store plain numbers")
        claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
        if claimed != held:
            raise BadInput(f"{what} claims {claimed} bytes but holds {held}: copy or write it again")
        return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
    except ValueError as error:  # also a shape or a type that no array has
        raise BadInput(f"{what} is no readable numpy array ({error}): copy or write it again") from None


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis varies fastest, and dtype of a .npy; ValueError when it is not one. No data is read."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"numpy format version {version[0]}.{version[1]}")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return parse(file)
    except Exception as error:  # numpy runs a damaged header through Python's tokenizer, which has errors of its own
        raise ValueError(" ".join(str(error).split())[:100]) from None


FORMAT = Format(NAME, ".npy with x, y, t, p", matches, read)
