"""Intervals hold what they promise: a simulation of known truth, with the percentile bootstrap as the negative control."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.align.gaps import mmd
from eventspec.experiments.statistics import jackknife_interval, ratio_interval


def percentile_interval(above: np.ndarray, below: np.ndarray, draws: int, seed: int) -> tuple[float, float]:
    """What was used before."""
    drawn = np.random.default_rng(seed).integers(len(above), size=(draws, len(above)))
    low, high = np.percentile(above[drawn].sum(1) / below[drawn].sum(1), [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize(("recordings", "least"), [(20, 0.915), (8, 0.88)])
def test_intervals_of_skewed_times_cover_what_they_say(recordings: int, least: float) -> None:
    """A method takes `below`, the baseline skewed times more. Nominal are 95 %."""
    rng, trials = np.random.default_rng(7), 400
    truth = 1 + 0.5 * np.exp(0.5) / np.exp(0.6**2 / 2)
    covered = {"studentized": 0, "percentile": 0}
    for seed in range(trials):
        below = rng.lognormal(0, 0.6, recordings)
        above = below + 0.5 * rng.lognormal(0, 1, recordings)
        studentized = ratio_interval(above.tolist(), below.tolist(), range(recordings), draws=400, seed=seed)
        assert studentized is not None
        for name, (low, high) in (
            ("studentized", studentized),
            ("percentile", percentile_interval(above, below, 400, seed)),
        ):
            covered[name] += low <= truth <= high
    assert covered["studentized"] >= least * trials
    assert covered["percentile"] < 0.9 * trials, "the control covers as much: this test could not fail"


def test_an_interval_of_a_baseline_against_itself_is_a_point() -> None:
    times = np.random.default_rng(0).lognormal(4, 1, 12).tolist()
    assert ratio_interval(times, times, range(12)) == [1.0, 1.0]
    assert ratio_interval([0.0] * 12, times, range(12)) == [0.0, 0.0]
    rare = ratio_interval([1.0, *[0.0] * 11], times, range(12))
    assert rare is not None and 0 <= rare[0] <= rare[1] < np.inf


def test_an_interval_is_bounded_where_nearly_all_groups_agree() -> None:
    """One recording of ten differs: draws of those that are alike have no spread, and must not stretch the interval."""
    below = [1.0] * 10
    interval = ratio_interval([1.1] * 9 + [1.32], below, range(10))
    assert interval is not None and 1.05 < interval[0] < 1.122 < interval[1] < 1.5


def test_an_interval_of_a_distance_between_sets_holds_the_truth() -> None:
    """MMD of one distribution, rows of a recording being alike, is 0; what is drawn with replacement holds rows twice, and
    takes that for a distance."""
    rng, trials, recordings = np.random.default_rng(3), 60, 8
    groups, covered, drawn = np.repeat(np.arange(recordings), 6), 0, []
    for _ in range(trials):
        x, y = (rng.normal(size=(2, recordings, 1, 2)) + rng.normal(size=(2, recordings, 6, 2))).reshape(2, -1, 2)
        interval = jackknife_interval(lambda kept: mmd(x[kept], y[kept], 1.5), groups.tolist())  # noqa: B023
        assert interval is not None
        covered += interval[0] <= 0 <= interval[1]
        again = np.concatenate([np.flatnonzero(groups == group) for group in rng.integers(recordings, size=recordings)])
        drawn.append(mmd(x[again], y[again], 1.5) - mmd(x, y, 1.5))
    assert covered >= 0.88 * trials
    assert np.mean(drawn) > 4 * np.std(drawn) / np.sqrt(trials), "the control is as good: this test could not fail"
    assert jackknife_interval(lambda kept: 0.0, [0, 1, 2, 3]) is None
