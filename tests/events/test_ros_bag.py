"""ROS bags, as the package rosbags writes them: ROS 1 files, ROS 2 folders of both kinds."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bags import START_NS, Row, Writer, written
from PIL import Image
from rosbags import rosbag1
from rosbags.typesys import Stores, get_typestore

from eventspec.core import BadInput, Window
from eventspec.events.formats import SizeUnknown, ros_bag
from eventspec.recordings import Recording

KINDS = ("ros1", "sqlite3", "mcap")
ROWS: list[Row] = [(i % 7, i % 5, 1_600_000_000_000_000 + 37 * i, i % 3 % 2) for i in range(23)]


def same(recording: Recording, rows: Sequence[Row]) -> bool:
    assert recording.events is not None
    return all(np.array_equal(getattr(recording.events, n), [r[k] for r in rows]) for k, n in enumerate("xytp"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("package", ["dvs_msgs", "prophesee_event_msgs"])
def test_events_come_back_as_they_were_written(tmp_path: Path, kind: str, package: str) -> None:
    def fill(writer: Writer) -> None:
        for part in (ROWS[:1], [], ROWS[1:3], ROWS[3:]):
            writer.events(part, package=package)

    recording = Recording.open(written(tmp_path, kind, fill))
    assert same(recording, ROWS) and recording.source_format == "ros-bag" and recording.video is None
    assert recording.events is not None and (recording.events.width, recording.events.height) == (7, 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("encoding", "channels"), [("mono8", 1), ("rgb8", 3), ("bgr8", 3)])
def test_images_become_frames_in_rgb(tmp_path: Path, kind: str, encoding: str, channels: int) -> None:
    shape = (5, 7) if channels == 1 else (5, 7, 3)
    pictures = np.random.default_rng(1).integers(0, 256, (3, *shape)).astype(np.uint8)

    def fill(writer: Writer) -> None:
        for place, picture in enumerate(pictures):
            writer.image(picture, encoding, START_NS + place * 40_000_000, pad=place)
        writer.events(ROWS)

    video = Recording.open(written(tmp_path, kind, fill)).video
    assert video is not None and (np.diff(video.times_us) == 40_000).all() and video.times_us[0] == START_NS // 1000
    wanted = np.repeat(pictures[..., None], 3, 3) if channels == 1 else pictures[..., ::-1] if encoding == "bgr8" else pictures
    assert np.array_equal(video.frames, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_bag_stays_on_the_disk_and_a_slice_reads_its_messages_only(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(writer: Writer) -> None:
        for row in ROWS:
            writer.events([row])

    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 4)
    path = written(tmp_path, kind, one_by_one)
    recording = Recording.open(path)
    assert "StoredStream" in repr(recording.events) and same(recording, ROWS)
    parsed: list[object] = []
    parse = ros_bag.ros_messages.events
    monkeypatch.setattr(ros_bag.ros_messages, "events", lambda *given: parsed.append(given) or parse(*given))
    assert same(recording.slice(Window(ROWS[5][2], ROWS[8][2])), ROWS[5:8]) and len(parsed) == 3


def test_of_several_topics_the_first_camera_is_read_with_its_own_images(tmp_path: Path) -> None:
    def fill(writer: Writer) -> None:
        writer.image(np.zeros((2, 2), np.uint8), "mono8", START_NS, "/aux/image")
        for side, rows in (("right", ROWS[:5]), ("left", ROWS)):
            writer.events(rows, f"/davis/{side}/events")
            writer.image(np.full((5, 7), len(rows), np.uint8), "mono8", START_NS, f"/davis/{side}/image_raw")

    recording = Recording.open(written(tmp_path, "ros1", fill))
    assert recording.video is not None and recording.video.frames[0, 0, 0, 0] == len(ROWS) and same(recording, ROWS)
    assert "of the topics /davis/left/events, /davis/right/events only /davis/left/events is read" in recording.notes


def test_images_without_times_have_those_of_recording_and_unknown_ones_are_left_out(tmp_path: Path) -> None:
    def fill(writer: Writer) -> None:
        writer.events(ROWS)
        writer.image(np.zeros((5, 7), np.uint8), "mono8", START_NS, own=False)

    recording = Recording.open(written(tmp_path, "ros1", fill))
    assert recording.video is not None and recording.video.times_us.tolist() == [START_NS // 1000]
    assert "images without a time of their own: the time of recording is taken" in recording.notes

    def floats(writer: Writer) -> None:
        writer.events(ROWS)
        writer.image(np.zeros((5, 7), np.float32), "32FC1", START_NS)

    other = Recording.open(written(tmp_path / "other", "ros1", floats))
    assert other.video is None and any("their encoding is '32FC1'" in note for note in other.notes)


def test_times_that_go_back_are_refused_or_lifted_over_messages_too(tmp_path: Path) -> None:
    swapped = [ROWS[0], ROWS[4], ROWS[2], ROWS[6]]

    def fill(writer: Writer) -> None:
        writer.events(swapped[:2])
        writer.events(swapped[2:])

    path = written(tmp_path, "ros1", fill)
    with pytest.raises(BadInput, match=r"t\[2\] is \d+, before t\[1\]"):
        Recording.open(path)
    lifted = Recording.open(path, monotonic="clamp")
    assert lifted.events is not None and lifted.events.t.tolist() == [ROWS[i][2] for i in (0, 4, 4, 6)]
    assert "1 event time goes back, by at most 74 us: each is lifted to the latest time before it" in lifted.notes


def test_a_sensor_of_no_size_needs_one(tmp_path: Path) -> None:
    path = written(tmp_path, "ros1", lambda writer: writer.events(ROWS, size=(0, 0)))
    with pytest.raises(SizeUnknown):
        Recording.open(path)
    assert same(Recording.open(path, (7, 5)), ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_bag_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, lambda writer: writer.events(ROWS))
    file = path if path.is_file() else next(f for f in path.iterdir() if f.suffix != ".yaml")
    whole = file.read_bytes()
    for size in (30, len(whole) // 3, len(whole) // 2, len(whole) - 20):
        file.write_bytes(whole[:size])
        try:
            assert same(Recording.open(path), ROWS)  # the end of a file may hold nothing that is needed
        except BadInput as error:
            assert str(path) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_any_wrong_byte_is_read_over_or_refused(tmp_path: Path, kind: str) -> None:
    def fill(writer: Writer) -> None:
        writer.image(np.zeros((5, 7), np.uint8), "mono8", START_NS)
        writer.events(ROWS)

    path = written(tmp_path, kind, fill)
    files = [path] if path.is_file() else sorted(path.iterdir())
    rng = np.random.default_rng(7)
    for _ in range(60):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        try:
            recording = Recording.open(path)
            assert len(recording.events or ()) <= len(ROWS)
        except BadInput as error:
            assert "\n" not in str(error)
        file.write_bytes(whole)


def test_a_bag_without_cameras_names_what_it_holds(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS1_NOETIC)
    with rosbag1.Writer(tmp_path / "a.bag") as bag:
        connection = bag.add_connection("/words", "std_msgs/msg/String", typestore=store)
        message = store.types["std_msgs/msg/String"]("hello")
        bag.write(connection, START_NS, store.serialize_ros1(message, "std_msgs/msg/String"))
    with pytest.raises(BadInput, match="the bag holds std_msgs/msg/String: readable are dvs_msgs"):
        Recording.open(tmp_path / "a.bag")


def test_a_single_file_of_a_ros_2_bag_opens_too(tmp_path: Path) -> None:
    folder = written(tmp_path, "mcap", lambda writer: writer.events(ROWS))
    shutil.copy(next(folder.glob("*.mcap")), tmp_path / "alone.mcap")
    assert same(Recording.open(tmp_path / "alone.mcap"), ROWS)


def test_without_the_package_the_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "ros1", lambda writer: writer.events(ROWS))
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with pytest.raises(BadInput, match=r"pip install 'eventspec\[rosbag\]'"):
        Recording.open(path)


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_images_are_frames_and_what_is_not_read_is_named(tmp_path: Path, kind: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")

    def fill(writer: Writer) -> None:
        writer.events(ROWS)
        writer.compressed(packed.getvalue(), "png", START_NS, "/dvs/image_raw/compressed")

    recording = Recording.open(written(tmp_path, kind, fill))
    assert recording.video is not None and np.array_equal(recording.video.frames[0], pixels) and recording.notes == ()

    def other(writer: Writer) -> None:
        writer.events(ROWS)
        writer.compressed(b"depth", "16UC1; compressedDepth", START_NS, "/depth")

    left_out = Recording.open(written(tmp_path / "other", kind, other))
    assert (
        left_out.video is None and "images of /depth are left out: their encoding is '16UC1; compressedDepth'" in left_out.notes
    )
    kinds = {
        "/e": "event_camera_msgs/msg/EventPacket",
        "/i": "sensor_msgs/msg/CameraInfo",
        "/v": "foxglove_msgs/msg/CompressedVideo",
    }
    assert ros_bag.unread(kinds, []) == [
        f"the topic {name} is not read: its messages are {kinds[name]}" for name in ("/e", "/v")
    ]


WORDS = [0x2801, 0x8005, 0x6064, 0x000A, 0x2803], [0x2004, 0x3802, 0x4003, 0x8006, 0x6001], [0x5001, 0xA000, 0x2805]
DECODED = [(3, 10, 20580, 1), (4, 10, 20580, 0), (2, 10, 20580, 1), (3, 10, 20580, 1), (14, 10, 24577, 1), (5, 10, 24577, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_packets_of_evt3_go_on_where_the_one_before_ended(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(writer: Writer) -> None:
        for place, words in enumerate(WORDS):
            writer.packet(words if place else np.array(words, ">u2"), stamp_ns=START_NS + place * 1000)

    path = written(tmp_path, kind, fill)
    recording = Recording.open(path)
    assert same(recording, DECODED) and recording.events is not None and recording.events.width == 1280
    assert recording.notes == (
        "1 event before the first complete time left out: their time is unknown",
        "1 external trigger event is not read",
    )
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 2)
    assert same(Recording.open(path).slice(Window(24577, 24578)), DECODED[-2:])


@pytest.mark.parametrize("order", ["<", ">"])
def test_mono_packets_have_times_after_their_base(tmp_path: Path, order: str) -> None:
    rows = [(x, y, 7_000_000 + t, p) for x, y, t, p in ((5, 700, 0, 1), (1279, 3, 2, 0), (0, 0, 4_000_000, 1))]
    words = np.array([p << 63 | y << 48 | x << 32 | (t - 7_000_000) * 1000 for x, y, t, p in rows], f"{order}u8")
    path = written(tmp_path, "mcap", lambda writer: writer.packet(words, "mono", base_ns=7_000_000_999))
    assert same(Recording.open(path), rows)


def test_events_on_the_sensors_own_clock_are_moved_to_that_of_the_images(tmp_path: Path) -> None:
    def fill(writer: Writer) -> None:
        writer.packet(WORDS[0])
        for place in range(2):
            writer.image(np.zeros((5, 7), np.uint8), "mono8", START_NS + place * 40_000_000)

    recording = Recording.open(written(tmp_path, "ros1", fill))
    assert recording.events is not None and recording.events.t.tolist() == [START_NS // 1000]
    assert f"they are moved by {START_NS // 1000 - 20580} us, to that of their messages" in recording.notes[1]


def test_topics_that_cannot_be_read_are_named_and_leave_others_alone(tmp_path: Path) -> None:
    def fill(writer: Writer) -> None:
        writer.packet([0, 0], "libcaer_cmp", "/a/events")
        writer.image(np.zeros((5, 7), np.uint16), "16UC1", START_NS, "/dvs/depth")
        writer.image(np.zeros((5, 7), np.uint8), "mono8", START_NS, "/z/image")
        writer.events(ROWS)

    recording = Recording.open(written(tmp_path, "sqlite3", fill))
    assert same(recording, ROWS) and recording.video is not None
    assert {
        "events of /a/events are left out: their encoding is 'libcaer_cmp'",
        "images of /dvs/depth are left out: their encoding is '16UC1'",
    } == set(recording.notes)
    alone = written(tmp_path / "b", "ros1", lambda writer: writer.packet([0, 0], "evt2"))
    with pytest.raises(BadInput, match=r": events of /dvs/events are left out: their encoding is 'evt2'.*evt3 or mono"):
        Recording.open(alone)


@pytest.mark.parametrize("encoding", ["mono16", "rgb16", "bgr16", "rgba16"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_of_16_bits_the_upper_8_are_taken(tmp_path: Path, encoding: str, order: str) -> None:
    channels = {"mono16": 1, "rgba16": 4}.get(encoding, 3)
    pixels = np.random.default_rng(1).integers(0, 65536, (5, 7, channels)).astype(f"{order}u2")
    path = written(tmp_path, "ros1", lambda writer: writer.image(pixels, encoding, START_NS, pad=3))
    recording = Recording.open(path)
    high = np.repeat(pixels >> 8, 3, 2) if channels == 1 else (pixels >> 8)[..., :3]
    assert recording.video is not None
    assert np.array_equal(recording.video.frames[0], high[..., ::-1] if encoding == "bgr16" else high)
    assert recording.notes == (f"images of /dvs/image_raw are {encoding}: the upper 8 of 16 bits are taken",)


@pytest.mark.parametrize("cell", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
def test_each_cell_of_a_mosaic_becomes_its_colour(tmp_path: Path, cell: str, bits: int) -> None:
    colours = np.random.default_rng(1).integers(0, 256, (3, 4, 3))
    whole = colours.repeat(2, 0).repeat(2, 1)[:5, :7]
    mosaic = np.array([[whole[y, x, "rgb".index(cell[y % 2 * 2 + x % 2])] for x in range(7)] for y in range(5)])
    mosaic = mosaic.astype(np.uint8) if bits == 8 else (mosaic << 8).astype("<u2")
    path = written(tmp_path, "ros1", lambda writer: writer.image(mosaic, f"bayer_{cell}{bits}", START_NS))
    recording = Recording.open(path)
    assert recording.video is not None and np.array_equal(recording.video.frames[0][:4, :6], whole[:4, :6])
    assert "every cell of four pixels becomes one colour" in recording.notes[0]


@pytest.mark.parametrize("pixels", [np.zeros((0, 7), np.uint8), np.zeros((0, 0), np.uint8), b"", b"\x89PNG\r\n\x1a\n"])
def test_an_image_without_pixels_is_named(tmp_path: Path, pixels: Any) -> None:
    def fill(writer: Writer) -> None:
        writer.events(ROWS)
        if isinstance(pixels, bytes):
            writer.compressed(pixels, "png", START_NS, "/dvs/image_raw")
        else:
            writer.image(pixels, "mono8", START_NS)

    words = "cannot identify image file" if isinstance(pixels, bytes) else "an image of .x0 has 0 bytes"
    with pytest.raises(BadInput, match=rf"image 0 of /dvs/image_raw cannot be read \({words}"):
        Recording.open(written(tmp_path, "ros1", fill))


def test_messages_may_leave_out_the_sensors_size_but_not_change_it(tmp_path: Path) -> None:
    def fill(writer: Writer, *sizes: tuple[int, int]) -> None:
        for row, size in zip(ROWS, sizes, strict=False):
            writer.events([row], size=size)

    path = written(tmp_path, "ros1", lambda writer: fill(writer, (0, 0), (7, 5), (7, 5), (0, 0)))
    found = Recording.open(path, drop_outside=True)
    assert same(found, ROWS[:4]) and same(found.slice(Window(ROWS[0][2], ROWS[1][2])), ROWS[:1])
    path.unlink()
    with pytest.raises(BadInput, match="/dvs/events states its sensor size as 7x5 and 9x5"):
        Recording.open(written(tmp_path, "ros1", lambda writer: fill(writer, (7, 5), (9, 5))))


@pytest.mark.parametrize("held", [1 << 20, 4])
def test_dropped_events_of_a_bag_may_have_any_time(tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", held)

    def fill(writer: Writer) -> None:
        writer.events([*ROWS[:3], (7, 0, ROWS[9][2], 1)])
        writer.events(ROWS[3:])

    path = written(tmp_path, "ros1", fill)
    with pytest.raises(BadInput, match=r"x\[3\] is 7: outside the sensor"):
        list(Recording.open(path).events.blocks())  # type: ignore[union-attr]
    path.unlink()
    more = written(tmp_path, "ros1", lambda writer: (writer.events([(7, 0, ROWS[3][2], 1)] * 5), fill(writer)))
    found = Recording.open(more, drop_outside=True)  # all of a message too
    assert same(found, ROWS) and len(found.events or ()) == len(ROWS)
    assert "6 of 29 events are dropped: they lie outside the sensor of 7x5" in found.notes
    assert same(found.slice(Window(ROWS[2][2], ROWS[5][2])), ROWS[2:5])
