"""Pictures of events for people: one RGB image a slice, whatever the representation. Models see `representations` instead."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from eventspec.core import BadInput
from eventspec.events.representations import Image, count_image, equal_counts, red_blue, time_surface
from eventspec.events.stream import EventStream

Representation = Literal["red-blue", "count", "time-surface"]
MOST_BYTES = 1 << 29  # of pictures that are drawn together: 194 of 1280x720, 1989 of 346x260
CLIPPED = 95.0
"""Percentile of the counts above 0 that is full colour: a hot pixel would leave everything else pale."""
FADING = 3
"""A time surface decays by this many time constants in a slice of mean length."""


class Pictures(NamedTuple):
    """images: uint8 [n, H, W, 3] RGB. full: what full colour stands for in all of them, None where there are no shades:
    a count of events, or of a time surface its time constant in us, and full colour is the latest moment."""

    images: Image
    full: float | None


def pictures(stream: EventStream, representation: Representation = "red-blue", n: int = 5) -> Pictures:
    """One picture for each of n equal-count slices; red is ON, blue is OFF, white is nothing. At most `MOST_BYTES` in all."""
    if representation not in get_args(Representation):
        raise BadInput(f"representation is {representation!r}: choose one of {', '.join(get_args(Representation))}")
    most = MOST_BYTES // (3 * stream.width * stream.height)
    if n > most:
        many = f"{n} pictures of {stream.width}x{stream.height} are too many at once"
        fit = f"at most {most} fit into {MOST_BYTES >> 20} MB"
        raise BadInput(f"{many}: {fit}, choose fewer windows or a part of the recording")
    if representation == "red-blue":
        return Pictures(red_blue(stream, n), None)
    slices = [stream.take(slice(first, last)) for first, last in equal_counts(len(stream), n)]
    if representation == "count":
        planes = [count_image(part) for part in slices]
        counts = np.concatenate([plane[plane > 0] for plane in planes])
        full = max(1.0, float(np.ceil(np.percentile(counts, CLIPPED)))) if len(counts) else 1.0
        return Pictures(np.stack([tinted(plane, full) for plane in planes]), full)
    tau_us = max(1.0, (stream.span.duration_us if stream.span is not None else 0) / n / FADING)
    return Pictures(np.stack([tinted(time_surface(part, tau_us=tau_us), 1.0) for part in slices]), tau_us)


def tinted(planes: np.ndarray[Any, Any], full: float) -> Image:
    """OFF and ON planes [2, H, W] of numbers from 0 up as RGB uint8 [H, W, 3]: `full` and more is full blue or red, where both
    are it is black."""
    off, on = np.minimum(planes / full, 1.0).astype(np.float64)
    image = np.stack([1 - off, 1 - np.maximum(off, on), 1 - on], axis=-1)
    return np.round(image * 255).astype(np.uint8)
