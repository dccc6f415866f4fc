"""Which family a file belongs to, by its content: names and suffixes are never trusted."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput
from eventspec.events.formats import (
    aedat4,
    dat,
    dsec_h5,
    eventgpt_npy,
    metavision_h5,
    mvsec_h5,
    native_h5,
    nmnist,
    npy,
    npz,
    prophesee,
    ros_bag,
    text,
)
from eventspec.events.formats.family import HEAD_BYTES, EventFile, Format, SensorSize
from eventspec.events.stream import EventStream, Monotonic, Policy
from eventspec.files import check_file

SURE: tuple[Format, ...] = (
    aedat4.FORMAT,
    npz.FORMAT,
    dsec_h5.FORMAT,
    metavision_h5.FORMAT,
    mvsec_h5.FORMAT,
    native_h5.FORMAT,
    prophesee.FORMAT,
    dat.FORMAT,
    ros_bag.FORMAT,
)
"""Those that know their own files from all others; a new one goes here."""
CATCH_ALL: tuple[Format, ...] = (eventgpt_npy.FORMAT, npy.FORMAT, text.FORMAT, nmnist.FORMAT)
"""Those that take whatever begins somewhat like theirs: any numpy array, any numbers, any bytes that could be events."""
FORMATS = (*SURE, *CATCH_ALL)
"""The first one that matches reads a file."""

# Files given by mistake, so that the refusal can name them.
KNOWN_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"#!AER-DAT2", "an AEDAT 2 file"),
    (b"#!AER-DAT3", "an AEDAT 3 file"),
    (b"% ", "a Prophesee RAW or DAT file"),
    (b"Event Stream", "an Event Stream (.es) file"),
    (b"#ROSBAG V1", "a ROS bag of an old version"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file with another layout"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x80", "a bare pickle"),
)


def open_events(
    path: Path | str, sensor_size: SensorSize | None = None, monotonic: Monotonic = "raise", drop_outside: bool = False
) -> EventFile:
    """Read an event file of any known family, with its notes and frames; BadInput, one line, for one that cannot be used."""
    path = Path(path)
    family = recognised(path)
    if family is not None:
        return family.read(path, sensor_size, Policy(monotonic, drop_outside))
    readable = ", ".join(known.title for known in FORMATS)
    looks = describe(_head(path))
    raise BadInput(f"{path}: looks like {looks}, which is not a readable event file: readable are {readable}")


def recognised(path: Path) -> Format | None:
    """The family of a file, or None for an unknown one; BadInput when it cannot be opened or is empty."""
    head = _head(path)
    return next((known for known in FORMATS if known.matches(path, head)), None)


def read_events(path: Path | str, sensor_size: SensorSize | None = None, monotonic: Monotonic = "raise") -> EventStream:
    """The event stream of a file; BadInput when it cannot be read or has none. `open_events` also gives the notes."""
    found = open_events(path, sensor_size, monotonic)
    if found.events is None:
        raise BadInput(f"{path}: the {found.format} file holds no event stream: give a recording with events")
    return found.events


def describe(head: bytes) -> str:
    for start, words in KNOWN_STARTS:
        if head.startswith(start):
            return words
    if head[4:8] == b"ftyp":
        return "an MP4 video"
    text = head.decode("utf-8", errors="ignore")
    if len(head) - len(text.encode()) < 4 and not any(ord(letter) < 9 for letter in text):  # a letter may be cut at the end
        return f"text starting {text[:24]!r}"
    return f"binary data starting {head[:8].hex(' ')}"


def _head(path: Path) -> bytes:
    if path.is_dir():
        raise BadInput(f"{path}: is a folder, not an event file: give the file, or open the folder as a recording")
    check_file(path)
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
