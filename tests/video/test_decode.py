"""Videos and image folders become RGB frames with times; torn and foreign files are told apart."""

from __future__ import annotations

import os
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from eventspec.core import BadInput, Window
from eventspec.video import open_video, read_image_folder, stored
from eventspec.video.images import image_paths
from eventspec.video.upright import upright

FRAMES = 20


def write_video(path: Path, frames: int = FRAMES, fps: int = 25, codec: str = "mpeg4") -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 5
        for index in range(frames):
            picture = np.zeros((48, 64, 3), np.uint8)
            picture[..., 0] = index * 10 % 256  # brighter red with every frame
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "v.mp4")


def test_frames_are_rgb_and_times_are_microseconds(video: Path) -> None:
    clip = open_video(video).clip
    assert clip.frames.shape == (FRAMES, 48, 64, 3) and clip.frames.dtype == np.uint8
    assert clip.times_us.tolist() == [40_000 * k for k in range(FRAMES)]
    red = clip.frames[:, 24, 32].astype(int)
    assert (abs(red[:, 0] - 10 * np.arange(FRAMES)) < 12).all() and red[:, 1:].max() < 12
    assert open_video(video).notes == ()


def test_times_that_are_no_whole_microseconds_are_rounded(tmp_path: Path) -> None:
    clip = open_video(write_video(tmp_path / "v.mp4", 4, fps=30)).clip
    assert clip.times_us.tolist() == [0, 33333, 66667, 100000]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts"])
def test_every_container_is_read_and_cut_by_its_times(tmp_path: Path, suffix: str) -> None:
    whole = open_video(write_video(tmp_path / f"v.{suffix}", codec="mpeg2video" if suffix == "ts" else "mpeg4")).clip
    assert len(whole) == FRAMES and len(set(whole.times_us.tolist())) == FRAMES
    cut = whole.slice(Window(int(whole.times_us[7]), int(whole.times_us[11])))
    assert cut.times_us.tolist() == whole.times_us[7:11].tolist()
    assert np.array_equal(cut.frames, whole.frames[7:11])


@pytest.mark.parametrize("suffix", ["mkv", "avi"])
def test_a_torn_video_keeps_what_was_readable_and_says_so(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"v.{suffix}", 60)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.85)])
    found = open_video(path)
    assert 10 < len(found.clip) < 60
    assert len(found.notes) == 1 and "torn" in found.notes[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty (0 bytes)"),
        (b"\0\0\0\x18ftypmp42" + b"\0" * 100, "not a readable video"),
        (b"#EXTM3U\n#EXTINF:1,\nother.ts\n", "is text, not a video: playlists are not followed"),
        (b"ffconcat version 1.0\nfile other.mp4\n", "is text, not a video"),
    ],
)
def test_what_is_no_video_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "v.mp4"
    path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        open_video(path)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        open_video(tmp_path / "v.mp4")


def test_a_container_that_names_other_files_is_refused_whatever_it_looks_like(video: Path, tmp_path: Path) -> None:
    (tmp_path / "other.mp4").write_bytes(video.read_bytes())
    playlist = f"#EXTM3U\n#\x01\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/other.mp4\n#EXT-X-ENDLIST\n"
    texts = {"a.mp4": playlist, "b.mp4": "ffconcat version 1.0\n#\x01\nfile other.mp4\n", "c.ts": "v=0\r\no=-\r\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(BadInput, match=r"is text, not a video|not a readable video"):
            open_video(tmp_path / name)


def test_a_name_is_never_an_address(video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("concat:a.mp4", "http:v.mp4", "%03d.mp4"):
        Path(name).write_bytes(video.read_bytes())
        assert len(open_video(name).clip) == FRAMES


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.mp4")
    os.mkfifo(tmp_path / "0.png")
    for read, path in ((open_video, tmp_path / "v.mp4"), (read_image_folder, tmp_path)):
        with pytest.raises(BadInput, match="is a pipe, a device or a socket"):
            read(path)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_the_longest_stream_is_read_and_the_others_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"v.{suffix}"
    with av.open(str(path), "w") as container:
        streams: list[Any] = []
        for codec, width, height in (("mjpeg", 160, 120), ("mpeg4", 64, 48)):
            streams.append(container.add_stream(codec, rate=25))
            streams[-1].width, streams[-1].height = width, height
            streams[-1].pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for index in range(5):
            for stream in streams[index > 0 :]:
                picture = np.full((stream.height, stream.width, 3), 99, np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 25)
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode())
    found = open_video(path)
    assert found.clip.frames.shape == (5, 48, 64, 3)
    assert found.notes == ("video stream 1 of the file is read, not 0 (mjpeg 160x120)",)


def test_frames_are_bounded_before_they_are_decoded(tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (64, 48)).save(tmp_path / "0.png")
    monkeypatch.setattr(stored, "LARGEST_FRAME", 64 * 48 - 1)
    for read, path in ((open_video, video), (read_image_folder, tmp_path)):
        with pytest.raises(BadInput, match="frames of 64x48 have more than"):
            read(path)


# -------------------------------------------------------------------------------------------------------- orientation
UP = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
WANTED = {  # EXIF's orientations, as its standard says where the first row and column of what is stored belong
    1: UP,
    2: UP[:, ::-1],
    3: UP[::-1, ::-1],
    4: UP[::-1],
    5: UP.transpose(1, 0, 2),
    6: np.rot90(UP, -1),
    7: np.rot90(UP, 2).transpose(1, 0, 2),
    8: np.rot90(UP),
}


@pytest.mark.parametrize(("suffix", "mode"), [("png", "RGB"), ("webp", "RGB"), ("tif", "RGB"), ("tif", "RGBA"), ("jpg", "RGB")])
def test_images_are_turned_as_they_say(tmp_path: Path, suffix: str, mode: str) -> None:
    for orientation, wanted in WANTED.items():
        folder, exif = tmp_path / str(orientation), Image.Exif()
        folder.mkdir()
        exif[0x0112] = orientation
        picture = np.kron(UP, np.ones((16, 16, 1), np.uint8))  # blocks of JPEG
        settings: dict[str, Any] = {"lossless": True} if suffix == "webp" else {"quality": 100} if suffix == "jpg" else {}
        Image.fromarray(picture).convert(mode).save(folder / f"0.{suffix}", exif=exif, **settings)
        found = read_image_folder(folder, fps=1)
        assert np.abs(found.clip.frames[0, 8::16, 8::16].astype(int) - wanted).max() <= (3 if suffix == "jpg" else 0)
        turned = [note for note in found.notes if note.endswith("as the file says")]
        assert len(turned) == (orientation > 1) and found.clip.frames.shape[1:3] == (16 * wanted.shape[0], 16 * wanted.shape[1])


def test_images_that_only_look_alike_as_stored_are_refused(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "0.jpg")
    Image.new("RGB", (8, 6)).save(tmp_path / "1.jpg", exif=exif)
    with pytest.raises(BadInput, match=r"1.jpg: is 6x8 but 0.jpg is 8x6"):
        read_image_folder(tmp_path)


def with_matrix(video: Path, path: Path, *sides: float) -> Path:
    """The mp4 with a, b, c, d of its display matrix."""
    data = bytearray(video.read_bytes())
    at = data.index(b"tkhd") + 44
    a, b, c, d = (round(65536 * side) for side in sides)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def test_a_video_is_turned_as_its_matrix_says_short_or_long(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = open_video(video).clip.frames
    sides = {2: (-1, 0, 0, 1), 3: (-1, 0, 0, -1), 4: (1, 0, 0, -1), 5: (0, 1, 1, 0)}
    sides |= {6: (0, 1, -1, 0), 7: (0, -1, -1, 0), 8: (0, -1, 1, 0)}
    for held in (stored.HELD_BYTES, 5 * up[0].nbytes):
        monkeypatch.setattr(stored, "HELD_BYTES", held)
        for orientation, matrix in sides.items():
            found = open_video(with_matrix(video, tmp_path / "v.mp4", *matrix))
            turned = [upright(frame, orientation) for frame in up]
            assert np.array_equal(np.asarray(found.clip.frames), turned) and "as the file says" in found.notes[0]
            assert (found.clip.height, found.clip.width) == turned[0].shape[:2]
    for orientation, wanted in WANTED.items():
        assert np.array_equal(upright(UP, orientation), wanted)


def test_a_video_that_is_not_turned_by_quarters_is_left_and_says_so(video: Path, tmp_path: Path) -> None:
    found = open_video(with_matrix(video, tmp_path / "v.mp4", 0.87, 0.5, -0.5, 0.87))
    assert found.clip.frames.shape == (FRAMES, 48, 64, 3) and "by a part of a quarter turn" in found.notes[0]


# ---------------------------------------------------------------------------------------------------------- image folders
def write_images(folder: Path, names: list[str], mode: str = "RGB") -> Path:
    folder.mkdir(exist_ok=True)
    for index, name in enumerate(names):
        Image.new("RGB", (8, 6), (index * 20, 0, 0)).convert(mode).save(folder / name)
    return folder


def test_images_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "f", ["frame_1.png", "frame_2.png", "frame_10.png"])
    (folder / "readme.txt").write_text("not an image")
    assert [path.name for path in image_paths(folder)] == ["frame_1.png", "frame_2.png", "frame_10.png"]
    found = read_image_folder(folder)
    assert found.clip.frames[:, 0, 0].tolist() == [[0, 0, 0], [20, 0, 0], [40, 0, 0]]
    assert found.clip.times_us.tolist() == [0, 50_000, 100_000]
    assert found.notes == ("frame times are assumed: 20 frames a second (no timestamps.txt)",)


def test_times_come_from_the_caller_the_file_or_the_rate(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "f", ["0.jpg", "1.jpg"], "L")
    (folder / "timestamps.txt").write_text("\ufeff# us\r\n51836949776\r\n\n51836999775\n")
    assert read_image_folder(folder).clip.times_us.tolist() == [51836949776, 51836999775]
    assert read_image_folder(folder, fps=10).clip.times_us.tolist() == [0, 100_000]
    assert read_image_folder(folder, times_us=[3, 4]).clip.times_us.tolist() == [3, 4]


def test_sixteen_bit_grey_keeps_its_upper_bits(tmp_path: Path) -> None:
    Image.fromarray(np.full((6, 8), 0xAB12, np.uint16)).save(tmp_path / "0.png")
    assert (read_image_folder(tmp_path).clip.frames == 0xAB).all()


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("1\n2\n3\n", "3 times for 2 images"),
        ("1\n2.5\n", "timestamps.txt: line 2 is '2.5'"),
        ("2\n1\n", "times_us[1] is 1, before 2"),
        ("1600000000000000000\n1600000000050000000\n", "write one whole number of microseconds a line"),
    ],
)
def test_times_that_do_not_fit_are_refused_with_their_line(tmp_path: Path, listed: str, words: str) -> None:
    folder = write_images(tmp_path / "f", ["0.png", "1.png"])
    (folder / "timestamps.txt").write_text(listed)
    with pytest.raises(BadInput) as refused:
        read_image_folder(folder)
    assert words in str(refused.value)


def test_folders_of_unusable_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        read_image_folder(tmp_path / "none")
    with pytest.raises(BadInput, match="has no png, jpg, webp or tif images"):
        read_image_folder(tmp_path)
    folder = write_images(tmp_path / "f", ["0.png"])
    with pytest.raises(BadInput, match="fps is 0"):
        read_image_folder(folder, fps=0)
    Image.new("RGB", (9, 6)).save(folder / "1.png")
    with pytest.raises(BadInput, match=r"1.png: is 9x6 but 0.png is 8x6"):
        read_image_folder(folder)
    (folder / "1.png").write_bytes(b"\x89PNG")
    with pytest.raises(BadInput, match=r"1.png: not a readable image"):
        read_image_folder(folder)
