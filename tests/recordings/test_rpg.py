"""The event-camera data set's layout: events as text and a list of images, in one folder, on one clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eventspec.core import BadInput
from eventspec.events.formats import SizeUnknown
from eventspec.recordings import Recording


@pytest.fixture
def sequence(tmp_path: Path) -> Path:
    """Six events and three grey images of 8x6 pixels, as the data set's archives unpack."""
    folder = tmp_path / "slider"
    (folder / "images").mkdir(parents=True)
    lines = [f"{0.003811 + 0.01 * i:.9f} {i} {i % 6} {i % 2}\n" for i in range(6)]
    (folder / "events.txt").write_text("".join(lines))
    names = [f"images/frame_{i:08d}.png" for i in range(3)]
    for shade, name in enumerate(names):
        Image.new("L", (8, 6), 40 * shade).save(folder / name)
    (folder / "images.txt").write_text("".join(f"{0.004 + 0.02 * i:.6f} {name}\n" for i, name in enumerate(names)))
    (folder / "calib.txt").write_text("199.1 198.8 132.2 110.7 -0.37 0.15 0 0 0\n")
    (folder / "imu.txt").write_text("0.003 0 0 0 0 0 0\n")
    return folder


@pytest.mark.parametrize("name", [".", "events.txt"])
def test_a_sequence_is_one_recording_whichever_part_is_named(sequence: Path, name: str) -> None:
    found = Recording.open(sequence / name)
    assert found.events is not None and found.video is not None
    assert (found.name, found.source_format) == ("slider", "rpg")
    assert found.events.t.tolist() == [3811 + 10_000 * i for i in range(6)]
    assert (found.events.width, found.events.height) == (8, 6)
    assert found.video.times_us.tolist() == [4000, 24_000, 44_000]
    assert found.video.frames[:, 0, 0, 0].tolist() == [0, 40, 80]
    assert any("8x6 is that of the images" in note for note in found.notes)


def test_a_stated_sensor_counts_more_than_the_images(sequence: Path) -> None:
    found = Recording.open(sequence, (240, 180)).events
    assert found is not None and (found.width, found.height) == (240, 180)
    with pytest.raises(BadInput, match="outside the sensor"):
        Recording.open(sequence, (4, 4))


def test_images_that_are_not_there_are_counted_and_left_out(sequence: Path) -> None:
    (sequence / "images/frame_00000001.png").unlink()
    found = Recording.open(sequence)
    assert found.video is not None and found.video.times_us.tolist() == [4000, 44_000]
    assert "1 of 3 listed images are not there, the first is frame_00000001.png" in found.notes


def test_a_part_may_lack(sequence: Path) -> None:
    events = (sequence / "events.txt").read_bytes()
    (sequence / "events.txt").unlink()
    found = Recording.open(sequence)
    assert found.events is None and found.video is not None and len(found.video) == 3
    (sequence / "events.txt").write_bytes(events)
    (sequence / "images.txt").unlink()
    with pytest.raises(BadInput, match=r"has images but no images\.txt"):
        Recording.open(sequence)
    for image in (sequence / "images").iterdir():
        image.unlink()
    with pytest.raises(SizeUnknown, match="sensor_size"):
        Recording.open(sequence)
    alone = Recording.open(sequence, (240, 180))
    assert alone.video is None and alone.events is not None and np.array_equal(alone.events.x, np.arange(6))


@pytest.mark.parametrize("line", ["0.5", "soon images/a.png", "0.5 ../../a.png", "nan images/a.png", "1e20 images/a.png"])
def test_a_line_that_lists_no_image_is_named(sequence: Path, line: str) -> None:
    with (sequence / "images.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(BadInput, match=r"images\.txt: line 4 is .*a time in seconds and the path of an image"):
        Recording.open(sequence)


def test_times_of_images_are_exact_to_the_microsecond(sequence: Path) -> None:
    (sequence / "events.txt").unlink()
    (sequence / "images.txt").write_text(
        "1600000000.123456489 images/frame_00000000.png\n1.6000000002e9 images/frame_00000001.png\n"
    )
    video = Recording.open(sequence).video
    assert video is not None and video.times_us.tolist() == [1600000000123456, 1600000000200000]


def test_events_and_images_that_never_meet_are_refused(sequence: Path) -> None:
    (sequence / "images.txt").write_text("9.0 images/frame_00000000.png\n9.1 images/frame_00000001.png\n")
    with pytest.raises(BadInput, match="do not overlap"):
        Recording.open(sequence)
