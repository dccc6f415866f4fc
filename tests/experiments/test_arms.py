"""The controls take away what they say, and nothing else."""

from __future__ import annotations

import numpy as np

from eventspec.events import EventStream
from eventspec.experiments.arms import scattered


def test_scattering_keeps_times_and_polarities() -> None:
    rng = np.random.default_rng(1)
    x, y, p = rng.integers(0, 20, 1000), rng.integers(0, 10, 1000), rng.integers(0, 2, 1000)
    stream = EventStream.checked(x, y, np.sort(rng.integers(0, 1_000_000, 1000)), p, 20, 10)
    moved = scattered(stream, np.random.default_rng(0))
    assert np.array_equal(moved.t, stream.t) and np.array_equal(moved.p, stream.p)
    assert not np.array_equal(moved.x, stream.x) and moved.x.dtype == np.uint16
