"""Which frames a video model sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from eventspec.core import BadInput


def uniform_indices(frames: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [n]: places spread over `frames` frames, the first and the last included; frames repeat when there are fewer.

    ``linspace(0, frames - 1, n)`` cut down to whole numbers, as Video-LLaVA chooses its 8 frames.
    """
    if frames < 1:
        raise BadInput("the clip has no frames to choose from: give a recording or a window with video")
    if n < 1:
        raise BadInput(f"n is {n}: choose at least one frame")
    return np.linspace(0, frames - 1, n).astype(np.int64)
