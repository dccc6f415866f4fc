"""Events in a .npy of plain numbers: a matrix [E, 4] of one of the usual orders, or records with fields x, y, t, p. No pickle.

A matrix does not name its columns: the order is the one of `columns.ORDERS` that its values can have, and where they can have
several, it is refused.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.columns import order_of, places_in
from eventspec.events.formats.family import EventFile, Format, SensorSize, column_names, settled_size, whole_file
from eventspec.events.formats.npz import npy_header
from eventspec.events.stream import BLOCK, Monotonic

NAME = "npy"
MAGIC = b"\x93NUMPY"
REMEDY = "save the columns by their names, with np.savez(path, x=x, y=y, t=t, p=p)"


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and not pickled(head)


def pickled(head: bytes) -> bool:
    """Whether the array of this header holds objects, or the header is damaged."""
    try:
        return npy_header(io.BytesIO(head))[1].hasobject
    except ValueError:
        return True


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    with path.open("rb") as file:
        shape, dtype, start = npy_header(file)
    claimed, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - start
    if claimed != held:
        raise BadInput(f"{path}: claims {claimed} bytes, and {held} are there: copy or write it again")
    array = np.load(path, allow_pickle=False)
    what = f"{path}: a {dtype.name} array of shape {shape}"
    if dtype.names is not None and array.ndim == 1:
        names = column_names(dtype.names, path, "a record of an event")
        size = settled_size(None, sensor_size, str(path))
        return whole_file(NAME, [array[name] for name in names], size, path, monotonic, (), names[2])
    if array.ndim != 2 or 4 not in shape or dtype.kind not in "iuf":
        raise BadInput(f"{what}: events are numbers [E, 4], or records x, y, t, p: {REMEDY}")
    rows: Any = array if shape[1] == 4 else array.T
    order, certain = order_of(rows[:BLOCK].astype(np.float64)) if len(rows) else ("xytp", True)
    if not certain:
        likely = f" ({' '.join(order)} is likely)" if order else ""
        raise BadInput(f"{what}: its values do not tell which columns are x, y, t and p{likely}: {REMEDY}")
    size = settled_size(None, sensor_size, str(path))
    t, x, y, p = (rows[:, place] for place in places_in(order))
    taken = f"the columns are taken for {' '.join(order)}: their values fit no other order"
    return whole_file(NAME, (x, y, t, p), size, path, monotonic, [taken])


FORMAT = Format(NAME, ".npy with x, y, t, p", matches, read)
