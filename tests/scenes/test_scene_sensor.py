"""The event camera model on signals whose events can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.scenes import sensor
from eventspec.scenes.sensor import FLOOR, NOISE_HZ, REFRACTORY_US, THRESHOLD, sense

SIDE = 20
SECOND_US = 1_000_000


def ramp(change: float, steps: int = 101) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
    """Luminance float32 [steps, SIDE, SIDE] whose logarithm changes evenly by `change` in all."""
    log = np.log(0.2 + FLOOR) + change * np.linspace(0.0, 1.0, steps)
    return np.broadcast_to((np.exp(log) - FLOOR)[:, None, None], (steps, SIDE, SIDE)).astype(np.float32)


def test_a_still_scene_gives_background_noise_only() -> None:
    x, _, _, p = sense(ramp(0.0), SECOND_US, np.random.default_rng(0))
    expected = NOISE_HZ * SIDE * SIDE
    assert abs(len(x) - expected) < 5 * expected**0.5 + 1
    assert {0, 1} == set(p.tolist())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_steady_change_gives_one_event_a_threshold(monkeypatch: pytest.MonkeyPatch, sign: float) -> None:
    monkeypatch.setattr(sensor, "NOISE_HZ", 0.0)
    x, y, t, p = sense(ramp(sign * 1.0), SECOND_US, np.random.default_rng(0))
    counts = np.bincount(y.astype(int) * SIDE + x, minlength=SIDE * SIDE)
    assert abs(counts.mean() - 1.0 / THRESHOLD) < 0.6  # 1 / 0.25 crossings; the last may just be missed
    assert set(p.tolist()) == {int(sign > 0)}
    first = np.array([t[(x == px) & (y == 3)].min() for px in range(SIDE)])
    assert abs(first.mean() - THRESHOLD * SECOND_US) < 0.1 * THRESHOLD * SECOND_US  # interpolated, not at sub-frame ends
    assert len(np.unique(t % 10_000)) > 50


def test_events_are_sorted_in_range_and_keep_the_refractory_time() -> None:
    rng = np.random.default_rng(1)
    luma = rng.uniform(0.01, 1.0, (101, SIDE, SIDE)).astype(np.float32)  # every pixel jumps all the time
    x, y, t, p = sense(luma, SECOND_US, np.random.default_rng(2))
    assert len(t) > 20_000
    assert (np.diff(t) >= 0).all()
    assert t[0] >= 0 and t[-1] < SECOND_US
    assert x.max() < SIDE and y.max() < SIDE and p.max() <= 1
    pixel = y.astype(np.int64) * SIDE + x
    order = np.lexsort((t, pixel))
    gaps, same = np.diff(t[order]), np.diff(pixel[order]) == 0
    assert gaps[same].min() >= REFRACTORY_US


def test_the_generator_alone_decides() -> None:
    one, same, other = (sense(ramp(0.7), SECOND_US, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[2], other[2])
