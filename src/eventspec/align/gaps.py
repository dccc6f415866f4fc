"""How far two sets of features lie apart. A gap says nothing about acceptance by itself: that is counted in accepted tokens.

Arrays are float [N, D] and [M, D], a row a feature; what reads them as pairs needs N = M, the same moment in the same row. All
raise BadInput for other shapes, for too few rows, for NaN and for settings that make no sense. Computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from eventspec.core import BadInput

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Vector = np.ndarray[Any, np.dtype[np.float64]]
SHARES = (0.8, 0.85, 0.9)
"""Cosines, of which it is counted how many rows lie above."""
RIDGE = 0.1
"""Weight of a classifier's penalty, in rows."""
_BLOCK = 1024
"""Rows that are compared with all others at once."""


def cosine(a: Any, b: Any) -> float:
    """Mean cosine similarity of paired rows, in [-1, 1]; a row of zeros counts 0."""
    return float(by_row(a, b)["cosine"].mean())


def l2(a: Any, b: Any) -> float:
    """Mean Euclidean distance of paired rows."""
    return float(by_row(a, b)["l2"].mean())


def by_row(a: Any, b: Any) -> dict[str, Vector]:
    """Of paired rows, float64 [N] each: `cosine`, `l2`, and by each of SHARES, as `above 0.8`, 1 where the cosine is above."""
    x, y = _paired(a, b)
    length = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    near = np.divide((x * y).sum(1), length, out=np.zeros_like(length), where=length > 0)
    above = {f"above {share:g}": (near > share).astype(np.float64) for share in SHARES}
    return {"cosine": near, "l2": np.linalg.norm(x - y, axis=1), **above}


def mmd(a: Any, b: Any, bandwidth: float | None = None) -> float:
    """Squared maximum mean discrepancy, unbiased (Gretton et al. 2012, section 2): two samples of one distribution give 0 on
    average, and may give less. Kernel exp(-d^2 / (2 bandwidth^2)); without a bandwidth the median of the distances above 0, of
    1024 rows of each set at most, evenly taken."""
    x, y = _checked(a, b)
    middle = (x.mean(0) + y.mean(0)) / 2  # distances of rows far from zero would lose their digits
    x, y = x - middle, y - middle
    width = median_distance(x, y) if bandwidth is None else bandwidth
    if bandwidth is not None and not 1e-100 < bandwidth < 1e100:
        raise BadInput(f"a bandwidth of {bandwidth}: it must be above 0, and a number")
    if width == 0:
        return 0.0  # all rows are the same one

    def total(first: Matrix, second: Matrix) -> float:
        blocks = (first[at : at + _BLOCK] for at in range(0, len(first), _BLOCK))
        return float(sum(np.exp(-_squared(block, second) / (2 * width**2)).sum() for block in blocks))

    n, m = len(x), len(y)
    within = (total(x, x) - n) / (n * (n - 1)) + (total(y, y) - m) / (m * (m - 1))
    return within - 2 * total(x, y) / (n * m)


def median_distance(a: Any, b: Any) -> float:
    """Of the rows of both sets to one another, 1024 of each at most; rows that are equal say nothing of how far others lie: 0
    where all are. The bandwidth that `mmd` takes by itself."""
    x, y = _checked(a, b)
    some = np.concatenate([rows[:: -(-len(rows) // _BLOCK)] for rows in (x, y)])
    some -= some.mean(0)
    apart = _squared(some, some)[np.triu_indices(len(some), 1)]
    # What is left of equal rows is rounding.
    apart = apart[apart > 1e-12 * (some**2).sum(1).max()]
    return math.sqrt(float(np.median(apart))) if len(apart) else 0.0


def sliced_wasserstein(a: Any, b: Any, order: int = 2, projections: int = 256, seed: int = 0) -> float:
    """Wasserstein distance of order 1 or 2 along random directions: the mean over a sample of the unit sphere of the distances
    to the power `order`, and its root (Bonneel et al. 2015). Exact in each direction, of sets of any sizes. Two samples of one
    distribution are above 0, small ones further: compare sets of equal sizes, or with a permutation of their rows."""
    x, y = _checked(a, b)
    if order not in (1, 2) or not isinstance(projections, int) or projections < 1:
        raise BadInput(f"order {order} with {projections} projections: wanted order 1 or 2 and one projection at least")
    directions = np.random.default_rng(seed).normal(size=(x.shape[1], projections))
    directions /= np.linalg.norm(directions, axis=0)
    along, other = np.sort(x @ directions, axis=0), np.sort(y @ directions, axis=0)
    # Both quantile functions are steps: between two ends of steps of either, their difference is constant.
    ends = np.union1d(np.arange(1, len(x) + 1) / len(x), np.arange(1, len(y) + 1) / len(y))
    middle, weight = ends - np.diff(ends, prepend=0.0) / 2, np.diff(ends, prepend=0.0)
    apart = along[(middle * len(x)).astype(int)] - other[(middle * len(y)).astype(int)]
    return float(np.mean(weight @ np.abs(apart) ** order) ** (1 / order))


def wasserstein(a: Any, b: Any, order: int = 2) -> float:
    """Wasserstein distance of order 1 or 2 of two sets of as many rows, exact: of the assignment of rows to one another whose
    distances to the power `order` are least on average, the root of that. Needs scipy; N^3 steps at worst. As with
    `sliced_wasserstein`, two samples of one distribution are above 0, far above in many dimensions."""
    x, y = _checked(a, b)
    if order not in (1, 2) or len(x) != len(y):
        raise BadInput(f"order {order} of {len(x)} and {len(y)} rows: wanted order 1 or 2, and as many rows of both")
    from scipy.optimize import linear_sum_assignment

    middle = (x.mean(0) + y.mean(0)) / 2  # as in `mmd`
    apart = _squared(x - middle, y - middle) ** (order / 2)
    return float(apart[linear_sum_assignment(apart)].mean() ** (1 / order))


def classified(a: Any, b: Any, groups: Sequence[Hashable], folds: int = 5) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether a classifier finds which set each of 2 N rows is from, those of `a` first, bool [2 N]; half of them, where the
    sets do not differ in what is linear. Ridge regression of the set on standardised columns, fitted on other groups of rows
    than it is judged on: `groups` [N] says which group a pair of rows is of, say its recording, and two are needed."""
    x, y = _checked(a, b)
    place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if not len(x) == len(y) == len(groups) or len(place) < 2:
        raise BadInput(
            f"{len(x)} and {len(y)} rows in {len(place)} groups: wanted pairs, and two groups to judge by each other"
        )
    fold = np.array([place[group] % folds for group in groups])
    found = np.zeros((2, len(x)), bool)
    for number in np.unique(fold):
        learned, judged = fold != number, fold == number
        score = _ridge(np.concatenate((x[learned], y[learned])))
        found[0, judged], found[1, judged] = score(x[judged]) < 0, score(y[judged]) > 0
    return found.ravel()


def linear_cka(a: Any, b: Any) -> float:
    """Linear centred kernel alignment of paired rows, in [0, 1] (Kornblith et al. 2019, section 3): 1 for rotations and
    scalings of one another. Biased upwards: independent white rows give about D / (N + D), so take many more rows than columns.
    a and b may differ in the number of columns; a set that does not vary gives 0."""
    x, y = _matrix(a), _matrix(b)
    if len(x) != len(y) or len(x) < 3:
        raise BadInput(f"{len(x)} and {len(y)} rows of features: wanted pairs, 3 at least")
    centred = [rows - rows.mean(0) for rows in (x, y)]
    if any(np.linalg.norm(now) <= 1e-12 * np.linalg.norm(was) for now, was in zip(centred, (x, y), strict=True)):
        return 0.0
    x, y = (rows / np.linalg.norm(rows) for rows in centred)
    if max(x.shape[1], y.shape[1]) > len(x):  # the same sums, in fewer steps
        one, other = x @ x.T, y @ y.T
        return float((one * other).sum() / (np.linalg.norm(one) * np.linalg.norm(other)))
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def _matrix(given: Any) -> Matrix:
    try:
        found: Matrix = np.asarray(given, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"features cannot be read as numbers ({error}): give arrays, or tensors as .detach().float()") from None
    if found.ndim != 2 or not found.size:
        raise BadInput(f"features are {list(found.shape)}: wanted [N, D], a row a feature")
    if not (np.abs(found) < 1e100).all():
        wrong = int((~(np.abs(found) < 1e100)).any(1).sum())
        raise BadInput(f"{wrong} of {len(found)} features hold NaN, infinity or the like: mend what they come from")
    return found


def _checked(a: Any, b: Any) -> tuple[Matrix, Matrix]:
    """Two sets of as many columns; two rows each at least."""
    x, y = _matrix(a), _matrix(b)
    if x.shape[1] != y.shape[1] or min(len(x), len(y)) < 2:
        raise BadInput(f"features are {list(x.shape)} and {list(y.shape)}: wanted as many columns, and two rows each at least")
    return x, y


def _paired(a: Any, b: Any) -> tuple[Matrix, Matrix]:
    x, y = _matrix(a), _matrix(b)
    if x.shape != y.shape:
        raise BadInput(f"features are {list(x.shape)} and {list(y.shape)}: wanted pairs, so the same shape")
    return x, y


def _squared(x: Matrix, y: Matrix) -> Matrix:
    """Squared distances [N, M]."""
    found: Matrix = np.maximum((x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * (x @ y.T), 0.0)
    return found


def _ridge(learned: Matrix) -> Callable[[Matrix], Vector]:
    """Of rows of two sets, half of them of the first: what regression gives for others, below 0 for the first set."""
    mean, scale = learned.mean(0), np.maximum(learned.std(0), 1e-9 * max(1e-300, float(np.abs(learned).max())))
    x, y = (learned - mean) / scale, np.repeat((-1.0, 1.0), len(learned) // 2)
    wide = x.shape[1] > len(x)
    gram = (x @ x.T if wide else x.T @ x) + RIDGE * len(x) * np.eye(min(x.shape))
    weights = x.T @ np.linalg.solve(gram, y) if wide else np.linalg.solve(gram, x.T @ y)

    def score(rows: Matrix) -> Vector:
        found: Vector = (rows - mean) / scale @ weights
        return found

    return score
