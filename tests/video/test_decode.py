"""Videos and image folders become RGB frames with times; torn and foreign files are told apart."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from eventspec.core import BadInput, Window
from eventspec.video import open_video, read_image_folder
from eventspec.video.images import image_paths

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
    with pytest.raises(BadInput, match="no such video file"):
        open_video(tmp_path / "v.mp4")


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
    (folder / "timestamps.txt").write_text("# us\n51836949776\n\n51836999775\n")
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
    with pytest.raises(BadInput, match="has no png or jpg images"):
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
