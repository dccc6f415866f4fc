"""Feature gaps: closed forms on Gaussians, scipy where it has them, planted shifts, and permutations as the null."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import cosine as cosine_distance
from scipy.stats import wasserstein_distance

from eventspec.align import gaps
from eventspec.core import BadInput

RNG = np.random.default_rng(3)
A, B = RNG.normal(size=(1500, 8)), RNG.normal(size=(1300, 8))


def test_paired_gaps_are_scipys() -> None:
    x, y = A[:50], B[:50]
    assert gaps.cosine(x, y) == pytest.approx(np.mean([1 - cosine_distance(p, q) for p, q in zip(x, y, strict=True)]))
    assert gaps.l2(x, y) == pytest.approx(np.mean([math.dist(p, q) for p, q in zip(x, y, strict=True)]))
    assert gaps.cosine(x, 2 * x) == pytest.approx(1)
    assert gaps.cosine(np.zeros((2, 3)), np.ones((2, 3))) == 0


def test_sliced_wasserstein_in_one_dimension_is_scipys_for_sets_of_any_sizes() -> None:
    x, y = A[:70, :1], 0.4 + 2 * B[:31, :1]
    assert gaps.sliced_wasserstein(x, y, order=1) == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0]))


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_sliced_wasserstein_of_a_shift_is_its_length_over_the_root_of_the_dimensions(shift: float) -> None:
    assert gaps.sliced_wasserstein(A, A + shift, projections=4000) == pytest.approx(shift, rel=0.03)


def test_mmd_of_gaussians_is_the_closed_form() -> None:
    """E k(x, y) of two Gaussians of variance 1, a shift apart, in D dimensions; Gretton et al. 2012, section 2."""
    width, shift, d = 2.0, np.full(8, 0.8), 8
    x, y = RNG.normal(size=(4000, d)), RNG.normal(size=(4000, d)) + shift

    def expected(apart: float) -> float:
        return float((width**2 / (width**2 + 2)) ** (d / 2) * math.exp(-(apart**2) / (2 * (width**2 + 2))))

    assert gaps.mmd(x, y, width) == pytest.approx(2 * expected(0) - 2 * expected(float(np.linalg.norm(shift))), rel=0.05)


def test_mmd_is_unbiased() -> None:
    found = [gaps.mmd(*RNG.normal(size=(2, 20, 3))) for _ in range(400)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(len(found))
    assert min(found) < 0


@pytest.mark.parametrize("gap", [gaps.mmd, gaps.sliced_wasserstein])
def test_a_planted_shift_is_found_and_a_permutation_is_not(gap: gaps.Gap) -> None:
    both = np.concatenate((A[:400], A[400:800] + 0.3))
    null = [gap(*np.split(both[RNG.permutation(800)], 2)) for _ in range(40)]
    assert gap(both[:400], both[400:]) > max(null)
    same = np.concatenate((A[:400], A[400:800]))
    found, null = gap(*np.split(same, 2)), [gap(*np.split(same[RNG.permutation(800)], 2)) for _ in range(40)]
    assert min(null) <= found <= max(null)


def test_alignment_of_kernels_does_not_see_rotations_and_scales() -> None:
    turned = A @ np.linalg.qr(RNG.normal(size=(8, 8)))[0] * 3 + 5
    assert gaps.linear_cka(A, turned) == pytest.approx(1)
    assert gaps.linear_cka(A, A[RNG.permutation(len(A))]) < 0.05
    assert gaps.linear_cka(A, A[:, :4]) == pytest.approx(math.sqrt(0.5), rel=0.05), "half the columns of a white matrix"
    assert gaps.linear_cka(np.ones((5, 2)), A[:5]) == 0


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_information_of_gaussians_is_the_closed_form(rho: float) -> None:
    x = RNG.normal(size=(8000, 2))
    y = rho * x + math.sqrt(1 - rho**2) * RNG.normal(size=x.shape)
    mixed = y @ RNG.normal(size=(2, 2))
    assert gaps.information(x, mixed) == pytest.approx(-math.log(1 - rho**2), abs=0.06)


def test_information_is_a_bound_not_a_guess() -> None:
    assert gaps.information(A, A) <= math.log(len(A) / 2) + 1e-9
    assert gaps.information(A[:200], RNG.normal(size=(200, 8))) < 0.1, "what was fitted is judged on other rows"


@pytest.mark.parametrize("name", gaps.GAPS)
def test_what_is_no_set_of_features_is_refused(name: str) -> None:
    gap, broken = gaps.GAPS[name], A[:100].copy()
    broken[3, 1] = np.nan
    for x, y, said in (
        (A[:100], broken, "1 of 100 features hold NaN"),
        (A[:100, 0], A[:100], r"\[100\]"),
        (A[:1], A[:0], "features are"),
        (A[:1], A[:2], "wanted"),
    ):
        with pytest.raises(BadInput, match=said):
            gap(x, y)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="bandwidth"):
        gaps.mmd(A, B, 0.0)
    with pytest.raises(BadInput, match="order 3"):
        gaps.sliced_wasserstein(A, B, order=3)
    assert gaps.mmd(np.ones((3, 2)), np.ones((4, 2))) == 0
