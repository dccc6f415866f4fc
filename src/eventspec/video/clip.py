"""The video clip: frames with their times. It knows no file format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import BadInput, FrameRows, Window
from eventspec.media import read_only

Times = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class VideoClip:
    """frames uint8 [K, H, W, 3] RGB, in memory or in their files (`stored`); times_us int64 [K], non-decreasing microseconds.

    The plain constructor trusts its arguments; use `VideoClip.checked` for anything that comes from outside.
    """

    frames: FrameRows
    times_us: Times

    def __len__(self) -> int:
        return len(self.times_us)

    def __repr__(self) -> str:
        return f"VideoClip({len(self)} frames, {self.width}x{self.height}, span={self.span})"

    @classmethod
    def checked(cls, frames: FrameRows, times_us: Any, *, source: str = "video") -> VideoClip:
        """Frames and times from outside as a clip; BadInput for another shape or dtype, or times that go back."""
        times = np.asarray(times_us)
        if len(frames.shape) != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            raise BadInput(f"{source}: frames are {frames.dtype} {frames.shape}: they must be uint8 [frames, height, width, 3]")
        if len(frames) and not all(frames.shape[1:3]):
            size = f"{frames.shape[2]}x{frames.shape[1]}"
            raise BadInput(f"{source}: frames of {size} have no pixels: both sides must be at least 1")
        if times.shape != (len(frames),) or (len(times) and times.dtype.kind not in "iu"):
            what = f"{len(frames)} frames but times_us is {times.dtype} {times.shape}"
            raise BadInput(f"{source}: {what}: give one whole number of microseconds a frame")
        back = times[1:] < times[:-1]
        if back.any():
            index = int(np.argmax(back)) + 1
            raise BadInput(f"{source}: times_us[{index}] is {times[index]}, before {times[index - 1]}: sort the frames by time")
        return cls(frames, times.astype(np.int64, copy=False))

    @property
    def height(self) -> int:
        return int(self.frames.shape[1])

    @property
    def width(self) -> int:
        return int(self.frames.shape[2])

    @property
    def span(self) -> Window | None:
        return Window(int(self.times_us[0]), int(self.times_us[-1]) + 1) if len(self) else None

    def slice(self, window: Window) -> VideoClip:
        """Frames with ``start_us <= time < end_us``: views of the same memory, or frames of the same files."""
        first, last = np.searchsorted(self.times_us, [window.start_us, window.end_us], side="left")
        return VideoClip(self.frames[first:last], self.times_us[first:last])

    def empty_copy(self) -> VideoClip:
        return VideoClip(self.frames[:0], self.times_us[:0])

    def read_only(self) -> VideoClip:
        frames = read_only(self.frames) if isinstance(self.frames, np.ndarray) else self.frames
        return VideoClip(frames, read_only(self.times_us))

    def shifted(self, delta_us: int) -> VideoClip:
        return VideoClip(self.frames, self.times_us + np.int64(delta_us))


class VideoFile(NamedTuple):
    """What one file or folder held, and what the reader assumed or lost."""

    clip: VideoClip
    notes: tuple[str, ...] = ()


def uniform_indices(frames: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [n]: places spread over `frames` frames, the first and the last included; frames repeat when there are fewer.

    ``linspace(0, frames - 1, n)`` cut down to whole numbers, as Video-LLaVA chooses its 8 frames.
    """
    if frames < 1:
        raise BadInput("the clip has no frames to choose from: give a recording or a window with video")
    if n < 1:
        raise BadInput(f"n is {n}: choose at least one frame")
    return np.linspace(0, frames - 1, n).astype(np.int64)
