"""Feature gaps: closed forms on Gaussians, scipy where it has them, planted shifts, and permutations as the null."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine as cosine_distance
from scipy.stats import wasserstein_distance

from eventspec.align.gaps import by_row, classified, cosine, l2, linear_cka, mmd, sliced_wasserstein, wasserstein
from eventspec.core import BadInput

Gap = Callable[[Any, Any], float]
A, B = np.random.default_rng(3).normal(size=(1500, 8)), np.random.default_rng(4).normal(size=(1300, 8))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_paired_gaps_are_scipys() -> None:
    x, y = A[:50], B[:50]
    assert cosine(x, y) == pytest.approx(np.mean([1 - cosine_distance(p, q) for p, q in zip(x, y, strict=True)]))
    assert l2(x, y) == pytest.approx(np.mean([math.dist(p, q) for p, q in zip(x, y, strict=True)]))
    assert cosine(x, 2 * x) == pytest.approx(1)
    assert cosine(np.zeros((2, 3)), np.ones((2, 3))) == 0


def test_rows_are_counted_above_a_cosine() -> None:
    x = np.tile([1.0, 0.0], (4, 1))
    y = np.array([[1, 0], [0.87, math.sqrt(1 - 0.87**2)], [0.82, math.sqrt(1 - 0.82**2)], [0, 1]])
    found = by_row(x, y)
    assert found["cosine"] == pytest.approx([1, 0.87, 0.82, 0])
    assert {name: values.mean() for name, values in found.items() if "above" in name} == {
        "above 0.8": 0.75,
        "above 0.85": 0.5,
        "above 0.9": 0.25,
    }


@pytest.mark.parametrize("order", [1, 2])
def test_exact_wasserstein_is_the_closed_form(order: int, rng: np.random.Generator) -> None:
    """In one dimension sorted rows are matched; a shift moves every row by its length, in any order of the rows."""
    x, y = A[:80, 0], 0.4 + 2 * B[:80, 0]
    along = float(np.mean(np.abs(np.sort(x) - np.sort(y)) ** order) ** (1 / order))
    assert wasserstein(x[:, None], y[:, None], order) == pytest.approx(along)
    assert wasserstein(A[:80], rng.permutation(A[:80] + 0.5), order) == pytest.approx(0.5 * math.sqrt(8))
    assert wasserstein(A[:80] + 1e8, A[:80] + 1e8 + 3.0, order) == pytest.approx(3 * math.sqrt(8), rel=1e-6)


def test_a_classifier_finds_a_planted_shift_and_nothing_in_one_distribution(rng: np.random.Generator) -> None:
    groups = np.repeat(np.arange(25), 20).tolist()
    assert classified(A[:500], A[500:1000] + 0.5, groups).mean() > 0.7
    assert abs(classified(A[:500], A[500:1000], groups).mean() - 0.5) < 0.06
    wide = rng.normal(size=(2, 500, 900))
    assert abs(classified(*wide, groups).mean() - 0.5) < 0.06, "more columns than rows"
    assert classified(wide[0], wide[1] + 0.3, groups).mean() > 0.9
    # Rows of one recording are alike: a classifier that saw them would know the recording, not the set.
    alike = np.repeat(rng.normal(size=(2, 25, 8)), 20, axis=1)
    assert abs(classified(*alike, groups).mean() - 0.5) < 0.2


def test_a_classifier_reads_pairs_of_one_width_in_two_groups(rng: np.random.Generator) -> None:
    """Of independent noise in 16 and 24 columns, each row told by its similarities, it named 83 % right: that is no gap."""
    groups = np.repeat(np.arange(25), 20).tolist()
    with pytest.raises(BadInput, match="wanted as many columns"):
        classified(rng.normal(size=(500, 16)), rng.normal(size=(500, 24)), groups)
    for wrong in (groups[:-1], [0] * 500):
        with pytest.raises(BadInput, match="groups"):
            classified(A[:500], A[500:1000], wrong)


@pytest.mark.parametrize(("n", "m"), [(70, 31), (64, 64), (49, 7), (997, 1000)])
def test_sliced_wasserstein_in_one_dimension_is_scipys_for_sets_of_any_sizes(n: int, m: int) -> None:
    x, y = A[:n, :1], 0.4 + 2 * B[:m, :1]
    assert sliced_wasserstein(x, y, order=1) == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0]))


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_sliced_wasserstein_of_a_shift_is_its_length_over_the_root_of_the_dimensions(shift: float) -> None:
    assert sliced_wasserstein(A, A + shift, projections=4000) == pytest.approx(shift, rel=0.03)


@pytest.mark.parametrize("far", [0.0, 1e8])
def test_mmd_of_gaussians_is_the_closed_form(rng: np.random.Generator, far: float) -> None:
    """E k(x, y) of two Gaussians of variance 1, a shift apart, in D dimensions, wherever they lie."""
    width, shift, d = 2.0, np.full(8, 0.8), 8
    x, y = rng.normal(size=(4000, d)), rng.normal(size=(4000, d)) + shift

    def expected(apart: float) -> float:
        return float((width**2 / (width**2 + 2)) ** (d / 2) * math.exp(-(apart**2) / (2 * (width**2 + 2))))

    found = mmd(x + far, y + far, width)
    assert found == pytest.approx(2 * expected(0) - 2 * expected(float(np.linalg.norm(shift))), rel=0.05)


def test_mmd_is_unbiased(rng: np.random.Generator) -> None:
    found = [mmd(*rng.normal(size=(2, 20, 3))) for _ in range(400)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(len(found))
    assert min(found) < 0


def test_mmd_sees_sets_whose_rows_are_mostly_equal() -> None:
    """Windows without events make such rows."""
    some = np.concatenate((np.zeros((60, 2)), np.ones((40, 2))))
    assert mmd(np.zeros((100, 2)), some) > 0.1
    assert mmd(np.zeros((100, 2)), np.ones((50, 2))) > 0.5
    assert mmd(np.full((30, 2), 0.1), np.full((40, 2), 0.1)) == 0


@pytest.mark.parametrize("gap", [mmd, sliced_wasserstein])
def test_a_planted_shift_is_found_and_a_permutation_is_not(gap: Gap, rng: np.random.Generator) -> None:
    both = np.concatenate((A[:400], A[400:800] + 0.3))
    null = [gap(*np.split(both[rng.permutation(800)], 2)) for _ in range(40)]
    assert gap(both[:400], both[400:]) > max(null)
    same = A[:800]
    found, null = gap(*np.split(same, 2)), [gap(*np.split(same[rng.permutation(800)], 2)) for _ in range(40)]
    assert min(null) <= found <= max(null)


def test_alignment_of_kernels_does_not_see_rotations_and_scales(rng: np.random.Generator) -> None:
    turned = A @ np.linalg.qr(rng.normal(size=(8, 8)))[0] * 3 + 5
    assert linear_cka(A, turned) == pytest.approx(1)
    assert linear_cka(A, A[rng.permutation(len(A))]) < 0.05
    assert linear_cka(A, A[:, :4]) == pytest.approx(math.sqrt(0.5), rel=0.05), "half the columns of a white matrix"
    assert linear_cka(rng.normal(size=(100, 50)), rng.normal(size=(100, 50))) == pytest.approx(1 / 3, abs=0.05), "its bias"
    narrow, wide = A[:40], np.concatenate((A[:40], np.zeros((40, 60))), 1)
    assert linear_cka(wide, B[:40]) == pytest.approx(linear_cka(narrow, B[:40])), "more columns than rows"
    for rows in range(3, 12):
        assert linear_cka(np.full((rows, 2), 0.1), np.full((rows, 3), 0.3)) == 0
        assert linear_cka(np.full((rows, 2), 0.1), A[:rows]) == 0


@pytest.mark.parametrize("gap", [cosine, l2, mmd, sliced_wasserstein, linear_cka])
def test_what_is_no_set_of_features_is_refused(gap: Gap) -> None:
    broken = A[:100].copy()
    broken[3, 1] = np.nan
    for x, y, said in (
        (A[:100], broken, "1 of 100 features hold NaN"),
        (A[:100], np.where(np.isnan(broken), np.inf, broken), "1 of 100 features hold NaN, infinity"),
        (A[:100, 0], A[:100], r"\[100\]"),
        (A[:1], A[:0], "features"),
        (A[:1], A[:2], "wanted"),
        ([[1.0], [2.0, 3.0]], A[:2], "cannot be read"),
        ([["a"]], A[:2], "cannot be read"),
        (torch.ones(4, 2, requires_grad=True), A[:4, :2], "detach"),
        (torch.ones(4, 2, dtype=torch.bfloat16), A[:4, :2], "float"),
    ):
        with pytest.raises(BadInput, match=said):
            gap(x, y)


def test_settings_that_make_no_sense_are_refused() -> None:
    for width in (0.0, -1.0, math.nan, math.inf, 1e-200):
        with pytest.raises(BadInput, match="bandwidth"):
            mmd(A, B, width)
    for settings in ({"order": 3}, {"projections": 0}, {"projections": 2.5}):
        with pytest.raises(BadInput, match="projection"):
            sliced_wasserstein(A, B, **settings)
