"""The acceptance predictor and risk control: what they promise holds on answers they have not seen, and nothing is skipped on
noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import mannwhitneyu

from eventspec.align.acceptance import (
    EVIDENCE,
    Calibrated,
    Predictor,
    auc,
    check_risk,
    evidence_of,
    needed,
    reliability,
    threshold,
)
from eventspec.core import BadCheckpoint, BadInput

WEIGHTS = np.array([1.5, -0.5, 0.0])
NAMES = ("sure", "long", "noise")
SURELY = 9.0
"""The evidence for a predictor that learned from right labels."""


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


def recordings(count: int, each: int, seed: int) -> tuple[Any, Any, Any]:
    """Features of answers, which are right, and the recording of each: some recordings are hard, all of their answers."""
    features, right = answers(count * each, seed)
    rng = np.random.default_rng(seed + 1)
    hard = np.repeat(rng.random(count) < 0.1, each)
    return features, right & ~(hard & (rng.random(count * each) < 0.8)), np.repeat(np.arange(count), each)


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.10])
def test_the_risk_is_kept_on_recordings_that_were_not_calibrated_on(risk: float) -> None:
    features, right, _ = recordings(60, 17, 2)
    predictor = Predictor.fit(NAMES, features, right)
    lost, taken = [], []
    for trial in range(150):
        known, good, about = recordings(120, 17, 1000 + 7 * trial)
        limit = Calibrated(predictor, predictor.probabilities(known), ~good, about, SURELY).threshold(risk)
        fresh, wanted, _ = recordings(60, 17, 50_000 + 7 * trial)
        use = predictor.probabilities(fresh) >= limit
        lost.append(float((use & ~wanted).mean()))
        taken.append(float(use.mean()))
    assert np.mean(lost) <= risk + 3 * np.std(lost) / math.sqrt(len(lost))
    assert np.mean(lost) > risk / 8 or risk == 0.01, "a bound that is far from what is reached is of no use"
    assert np.mean(taken) > risk


def test_answers_of_few_recordings_do_not_count_as_many() -> None:
    """The same answers as if each were a recording of its own would allow more than is kept."""
    rng = np.random.default_rng(8)
    broken = {"answers": 0.0, "recordings": 0.0}
    for _ in range(200):
        # A fifth of the recordings is wrong throughout; nothing tells which.
        bad = np.repeat(rng.random(30) < 0.2, 20)
        scores = rng.random(600)
        for name, about in (("answers", np.arange(600)), ("recordings", np.repeat(np.arange(30), 20))):
            limit = threshold(scores, bad, about, 0.05)
            broken[name] += 0.2 * max(0.0, 1 - min(limit, 1.0)) / 200  # what is lost on average of fresh recordings
    assert broken["recordings"] <= 0.05
    assert broken["answers"] > broken["recordings"]


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.10])
def test_a_predictor_of_shuffled_labels_skips_nothing(risk: float) -> None:
    """By chance it may order the calibration answers well; that it learned nothing is seen where it learned. Answers of one
    recording are shuffled among all, as they are, and so are whole recordings."""
    features, right, about = recordings(220, 12, 3)
    half = about < 110
    known, good, theirs = features[~half], right[~half], about[~half]
    rng = np.random.default_rng(11)
    for seed in range(30):
        mixed = rng.permutation(right[half]) if seed % 2 else right[half].reshape(110, 12)[rng.permutation(110)].ravel()
        predictor = Predictor.fit(NAMES, features[half], mixed)
        evidence = evidence_of(NAMES, features[half], mixed, about[half])
        found = Calibrated(predictor, predictor.probabilities(known), ~good, theirs, evidence)
        assert found.threshold(risk) == math.inf
    honest = Predictor.fit(NAMES, features[half], right[half])
    evidence = evidence_of(NAMES, features[half], right[half], about[half])
    assert evidence > 2 * EVIDENCE
    taken = honest.probabilities(known) >= Calibrated(honest, honest.probabilities(known), ~good, theirs, evidence).threshold(
        max(risk, 0.05)
    )
    assert taken.mean() > 0.05, "the control: right labels are learned from"


def test_evidence_of_labels_that_mean_nothing_is_that_of_chance() -> None:
    rng, found = np.random.default_rng(5), []
    features, right, about = recordings(60, 10, 8)
    for _ in range(100):
        found.append(evidence_of(NAMES, features, rng.permutation(right), about))
    assert abs(np.mean(found)) < 0.5
    assert 0.6 < np.std(found) < 1.5
    assert evidence_of(NAMES, features[:20], right[:20], about[:20]) == -math.inf, "too few to say anything"


def test_a_threshold_is_where_the_bound_is_reached() -> None:
    probabilities, wrong, each = np.linspace(1, 0, 99, endpoint=False), np.zeros(99, bool), np.arange(99)
    wrong[[40, 60, 80]] = True
    for allowed, expected in ((0.01, 40), (0.02, 60), (0.03, 80)):
        assert (probabilities >= threshold(probabilities, wrong, each, allowed)).sum() == expected
    assert threshold(probabilities, wrong, each, 0.04) == probabilities[-1]
    assert threshold(np.ones(99), wrong, each, 0.02) == math.inf, "equal ones are taken together or not at all"
    assert threshold(np.ones(99), np.zeros(99, bool), each, 0.01) == 1.0
    # Three answers a recording: one wrong one of them is a third of a loss.
    thirds, third = np.repeat(np.arange(33), 3), np.zeros(99, bool)
    third[[40, 60]] = True
    assert threshold(probabilities, third, thirds, 0.04) == probabilities[59]
    assert threshold(probabilities, third, thirds, 0.05) == probabilities[-1]


@pytest.mark.parametrize("mistakes", [1, 2, 3, 4])
def test_a_good_predictor_is_used_however_few_the_mistakes(mistakes: int) -> None:
    wrong = np.zeros(190, bool)
    wrong[-mistakes:] = True
    kept = Calibrated(Predictor.fit(NAMES, *answers(100, 5)), np.linspace(0.99, 0.01, 190), wrong, np.arange(190), SURELY)
    assert (kept.probabilities >= kept.threshold(0.01)).sum() >= 190 - mistakes


def test_where_every_answer_is_wrong_none_is_taken() -> None:
    made = Predictor.fit(NAMES, *answers(100, 5))
    kept = Calibrated(made, np.linspace(0.99, 0.01, 190), np.ones(190, bool), np.arange(190), SURELY)
    assert kept.threshold(0.05) == math.inf


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


@pytest.mark.parametrize(("risk", "least"), [(0.01, 99), (0.05, 19), (0.1, 9)])
def test_a_calibration_that_is_too_small_says_how_many(risk: float, least: int) -> None:
    def allowed(count: int) -> float:
        return threshold(np.ones(2 * count), np.zeros(2 * count, bool), np.repeat(np.arange(count), 2), risk)

    with pytest.raises(BadInput, match=f"{least - 1} calibration recordings are too few .*: {least} are needed"):
        allowed(least - 1)
    assert allowed(least) == 1.0
    assert needed(risk) == least


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
    with pytest.raises(BadInput, match="one number for each"):
        threshold([0.5, float("nan")] * 50, np.zeros(100, bool), np.arange(100), 0.05)


def test_a_file_keeps_everything_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    features, right = answers(200, 6)
    predictor = Predictor.fit(NAMES, features, right)
    kept = Calibrated(predictor, predictor.probabilities(features), ~right, np.arange(200), SURELY, {"adapter": "ab12"})
    kept.save(tmp_path / "a.json")
    again = Calibrated.load(tmp_path / "a.json")
    assert again.predictor == predictor
    assert again.threshold(0.05) == kept.threshold(0.05)
    assert (again.evidence, again.of) == (SURELY, {"adapter": "ab12"})
    replace(kept, evidence=-math.inf).save(tmp_path / "few.json")  # halves too small to judge each other
    assert Calibrated.load(tmp_path / "few.json").evidence == -math.inf
    data = json.loads((tmp_path / "a.json").read_text())
    for change in (
        {"probabilities": [0.5]},
        {"probabilities": [1.5] * 200},
        {"recordings": ["x"] * 200},
        {"evidence": float("nan")},
        {"evidence": None},
        {"of": []},
        {"predictor": {}},
        {"predictor": {**data["predictor"], "bias": float("nan")}},
    ):
        (tmp_path / "b.json").write_text(json.dumps({**data, **change}))
        with pytest.raises(BadCheckpoint, match="holds no calibrated predictor"):
            Calibrated.load(tmp_path / "b.json")
