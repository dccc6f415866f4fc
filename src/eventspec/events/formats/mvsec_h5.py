"""MVSEC's data.hdf5: davis/left/events float64 [E, 4] of x, y, Unix seconds and polarity -1 or 1, and grey frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.family import EventFile, Format, SensorSize, settled_size
from eventspec.events.formats.hdf5 import MAGIC, Table, dataset, h5_file, holds, opened_h5
from eventspec.events.formats.sensors import SENSORS
from eventspec.events.formats.source import Columns
from eventspec.events.stream import Monotonic

NAME = "mvsec-hdf5"
CAMERAS = ("davis/left", "davis/right")
LARGEST_FRAMES = 1 << 28  # bytes of grey frames that are read; a recording (`recordings.mvsec`) leaves more in the file

Array = np.ndarray[Any, np.dtype[Any]]


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and any(holds(path, (f"{camera}/events",)) for camera in CAMERAS)


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """Events and frames of one camera; frames that would not fit in memory are left out with a note."""
    found, camera = read_events(path, sensor_size, monotonic)
    grey = grey_frames(path, camera)
    if grey is None or not len(grey.times_us):
        return found
    size = len(grey.times_us) * grey.height * grey.width
    if size > min(LARGEST_FRAMES, 20 * path.stat().st_size):
        note = f"{len(grey.times_us)} grey frames are left out: they are {size} bytes; open the file as a recording"
        return replace(found, notes=(*found.notes, note))
    return replace(found, picture=grey.read, frame_shape=(grey.height, grey.width), frame_times_us=grey.times_us)


def read_events(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> tuple[EventFile, str]:
    """The events of the left camera, or of the right one where it is alone, without frames; and the camera's group."""

    def table(file: Any) -> Table:
        return _matrix(dataset(file, f"{found[0]}/events", path, 2), path)

    notes: list[str] = []
    with opened_h5(path) as file:
        found = [camera for camera in CAMERAS if f"{camera}/events" in file]
        if len(found) > 1:
            notes.append(f"two event cameras: only {found[0]} is read")
        size = settled_size(None, sensor_size or SENSORS["davis346"], str(path))
        return h5_file(NAME, path, file, table, size, monotonic, notes), found[0]


@dataclass(frozen=True, eq=False)
class GreyFrames:
    """A camera's frames, which stay in the file. times_us int64 [K], in order; places int64 [K]: where each is in `name`."""

    path: Path
    name: str
    times_us: Array
    places: Array
    height: int
    width: int

    def read(self, index: int) -> Array:
        """One frame uint8 [H, W, 3]."""
        with opened_h5(self.path) as file:
            return np.repeat(dataset(file, self.name, self.path, 3)[self.places[index]][..., None], 3, axis=2)


def grey_frames(path: Path, camera: str) -> GreyFrames | None:
    """The camera's frames, None without."""
    name = f"{camera}/image_raw"
    with opened_h5(path) as file:
        if name not in file or f"{name}_ts" not in file:
            return None
        images, seconds = dataset(file, name, path, 3), dataset(file, f"{name}_ts", path)
        unwritten = seconds.nbytes > path.stat().st_size  # times are read whole, and packed they are no smaller than a frame
        if images.dtype != np.uint8 or len(images) != len(seconds) or unwritten:
            raise BadInput(
                f"{path}: image_raw is {images.dtype} of shape {images.shape} with {len(seconds)} times: they must match"
            )
        _, height, width = images.shape
        zero = float(seconds[0]) if len(seconds) else 0.0
        times = _microseconds(seconds[...].astype(np.float64), zero, 0, path)
    order = np.argsort(times, kind="stable")
    return GreyFrames(path, name, times[order], order, height, width)


def _matrix(matrix: Any, path: Path) -> Table:
    """Events as the rows x, y, seconds, polarity of one matrix. Differences from the first time keep their full precision."""
    if matrix.shape[1] != 4 or matrix.dtype.kind != "f":
        raise BadInput(f"{path}: events is {matrix.dtype} of shape {matrix.shape}: MVSEC's is float64 with 4 columns")
    zero = float(matrix[0, 2]) if len(matrix) else 0.0

    def rows(first: int, last: int) -> Columns:
        x, y, t, p = matrix[first:last].T
        return Columns(x, y, _microseconds(t, zero, first, path), p)

    return Table(len(matrix), rows)


def _microseconds(seconds: Array, zero: float, first: int, path: Path) -> Array:
    """Unix seconds float64 [E] as microseconds int64; `first` is the place of the first one in the file."""
    bad = ~((seconds >= 0) & (seconds < 1e12))
    if bad.any() or not 0 <= zero < 1e12:
        index = int(np.argmax(bad)) if bad.any() else -first
        raise BadInput(f"{path}: time {first + index} is {seconds[index] if bad.any() else zero} s: mend or remove the event")
    return np.int64(round(zero * 1e6)) + np.rint((seconds - zero) * 1e6).astype(np.int64)


FORMAT = Format(NAME, "MVSEC data.hdf5", matches, read)
