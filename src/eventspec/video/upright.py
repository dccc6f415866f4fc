"""Frames the way they are looked at: quarter turns and mirrorings that a file states beside its pixels.

All are one of the eight orientations of EXIF, 1 being as stored; a video's display matrix names the same eight.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from eventspec.video.stored import Frames

AS_STORED = 1
WORDS = {
    2: "mirrored left to right",
    3: "turned by 180 degrees",
    4: "mirrored top to bottom",
    5: "mirrored and turned by 270 degrees clockwise",
    6: "turned by 90 degrees clockwise",
    7: "mirrored and turned by 90 degrees clockwise",
    8: "turned by 270 degrees clockwise",
}
SIGNS = {
    AS_STORED: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}
"""Signs of a, b, c, d of a display matrix, which moves a pixel to (a x + c y, b x + d y), by orientation."""


def upright(pixels: Frames, orientation: int) -> Frames:
    """uint8 [H, W, 3] as it is looked at; [W, H, 3] where that is a quarter turn away."""
    a, b, c, d = SIGNS.get(orientation, SIGNS[AS_STORED])
    turned = pixels if a else pixels.swapaxes(0, 1)
    return np.ascontiguousarray(turned[:: b + d, :: a + c])


def upright_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    """Height and width as it is looked at."""
    return (width, height) if orientation >= 5 else (height, width)


def orientation_of(frame: Any) -> int:
    """The orientation of a decoded PyAV frame, 0 where its display matrix is none of the eight."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return AS_STORED
    a, b, _, c, d = struct.unpack("=5i", bytes(matrix)[:20])
    least = max(map(abs, (a, b, c, d))) / 100  # less than half a degree is rounding
    signs = tuple(0 if abs(side) <= least else 1 if side > 0 else -1 for side in (a, b, c, d))
    return next((orientation for orientation, quarter in SIGNS.items() if quarter == signs), 0)


def orientation_note(what: str, orientation: int) -> tuple[str, ...]:
    """What was done to the frames, where anything was."""
    if orientation == AS_STORED:
        return ()
    if orientation not in WORDS:
        return (f"{what} are left as they are stored: the file turns them by a part of a quarter turn",)
    return (f"{what} are {WORDS[orientation]}, as the file says",)
