"""Messages of ROS bags as bytes: arrays of events (dvs_msgs, prophesee_event_msgs) and images (sensor_msgs).

ROS 1 packs fields without gaps. ROS 2 writes CDR: 4 bytes that name the byte order, then every field at a multiple of its own
size, and strings end with a zero. The bag's own message definitions are not needed, and nothing is made of them.
"""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

import numpy as np

from eventspec.events.stored import Columns

ARRAYS = frozenset(f"{package}/msg/EventArray" for package in ("dvs_msgs", "prophesee_event_msgs", "dv_ros_msgs"))
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_WORDS = ("Event", "Image", "Packet", "Video")  # in the type of what a camera sends
PACKED_IMAGE = "png or jpeg"
EVENT_BYTES = 13  # x, y uint16; seconds, nanoseconds uint32; polarity
CDR_EVENT_BYTES = 16
_FIELDS = {"names": ["x", "y", "s", "ns", "p"], "formats": ["<u2", "<u2", "<u4", "<u4", "u1"]}
PACKED: np.dtype[Any] = np.dtype(_FIELDS)  # type: ignore[call-overload]
# After the first event of a CDR array, times are again at multiples of four: two bytes later.
ALIGNED: np.dtype[Any] = np.dtype({**_FIELDS, "offsets": [0, 2, 6, 10, 14], "itemsize": 16})  # type: ignore[call-overload]
# Encoding -> channels, and which of them are red, green and blue.
ENCODINGS = {
    "mono8": (1, (0, 0, 0)),
    "8UC1": (1, (0, 0, 0)),
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    PACKED_IMAGE: (3, (0, 1, 2)),
}

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Image(NamedTuple):
    """An image as it was sent: the time of its header in ns (0 when it has none), its size, and its bytes."""

    stamp_ns: int
    height: int
    width: int
    encoding: str
    step: int
    data: bytes

    def rgb(self) -> Pixels:
        """uint8 [H, W, 3]; ValueError for an encoding that is not in `ENCODINGS`, or fewer bytes than there should be."""
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding {self.encoding!r} is not one of {', '.join(ENCODINGS)}")
        if self.encoding == PACKED_IMAGE:
            return _unpacked(self.data).copy()
        channels, order = ENCODINGS[self.encoding]
        if self.step < self.width * channels or len(self.data) < self.step * self.height:
            raise ValueError(f"an image of {self.width}x{self.height} has {len(self.data)} bytes in rows of {self.step}")
        rows = np.frombuffer(self.data, np.uint8, self.step * self.height).reshape(self.height, self.step)
        pixels = rows[:, : self.width * channels].reshape(self.height, self.width, channels)
        return np.ascontiguousarray(pixels[..., list(order)])


def image(raw: bytes, cdr: bool, compressed: bool = False) -> Image:
    """A sensor_msgs/Image or CompressedImage; struct.error or ValueError for bytes that are none."""
    reader = _Reader(raw, cdr)
    stamp = reader.header()
    if compressed:
        encoding, data = reader.text(), reader.rest(reader.number("I"))
        try:
            height, width = _unpacked(data, header_only=True).shape[:2]
        except ValueError:  # such as compressedDepth
            return Image(stamp, 0, 0, encoding, 0, data)
        return Image(stamp, height, width, PACKED_IMAGE, 0, data)
    height, width = reader.number("I"), reader.number("I")
    encoding = reader.text()
    reader.number("B")
    step = reader.number("I")
    return Image(stamp, height, width, encoding, step, reader.rest(reader.number("I")))


def _unpacked(data: bytes, header_only: bool = False) -> Pixels:
    """uint8 [H, W, 3] of a PNG or JPEG; ValueError for anything else. `header_only`: the shape alone is right."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as found:
            if header_only:
                return np.broadcast_to(np.uint8(0), (found.height, found.width, 3))
            return np.asarray(found.convert("RGB"))
    except (OSError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).split())[:100]) from None


def events(raw: bytes, cdr: bool) -> tuple[int, int, Columns]:
    """Width, height and events of an EventArray; struct.error or ValueError for bytes that are none."""
    reader = _Reader(raw, cdr)
    reader.header()
    height, width, count = reader.number("I"), reader.number("I"), reader.number("I")
    if not cdr or not count:
        return width, height, _columns(np.frombuffer(reader.rest(count * EVENT_BYTES), PACKED))
    first = np.frombuffer(reader.rest(EVENT_BYTES), PACKED)
    # One byte of padding, then two bytes ahead of every time: a stride of 16, of which the last event lacks one.
    others = np.frombuffer(reader.rest((count - 1) * CDR_EVENT_BYTES)[1:] + b"\0" if count > 1 else b"", ALIGNED)
    return width, height, Columns(*(np.concatenate(pair) for pair in zip(_columns(first), _columns(others), strict=True)))


def _columns(rows: np.ndarray[Any, Any]) -> Columns:
    t = rows["s"].astype(np.int64) * 1_000_000 + rows["ns"] // 1000
    return Columns(rows["x"].copy(), rows["y"].copy(), t, rows["p"].copy())


class _Reader:
    def __init__(self, raw: bytes, cdr: bool) -> None:
        self._raw, self._cdr, self._at = raw, cdr, 0
        if cdr:
            if raw[:2] != b"\x00\x01":
                raise ValueError("its messages are not CDR with the low byte first")
            self._raw = raw[4:]

    def number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        if self._cdr:
            self._at += -self._at % size
        value: int = struct.unpack_from(f"<{kind}", self._raw, self._at)[0]
        self._at += size
        return value

    def text(self) -> str:
        return self.rest(self.number("I")).rstrip(b"\0").decode("latin-1")

    def header(self) -> int:
        """Pass over a std_msgs/Header; its time in ns."""
        if not self._cdr:
            self.number("I")  # counts messages
        seconds, nanoseconds = self.number("I"), self.number("I")
        self.text()
        return seconds * 1_000_000_000 + nanoseconds

    def rest(self, size: int) -> bytes:
        """The next bytes, all of which must be there."""
        found = self._raw[self._at : self._at + size]
        if len(found) < size:
            raise ValueError(f"a message ends {size - len(found)} bytes early")
        self._at += size
        return bytes(found)
