"""MVSEC's data.hdf5: davis/left/events float64 [E, 4] of x, y, Unix seconds and polarity -1 or 1, grey frames, and the IMU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.columns import LOOKED_AT
from eventspec.events.formats.family import MOST_SAMPLES, EventFile, Format, Inertial, SensorSize, settled_size
from eventspec.events.formats.hdf5 import MAGIC, Table, dataset, h5_file, holds, opened_h5, stated_size
from eventspec.events.formats.sensors import SENSORS
from eventspec.events.stored import Columns
from eventspec.events.stream import Array, Policy

NAME = "mvsec-hdf5"
CAMERAS = ("davis/left", "davis/right")
IMU = (("imu", "imu_ts"), ("imu/data", "imu/ts"))
"""Of a camera: samples [N, 6] and their times."""
GRAVITY = 9.81


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC) and any(holds(path, (f"{camera}/events",)) for camera in CAMERAS)


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """Events, grey frames and the IMU of the left camera, or of the right one where it is alone."""

    def table(file: Any) -> Table:
        return _matrix(dataset(file, f"{found[0]}/events", path, 2), path)

    notes: list[str] = []
    with opened_h5(path) as file:
        found = [camera for camera in CAMERAS if f"{camera}/events" in file]
        if len(found) > 1:
            notes.append(f"two event cameras: only {found[0]} is read")
        stated = stated_size(file, ("davis", found[0], f"{found[0]}/events"), sensor_size, path, notes)
        size = stated if stated is not None else sensor_size or SENSORS["davis346"]
        events = h5_file(NAME, path, file, table, settled_size(size, sensor_size, str(path)), policy, notes)
        events = replace(events, imu=_imu(file, found[0], path, notes := list(events.notes)), notes=tuple(notes))
        name = f"{found[0]}/image_raw"
        if name not in file or f"{name}_ts" not in file:
            lacks = f"{found[0]} has no image_raw with image_raw_ts: the recording has events only"
            return replace(events, notes=(*events.notes, lacks))
        images, seconds = dataset(file, name, path, 3), dataset(file, f"{name}_ts", path)
        unwritten = seconds.nbytes > path.stat().st_size  # times are read whole, and packed they are no smaller than a frame
        if images.dtype != np.uint8 or len(images) != len(seconds) or unwritten:
            what = f"image_raw is {images.dtype} of shape {images.shape} with {len(seconds)} times"
            raise BadInput(f"{path}: {what}: they must match")
        shape = images.shape[1:]
        times = _microseconds(seconds[...].astype(np.float64), 0, path)
    order = np.argsort(times, kind="stable")

    def picture(place: int) -> Array:
        with opened_h5(path) as file:
            return np.repeat(dataset(file, name, path, 3)[order[place]][..., None], 3, axis=2)

    return replace(events, frames=(picture, shape, times[order]))


def _imu(file: Any, camera: str, path: Path, notes: list[str]) -> Inertial | None:
    """The IMU of a camera, in the units of ROS's sensor_msgs/Imu: m/s^2 and rad/s. Which three columns are acceleration
    the file does not say, and gravity does: it is those whose usual length is nearer to it."""
    names = next((pair for pair in IMU if all(f"{camera}/{name}" in file for name in pair)), None)
    if names is None:
        notes += [f"{camera}/imu has no times imu_ts: it is left out"] if f"{camera}/imu" in file else []
        return None
    matrix, seconds = dataset(file, f"{camera}/{names[0]}", path, 2), dataset(file, f"{camera}/{names[1]}", path)
    if matrix.shape != (len(seconds), 6) or matrix.dtype.kind != "f" or len(seconds) > MOST_SAMPLES:
        what = f"{names[0]} is {matrix.dtype} of shape {matrix.shape} with {len(seconds)} times"
        notes.append(f"{what}, MVSEC's is float64 with 6 columns and a time a row: the IMU is left out")
        return None
    stamps = seconds[...].astype(np.float64)
    if not np.isfinite(stamps).all():  # no model reads them: events and frames are as good as ever
        notes.append(f"{names[1]} holds times that are no numbers: the IMU is left out")
        return None
    samples, times = matrix[...], _microseconds(stamps, 0, path)
    usual = [
        float(np.nanmedian(np.linalg.norm(part, axis=1))) if len(part) else 0.0 for part in (samples[:, :3], samples[:, 3:])
    ]
    turned = abs(usual[1] - GRAVITY) < abs(usual[0] - GRAVITY)
    if turned:
        notes.append("of the IMU's columns the last three are taken for acceleration: they are as long as gravity")
    parts = (samples[:, 3:], samples[:, :3]) if turned else (samples[:, :3], samples[:, 3:])
    return times, *parts


def _matrix(matrix: Any, path: Path) -> Table:
    """Events as the rows x, y, seconds, polarity of one matrix."""
    if matrix.shape[1] != 4 or matrix.dtype.kind != "f":
        raise BadInput(f"{path}: events is {matrix.dtype} of shape {matrix.shape}: MVSEC's is float64 with 4 columns")
    seconds = matrix[:LOOKED_AT, 2]
    if len(seconds) > 1 and (seconds == np.rint(seconds)).all():
        raise BadInput(f"{path}: the times of events are whole numbers, such as {seconds[-1]:.0f}: MVSEC's are seconds")

    def rows(first: int, last: int) -> Columns:
        x, y, t, p = matrix[first:last].T
        return Columns(x, y, _microseconds(t, first, path), p)

    return Table(len(matrix), rows, lambda place: int(rows(place, place + 1).t[0]))


def _microseconds(seconds: Array, first: int, path: Path) -> Array:
    """Unix seconds float64 [E] as microseconds int64; `first` is the place of the first one in the file."""
    bad = ~((seconds >= 0) & (seconds < 1e12))
    if bad.any():
        index = int(np.argmax(bad))
        raise BadInput(f"{path}: time {first + index} is {seconds[index]} s: mend or remove the event")
    return np.rint(seconds * 1e6).astype(np.int64)


FORMAT = Format(NAME, "MVSEC data.hdf5", matches, read)
