"""How far two sets of features lie apart. A gap says nothing about acceptance by itself: that is counted in accepted tokens.

Arrays are float [N, D] and [M, D], a row a feature; what reads them as pairs needs N = M, the same moment in the same row. All
raise BadInput for other shapes, for too few rows, for NaN and for settings that make no sense. Computed in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eventspec.core import BadInput

Matrix = np.ndarray[Any, np.dtype[np.float64]]
_BLOCK = 1024
"""Rows that are compared with all others at once."""


def cosine(a: Any, b: Any) -> float:
    """Mean cosine similarity of paired rows, in [-1, 1]; a row of zeros counts 0."""
    x, y = _paired(a, b)
    length = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return float(np.mean(np.divide((x * y).sum(1), length, out=np.zeros_like(length), where=length > 0)))


def l2(a: Any, b: Any) -> float:
    """Mean Euclidean distance of paired rows."""
    x, y = _paired(a, b)
    return float(np.linalg.norm(x - y, axis=1).mean())


def mmd(a: Any, b: Any, bandwidth: float | None = None) -> float:
    """Squared maximum mean discrepancy, unbiased (Gretton et al. 2012, section 2): two samples of one distribution give 0 on
    average, and may give less. Kernel exp(-d^2 / (2 bandwidth^2)); without a bandwidth the median of the distances above 0, of
    1024 rows of each set at most, evenly taken."""
    x, y = _checked(a, b)
    middle = (x.mean(0) + y.mean(0)) / 2  # distances of rows far from zero would lose their digits
    x, y = x - middle, y - middle
    width = _median_distance(x, y) if bandwidth is None else bandwidth
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


def _median_distance(x: Matrix, y: Matrix) -> float:
    """Of the rows of both sets to one another, 1024 of each at most; rows that are equal say nothing of how far others lie."""
    some = np.concatenate([rows[:: -(-len(rows) // _BLOCK)] for rows in (x, y)])
    apart = _squared(some, some)[np.triu_indices(len(some), 1)]
    # What is left of equal rows is rounding.
    apart = apart[apart > 1e-12 * (some**2).sum(1).max()]
    return math.sqrt(float(np.median(apart))) if len(apart) else 0.0
