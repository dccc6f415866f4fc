"""The strip: pixels of the sensor are whole pixels of the picture, and the frame of the moment lies below its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eventspec.cli import strip
from eventspec.core import BadInput
from eventspec.events import EventStream
from eventspec.events.pictures import Representation, pictures
from eventspec.recordings import Recording

COLOUR = (12, 200, 34)  # nothing else on the page has it


def recording(events: int = 40, width: int = 16, frames: int = 3, size: tuple[int, int] = (16, 8), **columns: Any) -> Recording:
    rows = {
        "x": np.arange(events) % width,
        "y": np.arange(events) % 8,
        "t": np.arange(events) * 100,
        "p": np.arange(events) % 2,
    }
    rows |= columns
    video = {}
    if frames:
        pictures = np.full((frames, size[1], size[0], 3), COLOUR, np.uint8)
        video = {"frames": pictures, "times_us": np.arange(frames) * 1500}
    stream = EventStream.checked(rows["x"], rows["y"], rows["t"], rows["p"], width, 8, monotonic="keep")
    return Recording.from_arrays(events=stream, **video)


def drawn(tmp_path: Path, what: Recording, windows: int = 2, representation: Representation = "red-blue") -> Any:
    strip.draw(what, 0, representation, windows, tmp_path / "strip.png")
    return np.asarray(Image.open(tmp_path / "strip.png").convert("RGB"))


@pytest.mark.parametrize("representation", ["red-blue", "count", "time-surface"])
def test_small_sensors_are_drawn_larger_pixel_by_pixel(tmp_path: Path, representation: Representation) -> None:
    what = recording()
    page = drawn(tmp_path, what, 2, representation)
    grow, step = strip.scale_of(16, 8, 2)
    assert grow > 20 and step == 1 and what.events is not None
    first = pictures(what.events, representation, 2).images[0]
    top, left = strip.HEAD + strip.LINE, strip.MARGIN
    panel = page[top : top + 8 * grow, left : left + 16 * grow]
    inner = panel[grow // 2 :: grow, grow // 2 :: grow]
    assert np.array_equal(inner, first)


def test_a_frame_lies_below_every_slice(tmp_path: Path) -> None:
    page = drawn(tmp_path, recording(), 2)
    grow, _ = strip.scale_of(16, 8, 2)
    assert (page == COLOUR).all(axis=-1).sum() == 2 * 16 * 8 * grow * grow
    wide = drawn(tmp_path, recording(size=(32, 8)), 2)  # of another shape: as wide as the slice
    assert (wide == COLOUR).all(axis=-1).sum() == 2 * 16 * 4 * grow * grow
    assert len(drawn(tmp_path, recording(frames=0), 2)) < len(page)


def test_frames_are_those_nearest_to_the_middle_of_their_slices() -> None:
    what = recording(events=41)
    assert what.events is not None
    found = strip.slices_of(what.events, what.video, 2)
    assert [(part.start_us, part.end_us, part.events) for part in found] == [(0, 1900, 20), (2000, 4000, 21)]
    assert [part.frame_us for part in found] == [1500, 3000]


@pytest.mark.parametrize(
    "what",
    [
        recording(0),
        recording(1, frames=0),
        recording(5, t=np.full(5, 700)),
        recording(5, t=np.array([5, 4, 3, 2, 1])),
        recording(3, frames=1),
    ],
    ids=["no event", "one event", "equal times", "times that go back", "fewer events than slices"],
)
@pytest.mark.parametrize("representation", ["red-blue", "count", "time-surface"])
def test_few_and_odd_events_are_drawn_too(tmp_path: Path, what: Recording, representation: Representation) -> None:
    assert drawn(tmp_path, what, 5, representation).shape[1] >= strip.LEAST


@pytest.mark.parametrize(
    ("width", "columns", "scale"), [(34, 5, (14, 1)), (346, 5, (1, 1)), (640, 5, (1, 2)), (1280, 1, (1, 1))]
)
def test_scales_are_whole_numbers(width: int, columns: int, scale: tuple[int, int]) -> None:
    assert strip.scale_of(width, width * 3 // 4, columns) == scale
    for side in range(1, 2000):
        grow, step = strip.scale_of(side, 1, columns)
        assert min(grow, step) == 1 and -(-side // step) * grow <= strip.LARGE // columns * 5 // 4
        grow, step = strip.scale_of(1, 40 * side, columns)  # a sensor of a column is not made as wide as others
        assert min(grow, step) == 1 and -(-40 * side // step) * grow <= strip.LARGE


def test_too_many_windows_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="61 windows do not fit on one picture: at most 60 do, or give a folder"):
        drawn(tmp_path, recording(), 61)
    assert list(tmp_path.iterdir()) == []


def test_words_of_the_legend() -> None:
    assert strip.ends_of("count", 1.0) == ("0", "1") and strip.ends_of("count", 7.0) == ("0", "7 or more")
    assert strip.ends_of("time-surface", 30_000.0) == ("90 ms and older", "latest")
    assert [strip.milliseconds(us) for us in (12, 1500, 2_000_000)] == ["12 us", "1.5 ms", "2 s"]
    assert [strip.digits_of(us) for us in (1, 1000, 50_000, 1_000_000, 10**9)] == [6, 4, 3, 1, 1]
