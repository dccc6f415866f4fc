"""The clip, and which of its frames a model sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.video import VideoClip, uniform_indices


def clip(times: list[int]) -> VideoClip:
    frames = np.arange(len(times), dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 3), np.uint8)
    return VideoClip.checked(frames, np.array(times, np.int64), source="v.mp4")


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=12).map(sorted), st.integers(0, 50), st.integers(1, 50))
def test_a_slice_holds_exactly_the_half_open_window(times: list[int], start: int, length: int) -> None:
    whole = clip(times)
    cut = whole.slice(Window(start, start + length))
    wanted = [k for k, time in enumerate(times) if start <= time < start + length]
    assert cut.frames[:, 0, 0, 0].tolist() == wanted and cut.times_us.tolist() == [times[k] for k in wanted]
    assert not wanted or np.shares_memory(cut.frames, whole.frames)
    assert (cut.width, cut.height) == (3, 2)


def test_the_span_ends_after_the_last_frame() -> None:
    assert clip([5, 9]).span == Window(5, 10)
    assert clip([]).span is None
    assert clip([5, 9]).shifted(-5).times_us.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("frames", "times", "words"),
    [
        (np.zeros((2, 3, 3), np.uint8), [0, 1], "must be uint8 [frames, height, width, 3]"),
        (np.zeros((2, 3, 3, 3)), [0, 1], "v.mp4: frames are float64 (2, 3, 3, 3)"),
        (np.zeros((2, 0, 5, 3), np.uint8), [0, 1], "v.mp4: frames of 5x0 have no pixels"),
        (np.zeros((2, 3, 3, 3), np.uint8), [0], "v.mp4: 2 frames but times_us is int64 (1,)"),
        (np.zeros((2, 3, 3, 3), np.uint8), [0.0, 1.0], "v.mp4: 2 frames but times_us is float64"),
        (np.zeros((2, 3, 3, 3), np.uint8), [1, 0], "v.mp4: times_us[1] is 0, before 1"),
    ],
)
def test_frames_and_times_that_do_not_fit_are_refused(frames: Any, times: Any, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        VideoClip.checked(frames, times, source="v.mp4")
    assert words in str(refused.value)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 64))
def test_frames_are_spread_from_the_first_to_the_last(frames: int, n: int) -> None:
    places = uniform_indices(frames, n)
    assert places.dtype == np.int64 and len(places) == n and places[0] == 0
    assert (np.diff(places) >= 0).all() and places.max() < frames
    assert n == 1 or places[-1] == frames - 1
    assert len(set(places.tolist())) == n if frames >= n else True


def test_video_llavas_choice_of_eight_frames() -> None:
    assert uniform_indices(59, 8).tolist() == [0, 8, 16, 24, 33, 41, 49, 58]
    assert uniform_indices(3, 8).tolist() == [0, 0, 0, 0, 1, 1, 1, 2]  # fewer frames: they repeat
    assert uniform_indices(1, 3).tolist() == [0, 0, 0]
    for frames, n in ((0, 8), (5, 0)):
        with pytest.raises(BadInput):
            uniform_indices(frames, n)
