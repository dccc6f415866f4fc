"""Pictures of events for people: one RGB image a slice, whatever the representation. Models see `representations` instead."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from eventspec.core import BadInput
from eventspec.events.representations import Image, count_image, equal_counts, red_blue, time_surface
from eventspec.events.stream import EventStream

Representation = Literal["red-blue", "count", "time-surface"]
MOST_BYTES = 1 << 29  # of pictures that are drawn together: 194 of 1280x720, 1989 of 346x260


def pictures(stream: EventStream, representation: Representation = "red-blue", n: int = 5) -> Image:
    """uint8 [n, H, W, 3] RGB: one picture for each of n equal-count slices; red is ON, blue is OFF, white is nothing.

    BadInput for an unknown representation, n below 1, or more than `MOST_BYTES` in all.
    """
    if representation not in get_args(Representation):
        raise BadInput(f"representation is {representation!r}: choose one of {', '.join(get_args(Representation))}")
    most = MOST_BYTES // (3 * stream.width * stream.height)
    if n > most:
        problem = f"{n} pictures of {stream.width}x{stream.height} are too many at once"
        raise BadInput(
            f"{problem}: at most {most} fit into {MOST_BYTES >> 20} MB, choose fewer windows or a part of the recording"
        )
    if representation == "red-blue":
        return red_blue(stream, n)
    planes_of = count_image if representation == "count" else time_surface
    slices = [stream.take(slice(first, last)) for first, last in equal_counts(len(stream), n)]
    return np.stack([tinted(planes_of(part)) for part in slices])


def tinted(planes: np.ndarray[Any, Any]) -> Image:
    """OFF and ON planes [2, H, W] of numbers from 0 up as RGB uint8 [H, W, 3]: the largest is full blue or red."""
    largest = float(planes.max()) if planes.size else 0.0
    off, on = (planes / (largest or 1.0)).astype(np.float64)
    image = np.stack([1 - off, 1 - np.maximum(off, on), 1 - on], axis=-1)
    return np.round(image * 255).astype(np.uint8)


def montage(images: Image, gap: int = 4) -> Image:
    """Images [n, H, W, 3] side by side with a grey gap: uint8 [H, n * W + (n - 1) * gap, 3]."""
    n, height, width, _ = images.shape
    sheet = np.full((height, n * width + (n - 1) * gap, 3), 128, np.uint8)
    for index, image in enumerate(images):
        left = index * (width + gap)
        sheet[:, left : left + width] = image
    return sheet
