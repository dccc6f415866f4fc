"""One definition of each figure: ratios of sums, their bootstrap intervals, shares. They know no models."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

FEWEST = 5
"""Groups that an interval takes. With four, one draw in 64 takes a single group four times, so that the ends of a 95 % interval
are little more than the two extreme groups: 2.4 to 436 was one, of four answers."""


def ratio_of_sums(above: Sequence[float], below: Sequence[float]) -> float | None:
    """sum(above) / sum(below); None for an empty denominator. Never a mean of ratios."""
    total = float(np.sum(below))
    return float(np.sum(above)) / total if total else None


def ratio_interval(
    above: Sequence[float], below: Sequence[float], groups: Sequence[Hashable], draws: int = 2000, seed: int = 0
) -> list[float] | None:
    """95 % bootstrap interval of the ratio of sums, resampling whole groups: samples that share a recording are not
    independent. None for fewer than `FEWEST` groups."""
    place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(place) < FEWEST or not np.sum(below):
        return None
    index = [place[group] for group in groups]
    sums = [np.bincount(index, np.asarray(column, float)) for column in (above, below)]
    drawn = np.random.default_rng(seed).integers(len(place), size=(draws, len(place)))
    ratios = sums[0][drawn].sum(1) / sums[1][drawn].sum(1)
    return [float(x) for x in np.percentile(ratios, [2.5, 97.5])]


def mean(values: Sequence[float]) -> float | None:
    """The mean, None when there is nothing."""
    return float(np.mean(values)) if len(values) else None
