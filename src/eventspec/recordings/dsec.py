"""DSEC: a folder a sequence, with the events and frames of a car's stereo rig on one clock. The left cameras are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eventspec.core import BadInput
from eventspec.events.formats import SensorSize, open_events
from eventspec.events.stream import STRICT, Policy
from eventspec.recordings.layout import Layout, Report, folders, opened
from eventspec.recordings.parts import Contents, together
from eventspec.video.images import image_paths, read_image_folder

NAME = "dsec"
# As the site's archives unpack, all in one or part by part; the first one that is there is read.
EVENTS = ("events/left/events.h5", "events_left/events.h5", "{name}_events_left/events.h5")
RECTIFIED = ("images/left/rectified", "images_rectified_left", "{name}_images_rectified_left")
DISTORTED = ("images/left/distorted", "images_distorted_left", "{name}_images_distorted_left")
TIMES = ("images/timestamps.txt", "images/left/timestamps.txt", "image_timestamps.txt", "{name}_image_timestamps.txt")
DEPTH = 3  # DSEC/train/train_events/<sequence>

TREE = """\
DSEC/                                one folder, or train/ and test/, or one sequence alone
  <sequence>/                        e.g. interlaken_00_c, thun_00_a, zurich_city_04_a
    events/left/events.h5            from <sequence>_events_left.zip
    images/timestamps.txt            <sequence>_image_timestamps.txt: one time in us a line
    images/left/rectified/000000.png from <sequence>_images_rectified_left.zip, one image a time
    images/left/distorted/000000.png instead of them: the event camera's view (dsec-det)
    (not read: right cameras, calibration, disparity, flow, object_detections)"""


def is_sequence(folder: Path) -> bool:
    return _events(folder) is not None or _images(folder) is not None


def is_whole(folder: Path) -> bool:
    """Whether a sequence has events, frames and the times of these."""
    return not _lacks(folder)


def sequences(path: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The sequence folders at or below a path, in order of name."""
    return (folder for folder in folders(path, depth) if is_sequence(folder)) if path.is_dir() else iter(())


def read_sequence(folder: Path, sensor_size: SensorSize | None = None, policy: Policy = STRICT) -> Contents:
    """Events and frames of a sequence. Both stay in their files where they are long.

    A sequence that lacks one of them is read without it and a note says so.
    """
    notes: list[str] = []
    events = video = None
    path, images = _events(folder), _images(folder)
    if path is None:
        notes.append(f"{EVENTS[0]} is not there: the recording has frames only")
    else:
        found = open_events(path, sensor_size, *policy)
        events = found.events
        notes += found.notes
    if images is None:
        notes.append(f"{RECTIFIED[0]} is not there: the recording has events only")
    else:
        times = _times(folder)
        if times is None:
            raise BadInput(f"{folder}: has images but no {TIMES[0]}: it has the times they were taken at; download it")
        seen = read_image_folder(images, times_file=times)
        video = seen.clip
        notes += seen.notes
        if images == _first(folder, RECTIFIED):
            notes.append("frames are the colour camera's, beside the event camera: their pixels do not lie on each other")
    return together(folder, events, video, notes)


def inspect(path: Path) -> Report:
    return opened(sequences(path), path, read_sequence, _lacks, f"<sequence>/{EVENTS[0]}, or <sequence>/{RECTIFIED[0]}")


def _lacks(folder: Path) -> list[str]:
    needed = ((EVENTS[0], _events(folder)), (RECTIFIED[0], _images(folder)), (TIMES[0], _times(folder)))
    return [name for name, found in needed if found is None]


def _events(folder: Path) -> Path | None:
    return _first(folder, EVENTS)


def _images(folder: Path) -> Path | None:
    """The folder of images, rectified before distorted; one without any image does not count."""
    for names in (RECTIFIED, DISTORTED):
        found = _first(folder, names)
        if found is not None and found.is_dir() and image_paths(found):
            return found
    return None


def _times(folder: Path) -> Path | None:
    return _first(folder, (*TIMES, *(f"{images}/timestamps.txt" for images in (*RECTIFIED, *DISTORTED))))


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    paths = (folder / name.format(name=folder.resolve().name) for name in names)
    return next((path for path in paths if path.exists()), None)


LAYOUT = Layout(NAME, "DSEC", TREE, sequences, inspect)
