"""How far two sets of features lie apart. A gap says nothing about acceptance by itself: that is counted in accepted tokens.

Arrays are float [N, D] and [M, D], a row a feature; what reads them as pairs needs N = M, the same moment in the same row. All
raise BadInput for other shapes, for too few rows and for NaN. Computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from eventspec.core import BadInput

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Gap = Callable[[Any, Any], float]
_BLOCK = 1024
"""Rows whose distances to all others are held at once."""


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
    """Squared maximum mean discrepancy, unbiased (Gretton et al. 2012, eq. 3): two samples of one distribution give 0 on
    average, and may give less. Kernel exp(-d^2 / (2 bandwidth^2)); without a bandwidth the median distance of the rows, of 1024
    of each set at most, evenly taken."""
    x, y = _checked(a, b)
    width = _median_distance(x, y) if bandwidth is None else bandwidth
    if not (np.isfinite(width) and width > 0):
        if bandwidth is not None:
            raise BadInput(f"a bandwidth of {bandwidth}: it must be above 0")
        return 0.0  # all rows are the same one

    def total(first: Matrix, second: Matrix) -> float:
        blocks = (first[at : at + _BLOCK] for at in range(0, len(first), _BLOCK))
        return float(sum(np.exp(-_squared(block, second) / (2 * width**2)).sum() for block in blocks))

    n, m = len(x), len(y)
    within = (total(x, x) - n) / (n * (n - 1)) + (total(y, y) - m) / (m * (m - 1))
    return within - 2 * total(x, y) / (n * m)


def sliced_wasserstein(a: Any, b: Any, order: int = 2, projections: int = 256, seed: int = 0) -> float:
    """Wasserstein distance of order 1 or 2 along random directions: the mean over the unit sphere of the distances to the power
    `order`, and its root (Bonneel et al. 2015, section 2). Exact in each direction, of sets of any sizes."""
    x, y = _checked(a, b)
    if order not in (1, 2) or projections < 1:
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
    """Linear centred kernel alignment of paired rows, in [0, 1] (Kornblith et al. 2019, eq. 3): 1 for rotations and scalings of
    one another. Biased upwards by about D / N: take many more rows than columns; a and b may have different ones."""
    x, y = (_matrix(given) for given in (a, b))
    if len(x) != len(y) or len(x) < 3:
        raise BadInput(f"{len(x)} and {len(y)} rows: wanted pairs, three at least")
    x, y = x - x.mean(0), y - y.mean(0)
    own = float(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    return float(np.linalg.norm(y.T @ x) ** 2 / own) if own > 0 else 0.0


def information(a: Any, b: Any, ridge: float = 1e-3) -> float:
    """Lower bound in nats on the mutual information of paired rows (InfoNCE, van den Oord et al. 2018, eq. 5): at most the
    logarithm of half their number. The critic is the density ratio of Gaussians, fitted on the even rows (`ridge` relative to
    the mean variance) and judged on the odd ones; for Gaussians no critic is better."""
    x, y = (_matrix(given) for given in (a, b))
    least = 4 * max(x.shape[1], y.shape[1])
    if len(x) != len(y) or len(x) < least:
        raise BadInput(f"{len(x)} and {len(y)} rows: wanted pairs, {least} of them at least for so many columns")
    middle = x[::2].mean(0), y[::2].mean(0)
    known, judged = ((x[at::2] - middle[0], y[at::2] - middle[1]) for at in (0, 1))

    def covariance(rows: Matrix) -> Matrix:
        found: Matrix = rows.T @ rows / len(rows)
        damped: Matrix = found + (ridge * float(np.trace(found)) / len(found) + 1e-12) * np.eye(len(found))
        return damped

    onto = np.linalg.solve(covariance(known[0]), known[0].T @ known[1] / len(known[0]))
    rest = np.linalg.inv(covariance(known[1] - known[0] @ onto))
    alone = np.linalg.inv(covariance(known[1]))
    # log p(y | x) - log p(y) for row x with column y [n, n], but for what depends on x alone, which cancels.
    own, guess = judged[1], judged[0] @ onto
    critic = guess @ rest @ own.T - 0.5 * np.einsum("nd,de,ne->n", own, rest - alone, own)[None]
    top = critic.max(1, keepdims=True)
    others = np.log(np.exp(critic - top).mean(1)) + top[:, 0]
    return float(np.mean(np.diagonal(critic) - others))


GAPS: Mapping[str, Gap] = {
    "cosine": cosine,
    "l2": l2,
    "mmd": mmd,
    "sliced_wasserstein": sliced_wasserstein,
    "linear_cka": linear_cka,
    "information": information,
}
"""All of them by name, for tables."""


def _matrix(given: Any) -> Matrix:
    found: Matrix = np.asarray(given, np.float64)
    if found.ndim != 2 or not found.size:
        raise BadInput(f"features are {list(found.shape)}: wanted [N, D], a row a feature")
    if not np.isfinite(found).all():
        wrong = int((~np.isfinite(found)).any(1).sum())
        raise BadInput(f"{wrong} of {len(found)} features hold NaN or infinity: mend what they come from")
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
    """Of the rows of both sets to one another, 1024 of each at most."""
    some = np.concatenate([rows[:: -(-len(rows) // _BLOCK)] for rows in (x, y)])
    return float(np.sqrt(np.median(_squared(some, some)[np.triu_indices(len(some), 1)])))
