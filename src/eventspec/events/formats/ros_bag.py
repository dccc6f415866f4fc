"""ROS bags through the package rosbags: ROS 1 files, ROS 2 folders and single files; one topic of events, one of images.

A bag is walked once to learn which message holds which times; after that a slice reads its own messages only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from os.path import commonpath
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.formats import evt2, evt3, ros_messages
from eventspec.events.formats.family import EventFile, Format, Frames, Picture, SensorSize, file_of, settled_size
from eventspec.events.formats.ros_messages import ARRAYS, CAMERA_WORDS, COMPRESSED, ENCODINGS, IMAGE, PACKET_ENCODINGS, PACKETS
from eventspec.events.stored import Source, held, hull, overlap
from eventspec.events.stream import EventStream, Policy, on_sensor

NAME = "ros-bag"
MAGIC1 = b"#ROSBAG V2.0"
MAGICS2 = {".db3": b"SQLite format 3\0", ".mcap": b"\x89MCAP0\r\n"}
METADATA, MARK = "metadata.yaml", b"rosbag2_bagfile_information"

Message = tuple[int, bytes]
"""When it was recorded, in ns, and its bytes."""


def is_folder(folder: Path) -> bool:
    try:
        with (folder / METADATA).open("rb") as file:
            return MARK in file.read(4096)
    except OSError:
        return False


def matches(path: Path, head: bytes) -> bool:
    """A ROS 1 bag, or one file of a ROS 2 bag."""
    magic = MAGICS2.get(path.suffix.lower())
    return head.startswith(MAGIC1) or (magic is not None and head.startswith(magic))


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """Events and frames of a bag: of several topics the first by name, and images that go with it; notes name the others."""
    bag = Bag(path, sensor_size, policy.drop_outside)
    notes = [*bag.notes, *evt2.notes_of(bag.state)]
    frames = bag.frames(notes)
    if not bag.events:
        return EventFile(NAME, None, tuple(notes), frames)
    source = BagSource(bag, settled_size(bag.size if all(bag.size) else None, sensor_size, str(path)), policy)
    files = path.iterdir() if path.is_dir() else (path,)
    size = sum(file.stat().st_size for file in files if file.is_file())
    stream = held(source, size)
    if frames is not None and bag.lag_us and not _meet(stream.span, frames[2]):
        stream = stream.shifted(bag.lag_us)
        notes.append(f"the events have the sensor's own time: they are moved by {bag.lag_us} us, to that of their messages")
    return replace(file_of(NAME, source, stream, notes), frames=frames)


def _meet(span: Window | None, times_us: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    return span is None or not len(times_us) or overlap(span, Window(int(times_us[0]), int(times_us[-1]) + 1))


@dataclass(frozen=True)
class _Mark:
    """What is known of one message of events: when it was recorded, the decoder's state before it, and the index and times (us)
    of its events."""

    stamp_ns: int
    state: evt3.State
    first: int
    count: int
    latest: int
    span: Window | None


class Bag:
    """A bag that was walked once. events, images: the topics that are read, "" for none; size (width, height): of the
    sensor, as its messages have it, zeros where none does; marks: of its messages of events; state: of the decoder after them;
    lag_us: of the first packet with events, from their time to that of its header; stamps: for each image when it was recorded
    and its own time, in ns."""

    def __init__(self, path: Path, sensor_size: SensorSize | None, drop_outside: bool) -> None:
        self.path, self.cdr = path, path.is_dir() or path.suffix.lower() in MAGICS2
        self.size: SensorSize = (0, 0)
        self.marks: list[_Mark] = []
        self.state = evt3.State()
        self.lag_us = 0
        self.stamps: list[tuple[int, int]] = []
        self.first_image: ros_messages.Image | None = None
        self.notes: list[str] = []
        with self.reader() as reader:
            kinds = {connection.topic: connection.msgtype for connection in reader.connections}
            arrays = {topic: self._lack(reader, topic, kind) for topic, kind in kinds.items() if kind in ARRAYS | PACKETS}
            pictures = {topic: self._lack(reader, topic, kind) for topic, kind in kinds.items() if kind in (IMAGE, COMPRESSED)}
            for what, topics in (("events", arrays), ("images", pictures)):
                self.notes += [f"{what} of {topic} are left out: {lack}" for topic, lack in sorted(topics.items()) if lack]
            readable, seen = (sorted(one for one, lack in topics.items() if not lack) for topics in (arrays, pictures))
            if not readable and not seen:
                held_types = ", ".join(sorted(set(kinds.values()))[:6]) or "nothing"
                wanted = (
                    "dvs_msgs, prophesee_event_msgs or dv_ros_msgs EventArray, event_camera_msgs EventPacket with "
                    f"{' or '.join(PACKET_ENCODINGS)}, or sensor_msgs Image or CompressedImage"
                )
                raise BadInput(f"{path}: {'; '.join(self.notes) or f'the bag holds {held_types}'}: readable are {wanted}")
            self.events = readable[0] if readable else ""
            # A camera's topics have one beginning: /davis/left/events, /davis/left/image_raw.
            self.images = max(seen, key=lambda topic: len(commonpath([f"/{topic}", f"/{self.events}"])), default="")
            for names, chosen in ((readable, self.events), (seen, self.images)):
                if len(names) > 1:
                    self.notes.append(f"of the topics {', '.join(names)} only {chosen} is read")
            self.packed, self.compressed = kinds.get(self.events) in PACKETS, kinds.get(self.images) == COMPRESSED
            self.notes += unread(kinds, [*arrays, *pictures])
            self._walk(reader, sensor_size, drop_outside)

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """rosbags' reader, open; its errors become one BadInput."""
        try:
            from rosbags import rosbag1, rosbag2
        except ImportError:
            raise BadInput(f"{self.path}: reading ROS bags needs rosbags: pip install 'eventspec[rosbag]'") from None
        try:
            with (rosbag2.Reader if self.cdr else rosbag1.Reader)(self.path) as reader:
                yield reader
        except BadInput:
            raise
        except Exception as error:  # its errors share no class, and damage shows as any of Python's own
            reason = " ".join(str(error).split())[:160]
            raise BadInput(f"{self.path}: the bag cannot be read ({reason}): reindex or record it again") from None

    def messages(self, reader: Any, topic: str, start: int | None = None, stop: int | None = None) -> Iterator[Message]:
        """A topic's messages in the order they were recorded in, those from `start` on and before `stop` (ns)."""
        connections = [connection for connection in reader.connections if connection.topic == topic]
        for _, stamp, raw in reader.messages(connections=connections, start=start, stop=stop):
            yield stamp, bytes(raw)

    def _lack(self, reader: Any, topic: str, kind: str) -> str:
        """Why a topic of events or images cannot be read, as its first message tells; nothing where it can be."""
        _, raw = next(self.messages(reader, topic), (0, None))
        if raw is None:
            return "there is no message"
        if kind in ARRAYS:
            return ""
        packed = kind in PACKETS
        found = ros_messages.packet(raw, self.cdr) if packed else ros_messages.image(raw, self.cdr, kind == COMPRESSED)
        return "" if found.encoding in (PACKET_ENCODINGS if packed else ENCODINGS) else f"their encoding is {found.encoding!r}"

    def _walk(self, reader: Any, sensor_size: SensorSize | None, drop_outside: bool) -> None:
        first = latest = 0
        for stamp, raw in self.messages(reader, self.events) if self.events else ():
            found = ros_messages.events(raw, self.cdr, self.packed, self.state)
            (x, y, t, _), before, count = found.columns, self.state, len(found.columns.t)
            self.state, stated = found.state, (found.width, found.height)
            if all(stated) and all(self.size) and stated != self.size:
                both = f"{self.size[0]}x{self.size[1]} and {stated[0]}x{stated[1]}"
                raise BadInput(f"{self.path}: {self.events} states its sensor size as {both}: give a bag of one camera")
            self.size = stated if all(stated) else self.size  # some messages leave it out
            size = sensor_size or self.size
            if drop_outside and all(size):
                t = t[on_sensor(x, y, *size)]
            span = Window(int(t.min()), int(t.max()) + 1) if len(t) else None
            if self.packed and not first and span is not None:
                self.lag_us = (found.stamp_ns or stamp) // 1000 - span.start_us
            self.marks.append(_Mark(stamp, before, first, count, latest, span))
            first, latest = first + count, latest if span is None else max(latest, span.end_us - 1)
        for stamp, raw in self.messages(reader, self.images) if self.images else ():
            image = ros_messages.image(raw, self.cdr, self.compressed)
            self.first_image = self.first_image or image
            self.stamps.append((stamp, image.stamp_ns))

    def frames(self, notes: list[str]) -> Frames | None:
        """The images, None without any; what is assumed of them goes into `notes`."""
        if self.first_image is None:
            return None
        if self.first_image.note:
            notes.append(f"images of {self.images} are {self.first_image.note}")
        stamps = np.array(self.stamps, np.int64)
        if not stamps[:, 1].all():
            notes.append("images without a time of their own: the time of recording is taken")
            stamps[:, 1] = stamps[:, 0]
        order = np.argsort(stamps[:, 1], kind="stable")
        size = self.first_image.height, self.first_image.width
        return _Pictures(self, order), size, stamps[order, 1] // 1000


def unread(kinds: Mapping[str, str], known: list[str]) -> list[str]:
    """A note for each topic, of these with their types, that a camera sends and that is not among the known ones."""
    cameras = (topic for topic, kind in sorted(kinds.items()) if any(word in kind.rpartition("/")[2] for word in CAMERA_WORDS))
    return [f"the topic {topic} is not read: its messages are {kinds[topic]}" for topic in cameras if topic not in known]


class _Pictures:
    """Images by their place in time. The bag stays open between two of them: opening it again costs more than reading one."""

    def __init__(self, bag: Bag, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._bag, self._order = bag, order
        self._lock = Lock()
        self._next: tuple[int, Iterator[Message]] | None = None

    def __call__(self, place: int) -> Picture:
        number = int(self._order[place])
        with self._lock:
            if self._next is None or self._next[0] != number:
                self._next = number, self._from(number)
            message = next(self._next[1], None)
            self._next = number + 1, self._next[1]
        try:
            if message is None:
                raise ValueError("it is not there any more")
            return ros_messages.image(message[1], self._bag.cdr, self._bag.compressed).rgb()
        except (ValueError, struct.error) as error:
            raise BadInput(f"{self._bag.path}: image {number} of {self._bag.images} cannot be read ({error})") from None

    def _from(self, number: int) -> Iterator[Message]:
        start = self._bag.stamps[number][0]
        skipped = number - next(place for place, (stamp, _) in enumerate(self._bag.stamps) if stamp == start)
        with self._bag.reader() as reader:
            yield from islice(self._bag.messages(reader, self._bag.images, start), skipped, None)


class BagSource(Source):
    def __init__(self, bag: Bag, size: SensorSize, policy: Policy) -> None:
        super().__init__(bag.path, size, policy)
        self._bag = bag

    def count(self) -> int:
        return self._bag.marks[-1].first + self._bag.marks[-1].count - self.outside if self._bag.marks else 0

    def span(self) -> Window | None:
        return hull(mark.span for mark in self._bag.marks)

    def _read(self, window: Window | None) -> Iterator[EventStream]:
        """Message by message; those outside the window are not parsed."""
        wanted = [mark.stamp_ns for mark in self._bag.marks if self._meets(mark, window)]
        if not wanted:
            return
        marks = (mark for mark in self._bag.marks if mark.stamp_ns >= wanted[0])
        with self._bag.reader() as reader:
            messages = self._bag.messages(reader, self._bag.events, wanted[0], wanted[-1] + 1)
            for mark, (_, raw) in zip(marks, messages, strict=False):
                if self._meets(mark, window):
                    found = ros_messages.events(raw, self._bag.cdr, self._bag.packed, mark.state)
                    yield self._checked(found.columns, mark.first, mark.latest, whole=window is None)

    def _meets(self, mark: _Mark, window: Window | None) -> bool:
        if mark.span is None:  # all of its events are dropped, which a walk through the whole bag counts
            return window is None and mark.count > 0
        # Lifted times may lie as late as the latest before them.
        late = max(mark.span.end_us, mark.latest + 1) if self.policy.monotonic == "clamp" else mark.span.end_us
        return overlap(Window(mark.span.start_us, late), window)


FORMAT = Format(NAME, "ROS bags", matches, read)
