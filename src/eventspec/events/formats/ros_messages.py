"""Messages of ROS bags as bytes: arrays and packets of events (dvs_msgs, event_camera_msgs, others), images (sensor_msgs).

ROS 1 packs fields without gaps. ROS 2 writes CDR: 4 bytes that name the byte order, then every field at a multiple of its own
size, and strings end with a zero. The bag's own message definitions are not needed, and nothing is made of them.

A packet holds events as the camera encodes them (README.md of event_camera_msgs). ``evt3`` are the words of a Prophesee camera,
whose state runs on from packet to packet, with the sensor's own time. ``mono`` are words of 64 bits: from the lowest bit on 32
of time in ns after the packet's time_base, 16 of x, 15 of y and one of polarity.
"""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from eventspec.events.formats import evt3
from eventspec.events.stored import Columns

ARRAYS = frozenset(f"{package}/msg/EventArray" for package in ("dvs_msgs", "prophesee_event_msgs", "dv_ros_msgs"))
PACKETS = frozenset({"event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray"})  # the second is its old name
PACKET_ENCODINGS = ("evt3", "mono")
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_WORDS = ("Event", "Image", "Packet", "Video")  # in the type of what a camera sends
PACKED_IMAGE = "png or jpeg"
DEPTHS = ("16UC1", "32FC1")
EVENT_BYTES = 13  # x, y uint16; seconds, nanoseconds uint32; polarity
CDR_EVENT_BYTES = 16
_FIELDS = {"names": ["x", "y", "s", "ns", "p"], "formats": ["<u2", "<u2", "<u4", "<u4", "u1"]}
PACKED: np.dtype[Any] = np.dtype(_FIELDS)  # type: ignore[call-overload]
# After the first event of a CDR array, times are again at multiples of four: two bytes later.
ALIGNED: np.dtype[Any] = np.dtype({**_FIELDS, "offsets": [0, 2, 6, 10, 14], "itemsize": 16})  # type: ignore[call-overload]
_GREY, _RGB, _BGR = (0, 0, 0), (0, 1, 2), (2, 1, 0)
_COLOURS = {"mono": (1, _GREY), "rgb": (3, _RGB), "bgr": (3, _BGR), "rgba": (4, _RGB), "bgra": (4, _BGR)}
_MOSAICS = {f"bayer_{cell}": (1, _GREY) for cell in ("rggb", "bggr", "gbrg", "grbg")}
# Encoding -> channels, which of them are red, green and blue, and bytes of each.
ENCODINGS = {
    **{f"{name}{8 * size}": (*colours, size) for name, colours in (_COLOURS | _MOSAICS).items() for size in (1, 2)},
    "8UC1": (1, _GREY, 1),
    "8UC3": (3, _BGR, 1),
    PACKED_IMAGE: (3, _RGB, 1),
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
    big_endian: bool = False

    def rgb(self) -> Pixels:
        """uint8 [H, W, 3], of 16 bits the upper 8; ValueError for an encoding that is not in `ENCODINGS`, or fewer bytes than
        there should be."""
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding {self.encoding!r} is not one of {', '.join(ENCODINGS)}")
        if self.encoding == PACKED_IMAGE:
            return _unpacked(self.data).copy()
        channels, order, size = ENCODINGS[self.encoding]
        row = self.width * channels * size
        if not row * self.height or self.step < row or len(self.data) < self.step * self.height:
            raise ValueError(f"an image of {self.width}x{self.height} has {len(self.data)} bytes in rows of {self.step}")
        rows = np.frombuffer(self.data, np.uint8, self.step * self.height).reshape(self.height, self.step)
        pixels = rows[:, 0 if self.big_endian else size - 1 : row : size].reshape(self.height, self.width, channels)
        if self.encoding.startswith("bayer_"):
            return _of_mosaic(pixels[..., 0], self.encoding[6:10])
        return np.ascontiguousarray(pixels[..., list(order)])

    @property
    def note(self) -> str:
        """What `rgb` leaves out, nothing where that is nothing."""
        lost = ["every cell of four pixels becomes one colour"] if self.encoding.startswith("bayer_") else []
        lost += ["the upper 8 of 16 bits are taken"] if self.encoding.endswith("16") else []
        return f"{self.encoding}: {', '.join(lost)}" if lost else ""


def _of_mosaic(mosaic: Pixels, cell: str) -> Pixels:
    """uint8 [H, W, 3] of a Bayer mosaic [H, W] whose cells of 2x2 pixels have the colours of `cell`, row by row."""
    height, width = mosaic.shape
    whole = np.pad(mosaic, ((0, height % 2), (0, width % 2)), "reflect")
    of = {colour: [whole[place // 2 :: 2, place % 2 :: 2] for place in range(4) if cell[place] == colour] for colour in "rgb"}
    colours = np.stack([np.mean(pixels, axis=0).astype(np.uint8) for pixels in of.values()], axis=-1)
    return colours.repeat(2, axis=0).repeat(2, axis=1)[:height, :width]


def image(raw: bytes, cdr: bool, compressed: bool = False) -> Image:
    """A sensor_msgs/Image or CompressedImage; struct.error or ValueError for bytes that are none."""
    reader = _Reader(raw, cdr)
    stamp = reader.header()
    if compressed:
        encoding, data = reader.text(), reader.rest(reader.number("I"))
        distances = encoding.partition(";")[0] in DEPTHS  # compressedDepth
        height = width = 0
        with suppress(ValueError):
            height, width = (0, 0) if distances else _unpacked(data, header_only=True).shape[:2]
        known = width > 0 or (not distances and any(form in encoding for form in ("png", "jpeg", "jpg")))
        return Image(stamp, height, width, PACKED_IMAGE if known else encoding, 0, data)
    height, width = reader.number("I"), reader.number("I")
    encoding, big_endian = reader.text(), bool(reader.number("B"))
    step = reader.number("I")
    return Image(stamp, height, width, encoding, step, reader.rest(reader.number("I")), big_endian)


def _unpacked(data: bytes, header_only: bool = False) -> Pixels:
    """uint8 [H, W, 3] of a PNG or JPEG; ValueError for anything else. `header_only`: the shape alone is right."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as found:
            if header_only:
                return np.broadcast_to(np.uint8(0), (found.height, found.width, 3))
            if found.mode.startswith("I"):  # grey of 16 bits
                grey = np.clip(np.asarray(found).astype(np.int32) >> 8, 0, 255).astype(np.uint8)
                return np.repeat(grey[..., None], 3, axis=2)
            return np.asarray(found.convert("RGB"))
    except (OSError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise ValueError(" ".join(str(error).partition(" <")[0].split())[:100]) from None  # without an address in memory


class Events(NamedTuple):
    """Events as they were sent: the time of the header in ns (0 when it has none), the sensor's size, the events, and the
    decoder's state after them."""

    stamp_ns: int
    width: int
    height: int
    columns: Columns
    state: evt3.State


class Packet(NamedTuple):
    """A packet of events as it was sent; times in ns."""

    stamp_ns: int
    width: int
    height: int
    base_ns: int
    encoding: str
    big_endian: bool
    data: bytes

    def events(self, state: evt3.State) -> Events:
        """ValueError for an encoding that is not in `PACKET_ENCODINGS`, and for bytes that are no row of words."""
        order = ">" if self.big_endian else "<"
        if self.encoding == "evt3":
            columns, state = evt3.decoded(np.frombuffer(self.data, f"{order}u2").astype(np.uint16), state)
        elif self.encoding == "mono":
            word = np.frombuffer(self.data, f"{order}u8")
            t = ((word & 0xFFFFFFFF) + np.uint64(self.base_ns)) // 1000
            x, y, p = (word >> 32 & 0xFFFF).astype(np.uint16), (word >> 48 & 0x7FFF).astype(np.uint16), word >> 63
            columns = Columns(x, y, t.astype(np.int64), p.astype(np.uint8))
        else:
            raise ValueError(f"the encoding changes to {self.encoding!r}")
        return Events(self.stamp_ns, self.width, self.height, columns, state)


def packet(raw: bytes, cdr: bool) -> Packet:
    """An EventPacket; struct.error or ValueError for bytes that are none."""
    reader = _Reader(raw, cdr)
    stamp, height, width = reader.header(), reader.number("I"), reader.number("I")
    reader.number("Q")  # counts messages
    base, encoding, big_endian = reader.number("Q"), reader.text(), bool(reader.number("B"))
    return Packet(stamp, width, height, base, encoding, big_endian, reader.rest(reader.number("I")))


def events(raw: bytes, cdr: bool, packed: bool, state: evt3.State) -> Events:
    """The events of an EventArray, or of a packet after which the decoder has a `state`; struct.error or ValueError for bytes
    that are none."""
    if packed:
        return packet(raw, cdr).events(state)
    reader = _Reader(raw, cdr)
    stamp, height, width, count = reader.header(), reader.number("I"), reader.number("I"), reader.number("I")
    if not cdr or not count:
        return Events(stamp, width, height, _columns(np.frombuffer(reader.rest(count * EVENT_BYTES), PACKED)), state)
    first = np.frombuffer(reader.rest(EVENT_BYTES), PACKED)
    # One byte of padding, then two bytes ahead of every time: a stride of 16, of which the last event lacks one.
    others = np.frombuffer(reader.rest((count - 1) * CDR_EVENT_BYTES)[1:] + b"\0" if count > 1 else b"", ALIGNED)
    columns = Columns(*(np.concatenate(pair) for pair in zip(_columns(first), _columns(others), strict=True)))
    return Events(stamp, width, height, columns, state)


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
