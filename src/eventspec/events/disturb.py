"""Controls: what an event stream becomes when its information is taken away or spoiled. Every draw takes its generator.

Shuffling (the events of another clip) is a choice of recordings and belongs to the experiment.
"""

from __future__ import annotations

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream


def blank(stream: EventStream) -> EventStream:
    """No events on the same sensor: what a drafter answers from the question alone."""
    return stream.empty_copy()


def noise(stream: EventStream, rate_hz: float, rng: np.random.Generator, window: Window | None = None) -> EventStream:
    """The stream with uniform background events mixed in: `rate_hz` per pixel and second over `window` (default: its span).

    Counts are Poisson, polarity is fair; of events at the same time the real one comes first.
    """
    if rate_hz < 0:
        raise BadInput(f"rate_hz is {rate_hz}: it must be at least 0 events per pixel and second")
    span = window if window is not None else stream.span
    if span is None:
        return stream
    count = int(rng.poisson(rate_hz * stream.width * stream.height * span.duration_us / 1e6))
    times = np.concatenate([stream.t, rng.integers(span.start_us, span.end_us, count)])
    order = np.argsort(times, kind="stable")
    x = np.concatenate([stream.x, rng.integers(0, stream.width, count).astype(np.uint16)])
    y = np.concatenate([stream.y, rng.integers(0, stream.height, count).astype(np.uint16)])
    p = np.concatenate([stream.p, rng.integers(0, 2, count).astype(np.uint8)])
    return EventStream(x[order], y[order], times[order], p[order], stream.width, stream.height)


def scattered(stream: EventStream, rng: np.random.Generator) -> EventStream:
    """The same times and polarities at random pixels: the event rate stays, the scene is gone."""
    x = rng.integers(0, stream.width, len(stream)).astype(np.uint16)
    y = rng.integers(0, stream.height, len(stream)).astype(np.uint16)
    return EventStream(x, y, stream.t, stream.p, stream.width, stream.height, stream.ordered)
