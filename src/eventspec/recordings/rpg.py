"""The layout of UZH's event-camera data set: a folder a sequence, with the events of a DAVIS as text and its images listed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats import SensorSize, open_events
from eventspec.events.formats.columns import Unit
from eventspec.events.stream import STRICT, Policy
from eventspec.recordings.parts import Contents, inside, together
from eventspec.video.clip import VideoFile
from eventspec.video.images import image_paths, lines_of, read_images

EVENTS, IMAGES, IMAGE_FOLDER = "events.txt", "images.txt", "images"
LONGEST_S = 1e12
SECONDS = Unit(1e6, "the data set has them")


def is_sequence(folder: Path) -> bool:
    return (folder / EVENTS).is_file() or (folder / IMAGES).is_file()


def is_part(path: Path) -> bool:
    """Whether a path names the events of a sequence that has images too: then the sequence is meant."""
    return path.name == EVENTS and (path.parent / IMAGES).is_file() and path.is_file()


def read_sequence(folder: Path, sensor_size: SensorSize | None = None, policy: Policy = STRICT) -> Contents:
    """Events and frames of a sequence, on the clock of its two lists. Both stay in their files where they are long.

    The sensor is as large as its images unless `sensor_size` says otherwise. A sequence that lacks events or images, or some of
    the listed images, is read without them and a note says so.
    """
    notes: list[str] = []
    seen = _frames(folder, notes)
    video = None if seen is None else seen.clip
    events = None
    if (folder / EVENTS).is_file():
        if sensor_size is None and video is not None:
            sensor_size = video.width, video.height
            notes.append(f"sensor size {video.width}x{video.height} is that of the images: a DAVIS has both on one chip")
        found = open_events(folder / EVENTS, sensor_size, *policy)
        events = found.events
        notes += found.notes
    else:
        notes.append(f"{EVENTS} is not there: the recording has frames only")
    if seen is not None:
        notes += seen.notes
    return together(folder, events, video, notes)


def _frames(folder: Path, notes: list[str]) -> VideoFile | None:
    listed = folder / IMAGES
    if not listed.is_file():
        if (folder / IMAGE_FOLDER).is_dir() and image_paths(folder / IMAGE_FOLDER):
            raise BadInput(f"{folder}: has images but no {IMAGES}: it has the times they were taken at; download it")
        notes.append(f"{IMAGES} is not there: the recording has events only")
        return None
    rows = _rows(listed)
    there = [(time, path) for time, path in rows if path.is_file()]
    if len(there) < len(rows):
        missing = next(path for _, path in rows if not path.is_file())
        notes.append(f"{len(rows) - len(there)} of {len(rows)} listed images are not there, the first is {missing.name}")
    if not there:
        notes.append("the recording has events only")
        return None
    times = np.array([time for time, _ in there], np.int64)
    return read_images([path for _, path in there], times, str(listed))


def _rows(listed: Path) -> list[tuple[int, Path]]:
    """Time in us and path of every listed image; BadInput names the line that is no such pair, or leaves the folder."""
    rows: list[tuple[int, Path]] = []
    for number, line in lines_of(listed):
        time, _, name = line.partition(" ")
        try:
            seconds = float(time)
        except ValueError:
            seconds = math.nan
        path = inside(listed.parent, name.strip()) if name.strip() else None
        if not abs(seconds) < LONGEST_S or path is None:
            wanted = "a time in seconds and the path of an image in the folder"
            raise BadInput(f"{listed}: line {number} is {line[:40]!r}: write {wanted}")
        rows.append((SECONDS.written(time), path))
    return rows
