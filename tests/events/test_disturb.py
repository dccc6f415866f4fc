"""The controls take away what they say, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.events import EventStream
from eventspec.events.disturb import blank, noise, scattered


@pytest.fixture
def stream() -> EventStream:
    rng = np.random.default_rng(1)
    x, y, p = rng.integers(0, 20, 1000), rng.integers(0, 10, 1000), rng.integers(0, 2, 1000)
    return EventStream.checked(x, y, np.sort(rng.integers(0, 1_000_000, 1000)), p, 20, 10)


def test_blank_keeps_the_sensor_and_no_event(stream: EventStream) -> None:
    assert len(blank(stream)) == 0 and (blank(stream).width, blank(stream).height) == (20, 10)


def test_noise_adds_the_asked_rate_and_keeps_every_real_event(stream: EventStream) -> None:
    noisy = noise(stream, 5.0, np.random.default_rng(2), Window(0, 2_000_000))
    added = len(noisy) - len(stream)
    assert abs(added - 2000) < 5 * 2000**0.5  # Poisson, 5 standard deviations
    assert (np.diff(noisy.t) >= 0).all() and noisy.x.max() < 20 and noisy.y.max() < 10 and noisy.t.max() < 2_000_000
    whole = {tuple(row) for row in zip(noisy.x, noisy.y, noisy.t, noisy.p, strict=True)}
    assert whole >= {tuple(row) for row in zip(stream.x, stream.y, stream.t, stream.p, strict=True)}
    assert [column.dtype for column in (noisy.x, noisy.y, noisy.t, noisy.p)] == [np.uint16, np.uint16, np.int64, np.uint8]


def test_noise_is_the_same_for_the_same_seed_only(stream: EventStream) -> None:
    first, again, other = (noise(stream, 5.0, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert np.array_equal(first.t, again.t) and np.array_equal(first.x, again.x)
    assert not np.array_equal(first.t, other.t)


def test_noise_on_nothing_needs_a_window() -> None:
    nothing = EventStream.empty(20, 10)
    assert len(noise(nothing, 5.0, np.random.default_rng(0))) == 0
    assert len(noise(nothing, 5.0, np.random.default_rng(0), Window(0, 1_000_000))) > 0


def test_scattering_keeps_times_and_polarities(stream: EventStream) -> None:
    moved = scattered(stream, np.random.default_rng(0))
    assert np.array_equal(moved.t, stream.t) and np.array_equal(moved.p, stream.p)
    assert not np.array_equal(moved.x, stream.x) and moved.x.dtype == np.uint16


def test_impossible_amounts_are_refused(stream: EventStream) -> None:
    with pytest.raises(BadInput):
        noise(stream, -1, np.random.default_rng(0))
