"""One definition of each figure: ratios of sums, their bootstrap intervals, shares. They know no models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ratio_of_sums(above: Sequence[float], below: Sequence[float]) -> float | None:
    """sum(above) / sum(below); None for an empty denominator. Never a mean of ratios."""
    total = float(np.sum(below))
    return float(np.sum(above)) / total if total else None


def ratio_interval(above: Sequence[float], below: Sequence[float], draws: int = 2000, seed: int = 0) -> list[float] | None:
    """95 % bootstrap interval of the ratio of sums, resampling whole samples (pairs stay pairs)."""
    if len(above) < 2 or not np.sum(below):
        return None
    rng = np.random.default_rng(seed)
    index = rng.integers(len(above), size=(draws, len(above)))
    ratios = np.asarray(above, float)[index].sum(1) / np.asarray(below, float)[index].sum(1)
    return [float(x) for x in np.percentile(ratios, [2.5, 97.5])]


def mean(values: Sequence[float]) -> float | None:
    """The mean, None when there is nothing."""
    return float(np.mean(values)) if len(values) else None
