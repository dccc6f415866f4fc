"""Frames that stay in their files: an index reads only the frames it names. It knows no file format, only a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.video.clip import Times, VideoClip, VideoFile

HELD_BYTES = 1 << 27
"""Clips of at most this many bytes (28 frames of DSEC) are held in memory; of longer ones, so much of what was read last is."""
LONG_NOTE = "the clip is long: its frames stay in their files, and are decoded when they are used"
LARGEST_BYTES = 4 << 30  # decoded RGB at once, as one array; half a minute of 1080p at 24 frames a second
LARGEST_FRAME = 1 << 25
"""Pixels: those of 8K video. What decodes a frame needs several times its bytes."""

Frames = np.ndarray[Any, np.dtype[np.uint8]]
ReadFrame = Callable[[int], Frames]
"""The frame at a place, uint8 [H, W, 3] RGB; BadInput when it cannot be read."""


class StoredFrames:
    """Frames uint8 [K, H, W, 3] RGB that are read when they are used.

    A number gives one frame and an index array gives those frames, both as arrays; a slice gives stored frames again.
    ``np.asarray`` reads everything. Threads may read at once.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, read: ReadFrame, count: int, height: int, width: int) -> None:
        self._frame, self._frame_shape, self._places = _remembered(read, (height, width, 3)), (height, width, 3), range(count)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"StoredFrames({self.shape})"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self._places), *self._frame_shape)

    def __iter__(self) -> Iterator[Frames]:
        return (self._frame(place) for place in self._places)

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice):
            part = StoredFrames.__new__(StoredFrames)
            part._frame, part._frame_shape, part._places = self._frame, self._frame_shape, self._places[places]
            return part
        if isinstance(places, int | np.integer):
            return self._frame(self._places[int(places)])
        if isinstance(places, tuple):
            raise TypeError("stored frames have one index: take the frames first, then their pixels")
        return self._stacked(np.array(self._places, np.int64)[places].tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Frames:
        return self._stacked(list(self._places)).astype(dtype or self.dtype, copy=False)

    def _stacked(self, places: list[int]) -> Frames:
        wanted = len(places) * int(np.prod(self._frame_shape))
        if wanted > LARGEST_BYTES:
            raise BadInput(f"{len(places)} frames are {wanted >> 20} MiB, more than {LARGEST_BYTES >> 20}: choose a window")
        found = np.empty((len(places), *self._frame_shape), np.uint8)
        for row in sorted(range(len(places)), key=places.__getitem__):  # a video is decoded forwards, once
            found[row] = self._frame(places[row])
        return found


def _remembered(read: ReadFrame, shape: tuple[int, int, int]) -> ReadFrame:
    """`read`, which keeps the frames read last, at most `HELD_BYTES` of them and at least one. Threads may read at once."""

    @lru_cache(max(1, HELD_BYTES // max(1, math.prod(shape))))
    def frame(place: int) -> Frames:
        found = read(place)
        if found.shape != shape:
            raise BadInput(
                f"frame {place} is {found.shape}, was {shape}: the video changes its size there, or its file has changed; "
                "choose a window without it, or open the recording again"
            )
        found.flags.writeable = False  # all callers get the same one
        return found

    return frame


def check_frame(height: int, width: int, source: str) -> None:
    """BadInput for frames that are too large to decode: before memory is taken for them."""
    if height * width > LARGEST_FRAME:
        most = f"more than {LARGEST_FRAME >> 20} million pixels"
        raise BadInput(f"{source}: frames of {width}x{height} have {most}: make them smaller, models see a few hundred a side")


def is_short(count: int, height: int, width: int) -> bool:
    return count * height * width * 3 <= HELD_BYTES


def read_clip(read: ReadFrame, size: tuple[int, int], times_us: Times, source: str, notes: tuple[str, ...] = ()) -> VideoFile:
    """The clip whose frames of `size` (H, W) `read` gives: in memory when they are few; else in their files, with a note."""
    check_frame(*size, source)
    frames = StoredFrames(read, len(times_us), *size)
    if is_short(len(times_us), *size):
        return VideoFile(VideoClip.checked(np.asarray(frames), times_us, source=source), notes)
    return VideoFile(VideoClip.checked(frames, times_us, source=source), (*notes, LONG_NOTE))
