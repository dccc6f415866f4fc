"""ROS bags of both kinds, written by the package rosbags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rosbags import rosbag1, rosbag2
from rosbags.rosbag2 import StoragePlugin
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

PACKET = "event_camera_msgs/msg/EventPacket"
START_NS = 1_600_000_000_000_000_000
Row = tuple[int, int, int, int]


class Writer:
    """One bag in the making: events and images on topics, a message at a time."""

    def __init__(self, path: Path, kind: str) -> None:
        self.store = get_typestore(Stores.ROS1_NOETIC if kind == "ros1" else Stores.ROS2_HUMBLE)
        time = "time" if kind == "ros1" else "builtin_interfaces/Time"
        for package in ("dvs_msgs", "prophesee_event_msgs"):
            event = get_types_from_msg(f"uint16 x\nuint16 y\n{time} ts\nbool polarity\n", f"{package}/msg/Event")
            array = f"std_msgs/Header header\nuint32 height\nuint32 width\n{package}/Event[] events\n"
            self.store.register({**event, **get_types_from_msg(array, f"{package}/msg/EventArray")})
        packet = "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\n"
        self.store.register(get_types_from_msg(packet + "bool is_bigendian\nuint8[] events\n", PACKET))
        self.ros1 = kind == "ros1"
        plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
        self.bag: Any = rosbag1.Writer(path) if self.ros1 else rosbag2.Writer(path, version=9, storage_plugin=plugin)
        self.connections: dict[str, Any] = {}

    def __enter__(self) -> Writer:
        self.bag.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.bag.close()

    def _send(self, topic: str, kind: str, stamp_ns: int, message: Any) -> None:
        if topic not in self.connections:
            self.connections[topic] = self.bag.add_connection(topic, kind, typestore=self.store)
        serialize = self.store.serialize_ros1 if self.ros1 else self.store.serialize_cdr
        self.bag.write(self.connections[topic], stamp_ns, serialize(message, kind))

    def _header(self, stamp_ns: int) -> Any:
        time = self.store.types["builtin_interfaces/msg/Time"](stamp_ns // 10**9, stamp_ns % 10**9)
        words = {"stamp": time, "frame_id": "camera_1"}
        return self.store.types["std_msgs/msg/Header"](**({"seq": 0} if self.ros1 else {}), **words)

    def events(
        self, rows: Sequence[Row], topic: str = "/dvs/events", package: str = "dvs_msgs", size: tuple[int, int] = (7, 5)
    ) -> None:
        time = self.store.types["builtin_interfaces/msg/Time"]
        make = self.store.types[f"{package}/msg/Event"]
        made = [make(x, y, time(t // 10**6, t % 10**6 * 1000 + 999), bool(p)) for x, y, t, p in rows]
        stamp = (rows[-1][2] if rows else 1_600_000_000_000_000) * 1000
        kind = f"{package}/msg/EventArray"
        self._send(topic, kind, stamp, self.store.types[kind](self._header(stamp), size[1], size[0], made))

    def packet(
        self, words: Any, encoding: str = "evt3", topic: str = "/dvs/events", stamp_ns: int = START_NS, base_ns: int = 0
    ) -> None:
        """Words of numpy in either byte order, which the message states."""
        words = np.asarray(words, "<u2" if isinstance(words, list) else None)
        about = 720, 1280, 5, base_ns, encoding, words.dtype.byteorder == ">", words.view(np.uint8)
        self._send(topic, PACKET, stamp_ns, self.store.types[PACKET](self._header(stamp_ns), *about))

    def image(
        self, pixels: Any, encoding: str, stamp_ns: int, topic: str = "/dvs/image_raw", own: bool = True, pad: int = 0
    ) -> None:
        height, width = pixels.shape[:2]
        rows = np.pad((pixels.reshape(height, -1) if pixels.size else pixels).view(np.uint8), ((0, 0), (0, pad)))
        kind, big = "sensor_msgs/msg/Image", int(pixels.dtype.byteorder == ">")
        make = self.store.types[kind]
        header = self._header(stamp_ns if own else 0)
        self._send(topic, kind, stamp_ns, make(header, height, width, encoding, big, rows.shape[1], rows.reshape(-1)))

    def compressed(self, data: bytes, form: str, stamp_ns: int, topic: str) -> None:
        kind = "sensor_msgs/msg/CompressedImage"
        self._send(topic, kind, stamp_ns, self.store.types[kind](self._header(stamp_ns), form, np.frombuffer(data, np.uint8)))


def written(folder: Path, kind: str, fill: Callable[[Writer], None]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / ("a.bag" if kind == "ros1" else "a")
    with Writer(path, kind) as writer:
        fill(writer)
    return path
