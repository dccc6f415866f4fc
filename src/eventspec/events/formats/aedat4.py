"""AEDAT 4 of iniVation cameras: events and frames, read by the `aedat` package; a torn file keeps what came before the tear.

The file is: a version line, a size-prefixed header (flatbuffer with an XML description), then packets of 8 + n bytes, and
a table of packets at the end. This module walks the frame itself to know how much of a torn file is left, and to refuse
damaged headers before `aedat` sees them: its parser aborts the whole process on some (found by flipping bytes).
"""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.family import EventFile, Format, Frames, SensorSize, policy_notes, settled_size
from eventspec.events.stream import EventStream, Monotonic

NAME = "aedat4"
MAGIC = b"#!AER-DAT4"
VERSION_LINE = b"#!AER-DAT4.0\r\n"
PACKET_HEAD = struct.Struct("<II")  # stream id, bytes that follow

Array = np.ndarray[Any, np.dtype[Any]]


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """Read events and frames. Of a torn or damaged file the packets before the tear are kept, and a note says what is lost.

    Raises BadInput when the header is damaged, no event and no frame comes before the tear (the rule of
    `sequential.event_file`), or the events do not fit the sensor.
    """
    return _read(path, sensor_size, monotonic, frames=True)


def read_alone(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic) -> EventFile:
    """The events as `read` gives them; frames are decoded, which the package cannot leave out, but not kept."""
    return _read(path, sensor_size, monotonic, frames=False)


def _read(path: Path, sensor_size: SensorSize | None, monotonic: Monotonic, frames: bool) -> EventFile:
    layout = _layout(path)
    packets = _packets(path, layout, frames)
    notes = [_loss_note(packets, layout)] if packets.tear else []
    if packets.tear and not packets.events and not packets.frames:
        raise BadInput(f"{path}: is torn at byte {packets.tear}, before its first event or frame: copy or record it again")
    events = _events(packets, sensor_size, monotonic, str(path), notes)
    pictures, times = _frames(packets, notes)
    if events is None and pictures is None and frames:
        raise BadInput(f"{path}: has neither events nor frames: record the camera's events or frames output")
    return EventFile(NAME, events, tuple(notes), pictures, times)


# ---------------------------------------------------------------------------------------------------------- file on the disk
@dataclass(frozen=True)
class _Layout:
    """Byte positions: `starts` of every complete packet, `first` and `whole_end` of where they lie, or should lie."""

    starts: list[int]
    first: int
    end: int
    whole_end: int


@dataclass
class _Packets:
    """What `aedat` decoded. `streams`: id -> description; `tear`: byte where reading ended too early, 0 when it did not."""

    streams: dict[int, dict[str, Any]]
    events: dict[int, list[Array]] = field(default_factory=dict)
    frames: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    tear: int = 0


def _layout(path: Path) -> _Layout:
    """Walk version line, header and packet frames without decoding anything; BadInput when no packet is complete."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:  # not empty: it was recognised
        size, first = len(data), len(VERSION_LINE) + 4
        line = data[: len(VERSION_LINE)]
        if line != VERSION_LINE:
            raise BadInput(f"{path}: the version line is {line!r}, not {VERSION_LINE!r}: copy the file again")
        length = int.from_bytes(data[first - 4 : first], "little")
        header = data[first : first + length]  # a damaged length may claim 4 GB
        first += length
        if len(header) < length or length < 8:
            raise BadInput(f"{path}: ends inside its header (byte {size}): nothing is readable, copy or record it again")
        table = _table_position(header, path)
        # A recorder that was killed never wrote the table (-1): then the packets go to the end of the file.
        whole_end = table if table >= first else size
        starts, position, last = list[int](), first, min(size, whole_end) - PACKET_HEAD.size
        while position <= last:
            after = position + PACKET_HEAD.size + PACKET_HEAD.unpack_from(data, position)[1]
            if after > size:
                break
            starts.append(position)
            position = after
    if not starts:
        raise BadInput(f"{path}: not even one packet is complete (it ends at byte {size}): copy or record it again")
    return _Layout(starts, first, position, max(whole_end, position))


def _table_position(header: bytes, path: Path) -> int:
    """Where the header says the packet table is, -1 when unfinished. BadInput unless every part of the header is sound."""
    try:
        root = _u32(header, 0)
        table = root - struct.unpack_from("<i", header, root)[0]
        fields_end, object_size = struct.unpack_from("<HH", header, table)
        offsets = struct.unpack_from(f"<{(fields_end - 4) // 2}H", header, table + 4)
        if table < 0 or header[4:8] != b"IOHE" or any(offset >= max(object_size, 1) for offset in offsets):
            raise ValueError("not an IOHE table")
        compression, position, info = (*offsets, 0, 0, 0)[:3]
        if compression and struct.unpack_from("<i", header, root + compression)[0] not in range(5):
            raise ValueError("unknown compression")
        text = root + info + _u32(header, root + info)
        description = header[text + 4 : text + 4 + _u32(header, text)]
        ElementTree.fromstring(description.decode("utf-8"))
        return int(struct.unpack_from("<q", header, root + position)[0]) if position else -1
    except (struct.error, ValueError, ElementTree.ParseError) as error:
        raise BadInput(f"{path}: the AEDAT4 header is damaged ({error}): copy or record it again") from None


def _u32(data: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])


def _packets(path: Path, layout: _Layout, frames: bool) -> _Packets:
    """Decode packet by packet; the first failure ends the reading and is remembered as the tear."""
    import aedat

    try:
        decoder = aedat.Decoder(str(path))
        packets = _Packets(decoder.id_to_stream())
    except Exception as error:
        raise BadInput(f"{path}: the AEDAT4 header cannot be used ({error}): copy or record it again") from None
    count = 0
    try:
        for packet in decoder:
            if "events" in packet:
                packets.events.setdefault(packet["stream_id"], []).append(packet["events"])
            elif frames and "frame" in packet:
                packets.frames.setdefault(packet["stream_id"], []).append(packet["frame"])
            count += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        if not count:
            raise BadInput(f"{path}: not even one packet is readable ({error}): copy or record it again") from None
        packets.tear = layout.starts[count] if count < len(layout.starts) else layout.end
    if not packets.tear and layout.end < layout.whole_end:
        packets.tear = layout.end
    return packets


def _loss_note(packets: _Packets, layout: _Layout) -> str:
    lost, whole = layout.whole_end - packets.tear, layout.whole_end - layout.first
    return (
        f"the file is torn or damaged at byte {packets.tear}: {lost} of {whole} bytes of packets "
        f"({lost / max(whole, 1):.1%}) are lost, everything before is kept"
    )


# ------------------------------------------------------------------------------------------------------------------ contents
def _events(
    packets: _Packets, sensor_size: SensorSize | None, monotonic: Monotonic, source: str, notes: list[str]
) -> EventStream | None:
    """The first event stream of the file, or None when there is none."""
    ids = sorted(number for number, stream in packets.streams.items() if stream["type"] == "events")
    if not ids:
        return None
    if len(ids) > 1:
        notes.append(f"{len(ids)} event streams: only stream {ids[0]} is read")
    stream = packets.streams[ids[0]]
    width, height = settled_size((int(stream["width"]), int(stream["height"])), sensor_size, source)
    parts = packets.events.get(ids[0], [])
    if not parts:
        return EventStream.empty(width, height)
    # Column by column: one copy each, and never an [E, 4] matrix.
    x, y, t, p = (np.concatenate([part[name] for part in parts]) for name in ("x", "y", "t", "on"))
    events = EventStream.checked(x, y, t, p, width, height, source=source, monotonic=monotonic)
    notes += policy_notes(t, monotonic)
    return events


def _frames(packets: _Packets, notes: list[str]) -> tuple[Callable[[], Frames] | None, Array | None]:
    """What makes the frames of the first stream, in order of time, and their times int64 [K]; (None, None) without frames."""
    if not packets.frames:
        return None, None
    frames = packets.frames[min(packets.frames)]
    if len(packets.frames) > 1:
        notes.append(f"{len(packets.frames)} frame streams: only stream {min(packets.frames)} is read")
    shape = Counter(frame["pixels"].shape[:2] for frame in frames).most_common(1)[0][0]
    fitting = [frame for frame in frames if frame["pixels"].shape[:2] == shape]
    if len(fitting) < len(frames):
        notes.append(f"{len(frames) - len(fitting)} frames are left out: their size is not {shape[1]}x{shape[0]}")
    exposed = all(frame["exposure_begin_t"] > 0 and frame["exposure_end_t"] > 0 for frame in fitting)
    if exposed:
        times = np.array([(frame["exposure_begin_t"] + frame["exposure_end_t"]) // 2 for frame in fitting], np.int64)
        notes.append("frame times are the middle of the exposure")
    else:
        times = np.array([frame["t"] for frame in fitting], np.int64)
        notes.append("frame times are the file's own frame times: it does not say when the exposure began and ended")
    order = np.argsort(times, kind="stable")
    return lambda: _rgb([fitting[index]["pixels"] for index in order]), times[order]


def _rgb(pictures: list[Array]) -> Frames:
    """Grey [H, W] or colour [H, W, 3] pictures of one size, of 8 or 16 bits, as uint8 [K, H, W, 3]."""
    found = np.empty((len(pictures), *pictures[0].shape[:2], 3), np.uint8)
    for place, pixels in enumerate(pictures):
        if pixels.dtype == np.uint16:
            pixels = (pixels >> 8).astype(np.uint8)
        for colour in range(3):  # plane by plane: four times as fast as spreading grey over the last axis
            found[place, ..., colour] = pixels if pixels.ndim == 2 else pixels[..., colour]
    return found


FORMAT = Format(NAME, "AEDAT4", matches, read, read_alone)
