"""AEDAT 4 of iniVation cameras: events, frames and IMU, by the `aedat` package; a torn file keeps what came before the tear.

The file is: a version line, a size-prefixed header (flatbuffer with an XML description), then packets of 8 + n bytes, and
a table of packets at the end. This module walks the frame itself to know how much of a torn file is left, and to refuse
damaged headers before `aedat` sees them: its parser aborts the whole process on some (found by flipping bytes).
"""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from eventspec.core import BadInput, FrameRows
from eventspec.errors import several
from eventspec.events.formats.family import EventFile, Format, Inertial, Picture, SensorSize, file_of, settled_size, whole_file
from eventspec.events.formats.sequential import Decode, Sequential, Step, opened
from eventspec.events.stored import Columns, held, is_short
from eventspec.events.stream import Array, EventStream, Policy

NAME = "aedat4"
MAGIC = b"#!AER-DAT4"
VERSION_LINE = b"#!AER-DAT4.0\r\n"
BLOCK_BYTES = 1 << 18  # of packets, compressed or not, that are decoded at once
STANDARD_GRAVITY = 9.80665  # m/s^2: acceleration is stored in g, rotation in degrees a second (dv-processing's imu.fbs)
PACKET_HEAD = struct.Struct("<II")  # stream id, bytes that follow


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """Read events, frames and the IMU. Of a torn or damaged file what comes before the tear is kept; a note says what is lost.

    Everything is decoded once to see that it can be. The events of a short file are kept from there; of a long one nothing
    is, and parts are decoded again when they are used. A file is refused when its header is damaged, and when no event and no
    frame comes before the tear (the rule of `sequential.event_file`).
    """
    layout = _layout(path)
    packets = _packets(path, layout)
    notes = [_loss_note(packets, layout)] if packets.tear else []
    if packets.tear and not packets.events and not packets.shots:
        raise BadInput(f"{path}: is torn at byte {packets.tear}, before its first event or frame: copy or record it again")
    found = _events(path, layout, packets, sensor_size, policy, notes)
    if found.events is None and not packets.shots:
        raise BadInput(f"{path}: has neither events nor frames: record the camera's events or frames output")
    if packets.inertial:
        found = replace(found, imu=_imu(packets, notes := list(found.notes)), notes=tuple(notes))
    if not packets.shots:
        return found
    shots, times, more = _frames(packets)

    def picture(place: int) -> Picture:
        with opened(path) as file:
            (packet,) = _decoded(file, layout, [shots[place].packet])
        return _rgb(packet["frame"]["pixels"])

    return replace(found, notes=(*found.notes, *more), frames=(picture, shots[0].shape, times))


# ---------------------------------------------------------------------------------------------------------- file on the disk
@dataclass(frozen=True)
class _Layout:
    """Byte positions: `starts` of every complete packet, `first` and `whole_end` of where they lie, or should lie; `head` is
    what comes before the first."""

    head: bytes
    starts: list[int]
    first: int
    end: int
    whole_end: int


class _Shot(NamedTuple):
    """A frame without its pixels: its bytes in the file, its shape (H, W), t and the begin and end of its exposure (0 where
    unknown), int64 us."""

    packet: range
    shape: tuple[int, int]
    t: int
    begin: int
    end: int


@dataclass
class _Packets:
    """What `aedat` decoded. `streams`: id -> description; `events`: ids of streams that have some; `short`: the packets' events
    of the first such stream, None when they are many; `shots`: frames by id; `tear`: byte where reading ended too early, 0 when
    it did not; `inertial`: samples of the IMU by id; `unheld`: how many of those are more than may be held."""

    streams: dict[int, dict[str, Any]]
    events: set[int] = field(default_factory=set)
    short: list[Array] | None = field(default_factory=list)
    shots: dict[int, list[_Shot]] = field(default_factory=dict)
    tear: int = 0
    inertial: dict[int, list[Array]] = field(default_factory=dict)
    unheld: int = 0

    @property
    def first(self) -> int | None:
        return min((number for number, stream in self.streams.items() if stream["type"] == "events"), default=None)


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
        unpack, head_bytes = PACKET_HEAD.unpack_from, PACKET_HEAD.size
        while position <= last:
            after = position + head_bytes + unpack(data, position)[1]
            if after > size:
                break
            starts.append(position)
            position = after
    if not starts:
        raise BadInput(f"{path}: not even one packet is complete (it ends at byte {size}): copy or record it again")
    return _Layout(line + length.to_bytes(4, "little") + header, starts, first, position, max(whole_end, position))


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


def _packets(path: Path, layout: _Layout) -> _Packets:
    """Decode packet by packet, keeping events while they are few; the first failure ends the reading and is remembered as
    the tear."""
    import aedat

    try:
        decoder = aedat.Decoder(str(path))
        packets = _Packets(decoder.id_to_stream())
    except Exception as error:
        raise BadInput(f"{path}: the AEDAT4 header cannot be used ({error}): copy or record it again") from None
    count, events, inertial, first = 0, 0, 0, packets.first
    try:
        for packet in decoder:
            if (part := packet.get("events")) is not None:
                packets.events.add(packet["stream_id"])
                if packets.short is not None and packet["stream_id"] == first:
                    events += len(part)
                    packets.short.append(part)
                    packets.short = packets.short if is_short(events, layout.end) else None
            elif "frame" in packet:
                end = layout.starts[count + 1] if count + 1 < len(layout.starts) else layout.end
                frame = packet["frame"]
                times = frame["t"], frame["exposure_begin_t"], frame["exposure_end_t"]
                shot = _Shot(range(layout.starts[count], end), frame["pixels"].shape[:2], *times)
                packets.shots.setdefault(packet["stream_id"], []).append(shot)
            elif (samples := packet.get("imus")) is not None:
                inertial += len(samples)
                if is_short(inertial, layout.end):
                    packets.inertial.setdefault(packet["stream_id"], []).append(samples)
                else:
                    packets.unheld += len(samples)
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


def _decoded(file: BinaryIO, layout: _Layout, chosen: list[range]) -> list[dict[str, Any]]:
    """Some packets of the file, decoded. `aedat` reads files from the front only: they are put into a small one."""
    import aedat

    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "part.aedat4"
            with path.open("wb") as part:
                part.write(layout.head)
                for packet in chosen:
                    file.seek(packet.start)
                    part.write(file.read(len(packet)))
            found = list(islice(aedat.Decoder(str(path)), len(chosen)))
            if len(found) < len(chosen):
                raise ValueError(f"{len(found)} of {len(chosen)} packets")
    except BaseException as error:  # a panic of the package is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{file.name}: cannot be decoded at byte {chosen[0].start} ({error}): was it changed?") from None
    return found


def _loss_note(packets: _Packets, layout: _Layout) -> str:
    lost, whole = layout.whole_end - packets.tear, layout.whole_end - layout.first
    return (
        f"the file is torn or damaged at byte {packets.tear}: {lost} of {whole} bytes of packets "
        f"({lost / max(whole, 1):.1%}) are lost, everything before is kept"
    )


# ------------------------------------------------------------------------------------------------------------------ contents
def _events(
    path: Path,
    layout: _Layout,
    packets: _Packets,
    sensor_size: SensorSize | None,
    policy: Policy,
    notes: list[str],
) -> EventFile:
    """The file with the first event stream in it, in memory when it is short; without events where it has none."""
    first = packets.first
    if first is None:
        return EventFile(NAME, None, tuple(notes))
    if (streams := sum(stream["type"] == "events" for stream in packets.streams.values())) > 1:
        notes.append(f"{streams} event streams: only stream {first} is read")
    stream = packets.streams[first]
    size = settled_size((int(stream["width"]), int(stream["height"])), sensor_size, str(path))
    if first not in packets.events:
        return EventFile(NAME, EventStream.empty(*size), tuple(notes))
    end = packets.tear or layout.end
    if packets.short is not None and is_short(sum(len(part) for part in packets.short), end):
        return whole_file(NAME, _columns(packets.short), size, path, policy, notes)
    packets.short = None
    source = Sequential(path, size, policy, _decoder(layout, first, end), layout.first, end, None)
    return file_of(NAME, source, held(source, end), notes)


def _decoder(layout: _Layout, stream: int, end: int) -> Decode[None]:
    """The decoder of one stream's packets before byte `end`; those of other streams are passed over."""

    def decode(file: BinaryIO, position: int, state: None) -> Step[None]:
        chosen: list[range] = []
        size = 0
        while position < end and size < BLOCK_BYTES:
            file.seek(position)
            head = file.read(PACKET_HEAD.size)
            if len(head) < PACKET_HEAD.size:
                raise BadInput(f"{file.name}: ends at byte {position}, before byte {end}: was it changed meanwhile?")
            number, length = PACKET_HEAD.unpack(head)
            packet = range(position, position + PACKET_HEAD.size + length)
            position = packet.stop
            if number == stream:
                chosen.append(packet)
                size += length
        parts = [packet["events"] for packet in _decoded(file, layout, chosen)] if chosen else []
        return Step(_columns(parts) if parts else Columns(*(np.empty(0, np.int64),) * 4), position, None)

    return decode


def _columns(parts: list[Array]) -> Columns:
    """The events of packets, column by column: one copy each, and never an [E, 4] matrix."""
    return Columns(*(np.concatenate([part[name] for part in parts]) for name in ("x", "y", "t", "on")))


def _frames(packets: _Packets) -> tuple[list[_Shot], Array, list[str]]:
    """The frames of the first stream, which has some, in order of time, their times int64 [K], and notes."""
    notes = []
    shots = packets.shots[min(packets.shots)]
    if len(packets.shots) > 1:
        notes.append(f"{len(packets.shots)} frame streams: only stream {min(packets.shots)} is read")
    shape = Counter(shot.shape for shot in shots).most_common(1)[0][0]
    fitting = [shot for shot in shots if shot.shape == shape]
    if len(fitting) < len(shots):
        notes.append(f"{several(len(shots) - len(fitting), 'frame')} of another size than {shape[1]}x{shape[0]} left out")
    exposed = all(shot.begin > 0 and shot.end > 0 for shot in fitting)
    notes.append(
        "frame times are the middle of the exposure"
        if exposed
        else "frame times are the file's own frame times: it does not say when the exposure began and ended"
    )
    times = np.array([(shot.begin + shot.end) // 2 if exposed else shot.t for shot in fitting], np.int64)
    order = np.argsort(times, kind="stable")
    return [fitting[index] for index in order], times[order], notes


def _imu(packets: _Packets, notes: list[str]) -> Inertial:
    """The samples of the first IMU that has some."""
    first = min(packets.inertial)
    if len(packets.inertial) > 1:
        notes.append(f"{len(packets.inertial)} IMU streams: only stream {first} is read")
    if packets.unheld:
        notes.append(
            f"the last {several(packets.unheld, 'IMU sample is', 'IMU samples are')} left out: they are held in memory"
        )
    samples = np.concatenate(packets.inertial[first])
    acceleration, rotation = (
        np.stack([samples[f"{sensor}_{axis}"] for axis in "xyz"], axis=1) for sensor in ("accelerometer", "gyroscope")
    )
    times = samples["t"].astype(np.int64)
    return times, acceleration * np.float32(STANDARD_GRAVITY), np.deg2rad(rotation, dtype=np.float32)


def _rgb(pixels: Array) -> Picture:
    """A grey [H, W] or colour [H, W, 3] picture of 8 or 16 bits as uint8 [H, W, 3]."""
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    found = np.empty((*pixels.shape[:2], 3), np.uint8)
    for colour in range(3):  # plane by plane: four times as fast as spreading grey over the last axis
        found[..., colour] = pixels if pixels.ndim == 2 else pixels[..., colour]
    return found


# ------------------------------------------------------------------------------------------------------------------- writing
def write(
    path: Path,
    stream: EventStream | None,
    frames: FrameRows | None = None,
    frame_times_us: np.ndarray[Any, np.dtype[np.int64]] | None = None,
) -> None:
    """Write events and frames (uint8 [K, H, W, 3] RGB with int64 [K]); the caller chooses and renames the path.

    dv-processing (Apache-2.0, the extra ``inivation``) takes about a million events a second, one by one: for handing a clip to
    the camera maker's tools, not for archives. BadInput when it is missing, or the events are not in order of time.
    """
    try:
        import dv_processing as dv
    except ImportError:
        raise BadInput(f"{path}: AEDAT4 is written by dv-processing: install it (pip install 'eventspec[inivation]')") from None
    if stream is not None and not stream.ordered:
        raise BadInput(f"{path}: AEDAT4 needs events in order of time: read them with --monotonic clamp")
    plan = dv.io.MonoCameraWriter.Config("eventspec")
    if stream is not None:
        plan.addEventStream((stream.width, stream.height))
    if frames is not None:
        plan.addFrameStream((frames.shape[2], frames.shape[1]))
    # It ends the whole process when the name does not end in .aedat4 or the place cannot be written: prove both first.
    suffixed = path.with_name(f"{path.name}.aedat4")
    try:
        suffixed.touch()
        _write(dv, dv.io.MonoCameraWriter(str(suffixed), plan), stream, frames, frame_times_us)
        suffixed.rename(path)
    finally:
        suffixed.unlink(missing_ok=True)


def _write(
    dv: Any,
    writer: Any,
    stream: EventStream | None,
    frames: FrameRows | None,
    frame_times_us: np.ndarray[Any, np.dtype[np.int64]] | None,
) -> None:
    """Events and frames; the writer's end, when this returns, writes the table of packets."""
    for block in stream.blocks() if stream is not None else ():
        store = dv.EventStore()
        for t, x, y, p in zip(block.t.tolist(), block.x.tolist(), block.y.tolist(), block.p.tolist(), strict=True):
            store.push_back(t, x, y, bool(p))
        writer.writeEvents(store)
    if frames is not None and frame_times_us is not None:
        for time, frame in zip(frame_times_us.tolist(), frames, strict=True):
            writer.writeFrame(dv.Frame(time, np.ascontiguousarray(frame[..., ::-1])))  # it keeps BGR, as OpenCV does


FORMAT = Format(NAME, "AEDAT4", matches, read)
