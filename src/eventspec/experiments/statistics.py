"""One definition of each statistic: ratios of sums, shares, correlations, and their intervals. They know no models."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from eventspec.core import BadInput

FEWEST = 5
"""Groups that an interval takes. With four, one draw in 64 takes a single group four times, so that the ends of a 95 % interval
are little more than the two extreme groups: 2.4 to 436 was one, of four answers."""
ENOUGH = 20
"""Groups from which on an interval is about as wide as it says: of skewed times it holds the truth in 92 to 93 of 100
simulations; of five to ten groups in 89 to 92."""
LEAST_ERROR = 0.1
"""Of a draw, in standard errors of the sample: from a quarter on, intervals of five groups cover less."""


def ratio_of_sums(above: Sequence[float], below: Sequence[float]) -> float | None:
    """sum(above) / sum(below); None for an empty denominator. Never a mean of ratios."""
    total = float(np.sum(below))
    return float(np.sum(above)) / total if total else None


def ratio_interval(
    above: Sequence[float], below: Sequence[float], groups: Sequence[Hashable], draws: int = 2000, seed: int = 0
) -> list[float] | None:
    """95 % interval of the ratio of sums: studentized bootstrap over whole groups, as samples that share a recording are not
    independent. None for fewer than `FEWEST` groups.

    Each draw's distance from the ratio is taken in its own standard errors (Hall 1992, 3.5): of skewed times, percentiles
    of the ratios themselves are too narrow, and on the wrong side."""
    place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(place) < FEWEST or not np.sum(below):
        return None
    index = [place[group] for group in groups]
    one, two = (np.bincount(index, np.asarray(column, float)) for column in (above, below))
    drawn = np.random.default_rng(seed).multinomial(len(place), np.full(len(place), 1 / len(place)), size=draws)
    times = np.vstack((np.ones(len(place)), drawn))  # how often each group is there: once, then in every draw
    with np.errstate(divide="ignore", invalid="ignore"):
        total = times @ two
        ratios = times @ one / total
        # Of the residuals themselves: a difference of large sums would leave rounding where all groups of a draw are alike.
        errors = np.sqrt((times * (one - ratios[:, None] * two) ** 2).sum(1)) / total
        # A draw of groups that are nearly alike has hardly an error of its own, and would be infinitely far away.
        distances = (ratios[1:] - ratios[0]) / np.maximum(errors[1:], LEAST_ERROR * errors[0])
    low, high = np.percentile(distances, [2.5, 97.5]) if errors[0] > 1e-9 * abs(ratios[0]) else (0.0, 0.0)
    least = 0.0 if one.min() >= 0 else -np.inf
    return [max(least, float(ratios[0] - high * errors[0])), float(ratios[0] - low * errors[0])]


BLOCKS = 20
"""Blocks of groups that `jackknife_interval` leaves out in turn."""


def jackknife_interval(
    statistic: Callable[[np.ndarray[Any, np.dtype[np.bool_]]], float], groups: Sequence[Hashable]
) -> list[float] | None:
    """95 % interval of what `statistic` gives for those samples that a mask, bool [N], keeps, where that is no ratio of sums:
    delete-a-group jackknife (Kott 2001) over at most BLOCKS blocks of whole groups. None for fewer than `FEWEST` groups.

    For distances of sets a bootstrap is wrong: its draws hold groups twice, and rows that are there twice are no sample of
    their set to a kernel or an assignment."""
    place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(place) < FEWEST:
        return None
    count = min(len(place), BLOCKS)
    block = np.array([place[group] * count // len(place) for group in groups])
    whole = statistic(np.ones(len(block), bool))
    without = np.array([statistic(block != number) for number in range(count)])
    error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
    reach = float(scipy().t.ppf(0.975, count - 1)) * error
    return [whole - reach, whole + reach]


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def wilson(count: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, as if what is counted were independent."""
    interval = scipy().binomtest(count, of).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def never_seen(trials: int) -> float:
    """The lower end of the one-sided 95 % interval of a share that was 1 in all trials."""
    return float(scipy().binomtest(trials, trials, alternative="greater").proportion_ci(0.95, "exact").low)


def rank_correlation(groups: Sequence[Sequence[tuple[float, float]]], draws: int = 2000) -> list[float | None]:
    """Spearman's correlation of pairs, and its 95 % bootstrap interval, resampling whole groups of equal size: [value, low,
    high]; no interval for fewer than `FEWEST` groups."""
    pairs = np.array(groups, float)  # [groups, pairs, 2]
    value = float(scipy().spearmanr(*pairs.reshape(-1, 2).T).statistic)
    if len(pairs) < FEWEST:
        return [value, None, None]
    drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(draws, len(pairs)))].reshape(draws, -1, 2)
    ranks = scipy().rankdata(drawn, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    with np.errstate(invalid="ignore"):  # a draw of one value alone has no correlation
        found = ranks.prod(2).sum(1) / np.sqrt((ranks**2).sum(1).prod(1))
    return [value, *(float(end) for end in np.nanpercentile(found, [2.5, 97.5]))]


def scipy() -> Any:
    """The module `scipy.stats`. BadInput where it is not installed."""
    try:
        from scipy import stats
    except ImportError:
        raise BadInput("these statistics need scipy: pip install 'eventspec[bench]'") from None
    return stats
