"""The acceptance predictor and risk control: what they promise holds on answers they have not seen, and nothing is skipped on
noise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, mannwhitneyu

from eventspec.align.acceptance import Calibrated, Predictor, auc, check_risk, reliability, threshold
from eventspec.core import BadCheckpoint, BadInput

WEIGHTS = np.array([1.5, -0.5, 0.0])
NAMES = ("sure", "long", "noise")


def answers(count: int, seed: int) -> tuple[Any, Any]:
    """Features, and which answers are right, with the odds of a known model."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 3)) * [1.0, 4.0, 0.1] + [0.0, 10.0, -3.0]
    odds = ((features - [0.0, 10.0, -3.0]) / [1.0, 4.0, 0.1]) @ WEIGHTS + 1.0
    return features, rng.random(count) < expit(odds)


def test_a_fit_finds_the_model_that_drew_the_answers() -> None:
    features, right = answers(4000, 0)
    found = Predictor.fit(NAMES, features, right)
    assert np.allclose(found.weights, WEIGHTS, atol=0.15)
    assert found.bias == pytest.approx(1.0, abs=0.1)
    more, known = answers(4000, 1)
    figures = reliability(found.probabilities(more), known)
    assert figures["calibration_error"] < 0.03
    assert figures["n"] == 4000
    assert sum(row["n"] for row in figures["bins"]) == 4000


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.10])
def test_the_risk_is_kept_on_answers_that_were_not_calibrated_on(risk: float) -> None:
    features, right = answers(600, 2)
    predictor = Predictor.fit(NAMES, features, right)
    lost, taken = [], []
    for trial in range(200):
        known, good = answers(300, 1000 + trial)
        limit = Calibrated(predictor, predictor.probabilities(known), ~good).threshold(risk)
        fresh, wanted = answers(300, 5000 + trial)
        use = predictor.probabilities(fresh) >= limit
        lost.append(float((use & ~wanted).mean()))
        taken.append(float(use.mean()))
    assert np.mean(lost) <= risk + 3 * np.std(lost) / math.sqrt(len(lost))
    assert np.mean(lost) > risk / 4, "a bound that is far from what is reached is of no use"
    assert np.mean(taken) > risk


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_with_a_confidence_most_calibrations_keep_the_risk(confidence: float) -> None:
    predictor = Predictor.fit(NAMES, *answers(600, 2))
    fresh, wanted = answers(50_000, 9)
    sure, broken = predictor.probabilities(fresh), 0
    for trial in range(300):
        known, good = answers(300, 1000 + trial)
        limit = threshold(predictor.probabilities(known), ~good, 0.05, confidence)
        broken += float(((sure >= limit) & ~wanted).mean()) > 0.05
    assert broken <= binom.ppf(0.999, 300, 1 - confidence)


def test_a_predictor_of_shuffled_labels_skips_nothing() -> None:
    """Half of the directions that it finds by chance are wrong ones; a few tell something, and are held to the risk too."""
    features, right = answers(2000, 3)
    known, good, taken, lost = features[1000:], right[1000:], [], []
    for seed in range(40):
        shuffled = np.random.default_rng(seed).permutation(right[:1000])
        predictor = Predictor.fit(NAMES, features[:1000], shuffled)
        probabilities = predictor.probabilities(known)
        limit = Calibrated(predictor, probabilities, ~good).threshold(0.01)
        fresh, wanted = answers(1000, 100 + seed)
        use = predictor.probabilities(fresh) >= limit
        taken.append(float(use.mean()))
        lost.append(float((use & ~wanted).mean()))
    assert np.median(taken) == 0
    assert np.mean(taken) < 0.05
    assert np.mean(lost) <= 0.01
    honest = Predictor.fit(NAMES, features[:1000], right[:1000]).probabilities(known)
    assert auc(honest, good) > 0.75
    assert (honest >= threshold(honest, ~good, 0.01)).mean() > 0.1


def test_a_threshold_is_where_the_bound_is_reached() -> None:
    probabilities, wrong = np.linspace(1, 0, 99, endpoint=False), np.zeros(99, bool)
    wrong[[40, 60, 80]] = True
    for allowed, expected in ((0.01, 40), (0.02, 60), (0.03, 80)):
        assert (probabilities >= threshold(probabilities, wrong, allowed)).sum() == expected
    assert threshold(probabilities, wrong, 0.04) == probabilities[-1]
    assert threshold(np.ones(99), wrong, 0.02) == math.inf, "those that cannot be told apart are taken together or not at all"
    assert threshold(np.ones(99), np.zeros(99, bool), 0.01) == 1.0


def test_binomial_tails_are_scipys() -> None:
    probabilities, wrong = np.linspace(1, 0, 200, endpoint=False), np.zeros(200, bool)
    wrong[::10] = True
    limit = threshold(probabilities, wrong, 0.1, 0.95)
    taken = int((probabilities >= limit).sum())
    assert binom.cdf(wrong[:taken].sum(), 200, 0.1) <= 0.05
    assert binom.cdf(wrong[: taken + 1].sum(), 200, 0.1) > 0.05


def test_auc_is_the_rank_statistic_of_scipy() -> None:
    rng = np.random.default_rng(4)
    scores, right = rng.integers(0, 12, 500) / 12, rng.random(500) < 0.3
    known = mannwhitneyu(scores[right], scores[~right]).statistic / (right.sum() * (~right).sum())
    assert auc(scores, right) == pytest.approx(known)
    assert auc([1.0, 2.0], [True, True]) == 0.5


@pytest.mark.parametrize("risk", [0, 1, 1.5, -0.1, float("nan"), True, "0.1"])
def test_a_risk_outside_0_and_1_is_refused(risk: Any) -> None:
    with pytest.raises(BadInput, match="a risk of"):
        check_risk(risk)


@pytest.mark.parametrize(
    ("risk", "confidence", "needed"), [(0.01, None, 99), (0.05, None, 19), (0.05, 0.95, 59), (0.01, 0.9, 230)]
)
def test_a_calibration_that_is_too_small_says_how_many(risk: float, confidence: float | None, needed: int) -> None:
    with pytest.raises(BadInput, match=f"{needed - 1} calibration answers are too few .*: {needed} are needed"):
        threshold(np.ones(needed - 1), np.zeros(needed - 1, bool), risk, confidence)
    assert threshold(np.ones(needed), np.zeros(needed, bool), risk, confidence) == 1.0


def test_what_cannot_be_fitted_is_refused() -> None:
    features, right = answers(100, 5)
    for rows, kinds, message in (
        (features[:20], right[:20], "20 answers, .* are too few"),
        (features, np.ones(100, bool), "0 of the rarer kind"),
        (np.where(np.arange(300).reshape(100, 3) == 7, np.nan, features), right, "NaN or infinite"),
        (features[:, :2], right, "wanted a row of 3 numbers"),
        (features, right[:50], "give one for each"),
    ):
        with pytest.raises(BadInput, match=message):
            Predictor.fit(NAMES, rows, kinds)
    with pytest.raises(BadInput, match="give a number for each"):
        threshold([0.5, float("nan")] * 50, np.zeros(100, bool), 0.05)
    with pytest.raises(BadInput, match="a confidence of 1"):
        threshold(np.ones(100), np.zeros(100, bool), 0.05, 1.0)


def test_a_file_keeps_everything_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    features, right = answers(200, 6)
    predictor = Predictor.fit(NAMES, features, right)
    kept = Calibrated(predictor, predictor.probabilities(features), ~right)
    kept.save(tmp_path / "a.json")
    again = Calibrated.load(tmp_path / "a.json")
    assert again.predictor == predictor
    assert again.threshold(0.05) == kept.threshold(0.05)
    data = json.loads((tmp_path / "a.json").read_text())
    for change in ({"probabilities": [0.5]}, {"predictor": {}}, {"predictor": {**data["predictor"], "bias": float("nan")}}):
        (tmp_path / "b.json").write_text(json.dumps({**data, **change}))
        with pytest.raises(BadCheckpoint, match="holds no calibrated predictor"):
            Calibrated.load(tmp_path / "b.json")
