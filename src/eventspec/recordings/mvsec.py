"""MVSEC: one data.hdf5 a drive or flight, with the events and grey frames of a DAVIS346 pair. One camera is read."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput
from eventspec.events.formats import SensorSize, mvsec_h5, recognised
from eventspec.events.formats.hdf5 import holds
from eventspec.events.stream import STRICT, Policy
from eventspec.recordings.layout import Layout, Report, folders, listed, opened
from eventspec.recordings.parts import Contents, imu_of, together
from eventspec.video.stored import read_clip

NAME = "mvsec"
SUFFIXES = frozenset({".hdf5", ".h5"})
TREE = """\
MVSEC/                               one folder, or one for each scene, or one file alone
  <sequence>_data.hdf5               e.g. indoor_flying1, outdoor_day1, outdoor_night1, motorcycle1
    davis/left/events                float64 [E, 4]: x, y, Unix seconds, polarity -1 or 1
    davis/left/image_raw             uint8 [K, 260, 346], and
    davis/left/image_raw_ts          float64 [K] Unix seconds: both missing in some right cameras
    davis/left/imu                   float64 [N, 6] acceleration and rotation, and imu_ts [N]: may be missing
  (not read: <sequence>_gt.hdf5, .bag files, calibration, velodyne, visensor)"""


def data_files(path: Path) -> list[Path]:
    """The data files at or below a path, known by their content, in order of name."""
    if not path.is_dir():
        return [path] if path.is_file() and _is_data(path) else []
    found = (child for folder in folders(path, 1) for child in listed(folder))
    return [child for child in found if child.suffix.lower() in SUFFIXES and child.is_file() and _is_data(child)]


def read_data(path: Path, sensor_size: SensorSize | None = None, policy: Policy = STRICT) -> Contents:
    """Events, frames and the IMU of a data file. Events and frames stay in it where they are long."""
    found = mvsec_h5.read(path, sensor_size, policy)
    video, notes = None, found.notes
    if found.frames is not None:
        video, notes = read_clip(*found.frames, str(path), notes)
    imu, more = imu_of(found.imu, str(path))
    return together(path, found.events, video, (*notes, *more))._replace(imu=imu)


def inspect(path: Path) -> Report:
    return opened(data_files(path), path, read_data, _lacks, "<sequence>_data.hdf5")


def _lacks(path: Path) -> list[str]:
    camera = next(camera for camera in mvsec_h5.CAMERAS if holds(path, (f"{camera}/events",)))
    return [name for name in (f"{camera}/image_raw", f"{camera}/image_raw_ts") if not holds(path, (name,))]


def _is_data(path: Path) -> bool:
    try:
        return recognised(path) is mvsec_h5.FORMAT
    except BadInput:  # empty or unreadable
        return False


LAYOUT = Layout(NAME, "MVSEC", TREE, data_files, inspect)
