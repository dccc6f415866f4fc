"""Frames that stay in their files: whatever is asked of them, they answer as the array would, and read no more than that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eventspec.core import BadInput, Window
from eventspec.recordings import Recording, write_native
from eventspec.video import VideoClip, read_image_folder, stored
from eventspec.video.stored import LONG_NOTE, StoredFrames

COUNT = 6
WHOLE = np.arange(COUNT * 2 * 3 * 3, dtype=np.uint8).reshape(COUNT, 2, 3, 3)
PLACES = st.integers(-COUNT, COUNT - 1)
SLICES = st.builds(slice, *([st.none() | st.integers(-8, 8)] * 2), st.none() | st.sampled_from([-2, -1, 1, 2]))


def frames(read: list[int] | None = None) -> StoredFrames:
    """WHOLE, one frame at a time; the places that were read are added to `read`."""

    def one(place: int) -> Any:
        if read is not None:
            read.append(place)
        return WHOLE[place].copy()

    return StoredFrames(one, COUNT, 2, 3)


@given(SLICES, PLACES | SLICES | st.lists(PLACES, max_size=5) | st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))
def test_every_index_gives_what_the_array_gives(part: slice, places: Any) -> None:
    key = np.array(places, bool if places and isinstance(places[0], bool) else int) if isinstance(places, list) else places
    whole = WHOLE[part] if not isinstance(places, list) else WHOLE
    held = frames()[part] if not isinstance(places, list) else frames()
    if isinstance(places, int) and not -len(whole) <= places < len(whole):
        with pytest.raises(IndexError):
            held[places]
        return
    found = held[key]
    assert np.array_equal(found, whole[key]) and found.shape == whole[key].shape and len(found) == len(whole[key])
    assert all(np.array_equal(a, b) for a, b in zip(held, whole, strict=True))


def test_only_the_frames_asked_for_are_read_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(stored, "HELD_BYTES", 2 * WHOLE[0].nbytes)
    held = frames(read)
    part = held[2:]
    assert read == [] and part.shape == (4, 2, 3, 3)
    part[np.array([0, 3, 0])]
    assert read == [2, 5]
    held[0], held[5], held[2]
    assert read == [2, 5, 0, 2]  # 0 took the place of 2: frames are read, and so used, in ascending order


def test_a_kept_frame_cannot_be_written_to() -> None:
    held = frames()
    with pytest.raises(ValueError, match="read-only"):
        held[0][0, 0, 0] = 1
    picked = held[np.array([0])]
    picked[0, 0, 0, 0] = 99
    assert held[0][0, 0, 0] == WHOLE[0, 0, 0, 0]


def test_two_indices_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match="one index"):
        frames()[:, 0]


def test_too_much_at_once_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(stored, "LARGEST_BYTES", 3 * WHOLE[0].nbytes)
    with pytest.raises(BadInput, match="6 frames are 0 MiB, more than 0: choose a window"):
        np.asarray(frames(read))
    assert read == []


def test_threads_may_read_at_once() -> None:
    held = frames()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda place: held[place % COUNT], range(200)))
    assert all(np.array_equal(frame, WHOLE[place % COUNT]) for place, frame in enumerate(found))


# ------------------------------------------------------------------------------------------------------------ long folders
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four images that count as a long clip."""
    (tmp_path / "f").mkdir()
    for index in range(4):
        Image.new("RGB", (8, 6), (index * 20, 0, 0)).save(tmp_path / f"f/{index}.png")
    monkeypatch.setattr(stored, "HELD_BYTES", 3 * 8 * 6 * 3)
    return tmp_path / "f"


def test_a_long_folder_is_opened_without_decoding(folder: Path) -> None:
    data = (folder / "2.png").read_bytes()
    (folder / "2.png").write_bytes(data[:45])  # its size can still be read
    found = read_image_folder(folder, fps=10)
    assert found.notes[-1] == LONG_NOTE and isinstance(found.clip.frames, StoredFrames)
    assert (len(found.clip), found.clip.width, found.clip.height) == (4, 8, 6)
    cut = found.clip.slice(Window(100_000, 250_000))
    assert cut.frames[0][0, 0, 0] == 20
    with pytest.raises(BadInput, match=r"2.png: not a readable image"):
        cut.frames[1]


def test_a_long_folder_is_refused_at_once_for_an_image_of_another_size(folder: Path) -> None:
    Image.new("RGB", (9, 6)).save(folder / "3.png")
    with pytest.raises(BadInput, match=r"3.png: is 9x6 but 0.png is 8x6"):
        read_image_folder(folder)


def test_an_image_that_changes_its_size_later_is_told_of(folder: Path) -> None:
    clip = read_image_folder(folder).clip
    Image.new("RGB", (9, 6)).save(folder / "3.png")
    with pytest.raises(BadInput, match=r"its file has changed"):
        clip.frames[3]


def test_a_long_clip_is_written_frame_by_frame(folder: Path, tmp_path: Path) -> None:
    recording = Recording.open(folder)
    write_native(tmp_path / "native", recording)
    again = Recording.open(tmp_path / "native").video
    assert again is not None and isinstance(again.frames, StoredFrames)
    assert np.asarray(again.frames)[:, 0, 0, 0].tolist() == [0, 20, 40, 60]


def test_stored_frames_make_a_clip_like_any_other() -> None:
    clip = VideoClip.checked(frames(), np.arange(COUNT) * 10)
    assert clip.shifted(5).span == Window(5, 56)
    assert clip.slice(Window(10, 30)).frames[np.array([1])].tolist() == WHOLE[[2]].tolist()
