"""Rules that let an answer from events stand: each on a case where it must say yes, and on one where it must say no."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eventspec.align.acceptance import Calibrated, Groups, Predictor
from eventspec.align.deciding import FEATURES, FITTED, RULES, Decision, cosine, divergence
from eventspec.core import BadCheckpoint, BadInput

ROWS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
LOGITS = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))


@dataclass
class Case:
    """What is known of a question; what a case lacks may not be asked for."""

    rows: tuple[Tensor, Tensor] = (ROWS, ROWS)
    logits: tuple[Tensor, Tensor] = (LOGITS, LOGITS)
    features: Sequence[float] | None = (0.0,) * len(FEATURES)
    entropy: Sequence[float] | None = (0.0,)
    pooled: Sequence[float] | None = (0.0, 0.0)
    question: str = "How many?"
    seed: int = 0
    rate: float = 0.0
    tokens: list[int] = field(default_factory=lambda: [1, 2])


def calibrated(names: Sequence[str], weight: float = 1.0, answers: int = 200) -> Calibrated:
    """Of one feature that counts, the first; answers from a half on are right."""
    said, none = np.linspace(0.001, 0.999, answers), (0.0,) * len(names)
    predictor = Predictor(tuple(names), none, (1.0,) * len(names), (weight, *none[1:]), 0.0)
    return Calibrated(predictor, said, said < 0.5, np.arange(answers), 9.0)


def stands(text: str, case: Any, known: Calibrated | None = None, risk: float = 0.05) -> bool:
    decision = Decision.parse(text)
    return decision.sure(case, known) >= decision.least(case, known, risk)


def test_a_cosine_is_taken_from_its_threshold_on() -> None:
    half = torch.cat((ROWS[:3], -ROWS[3:]))
    for other, found in ((3 * ROWS, 1.0), (-ROWS, -1.0), (half, 0.0), (torch.zeros_like(ROWS), 0.0)):
        assert cosine(Case(rows=(other, ROWS))) == pytest.approx(found, abs=1e-6)
    near = Case(rows=(ROWS + 0.3 * ROWS.flip(0), ROWS))
    value = cosine(near)
    assert 0.5 < value < 1
    assert stands(f"cosine:{value - 0.01}", near) and not stands(f"cosine:{value + 0.01}", near)


def test_a_divergence_is_taken_up_to_its_threshold() -> None:
    assert divergence(Case()) == 0.0
    other = LOGITS.clone()
    other[1, 3] += 4.0
    case = Case(logits=(other, LOGITS))
    own, adapted = LOGITS.softmax(-1), other.softmax(-1)
    assert divergence(case) == pytest.approx(float((own * (own / adapted).log()).sum(-1).mean()), abs=1e-6)
    assert stands("kl:0.000001", Case())
    assert stands("kl:5", case) and not stands("kl:0.001", case)
    assert divergence(replace(case, logits=case.logits[::-1])) != pytest.approx(divergence(case)), "from the target's side"


def test_what_cannot_be_computed_is_no_agreement() -> None:
    broken = LOGITS.clone()
    broken[2] = float("nan")
    for case in (Case(logits=(broken, LOGITS)), Case(logits=(LOGITS, broken))):
        assert divergence(case) == math.inf
        assert not stands("kl:1e9", case) and not stands("score:kl", case)
    banned = LOGITS.clone()
    banned[:, 4] = -math.inf
    assert divergence(Case(logits=(banned, banned))) == 0.0, "what both never say is no difference"
    lost = Case(rows=(ROWS * float("nan"), ROWS))
    assert cosine(lost) == -math.inf
    assert not stands("cosine:-1", lost)


def test_a_score_is_how_often_it_accepts_and_a_seed_says_when() -> None:
    case = Case(rows=(ROWS + 0.8 * ROWS.flip(0), ROWS))
    score, count = cosine(case), 2000
    taken = [stands("score", replace(case, question=str(place))) for place in range(count)]
    assert abs(np.mean(taken) - score) < 4 * math.sqrt(score * (1 - score) / count)
    assert taken[:50] == [stands("score", replace(case, question=str(place))) for place in range(50)]
    assert taken[:50] != [stands("score", replace(case, question=str(place), seed=1)) for place in range(50)]
    assert not any(stands("score", Case(rows=(-ROWS, ROWS), question=str(place))) for place in range(50))
    assert all(stands("score:kl", Case(question=str(place))) for place in range(50)), "nothing apart: always"
    sure, doubtful = (Case(features=(sign * 40.0, *(0.0,) * 4)) for sign in (1, -1))
    assert stands("score:predictor", sure, calibrated(FEATURES))
    assert not stands("score:predictor", doubtful, calibrated(FEATURES))


@pytest.mark.parametrize(("rule", "part"), [("predictor", "features"), ("entropy", "entropy"), ("events", "pooled")])
def test_a_fitted_rule_goes_by_its_features_and_keeps_its_risk(rule: str, part: str) -> None:
    names = FITTED[rule].names(1)
    known = calibrated(names)
    for value, yes in ((9.0, True), (-9.0, False), (math.nan, False)):
        case = Case(**{part: (value, *(0.0,) * (len(names) - 1))})
        assert stands(rule, case, known) == yes
    assert not stands(rule, Case(**{part: None}), known), "there were no events"
    assert not stands(rule, Case(**{part: (9.0, *(0.0,) * (len(names) - 1))}), calibrated(names, answers=8)), "8 are too few"
    assert Decision.parse(rule).early == (rule != "predictor")


def test_what_decides_early_asks_for_no_answer() -> None:
    class Undecoded(Case):
        def __getattribute__(self, name: str) -> Any:
            assert name not in ("tokens", "features", "logits", "rows"), "that costs a draft, or an encoding"
            return super().__getattribute__(name)

    for rule in ("entropy", "events"):
        names = FITTED[rule.partition(":")[0]].names(1)
        assert stands(rule, Undecoded(entropy=(9.0,), pooled=(9.0, 0.0)), calibrated(names))
    with pytest.raises(AssertionError, match="costs a draft"):
        stands("predictor", Undecoded(), calibrated(FEATURES))


@pytest.mark.parametrize(
    "text",
    ["cosine", "cosine:", "cosine:2", "cosine:nan", "cosine:-1.01", "kl", "kl:-1", "kl:0", "kl:inf", "score:no", "predictor:x"],
)
def test_a_rule_that_cannot_be_read_says_how_it_is_typed(text: str) -> None:
    with pytest.raises(BadInput, match=f"rule '{text}' cannot be read: give {RULES[text.partition(':')[0]].usage[:6]}"):
        Decision.parse(text)


def test_unknown_rules_are_refused_and_known_ones_read() -> None:
    for text in ("magic", "", "Predictor"):
        with pytest.raises(BadInput, match="unknown rule"):
            Decision.parse(text)
    for text in ("cosine:-1", "cosine:1", "kl:0.5", "score", "score:kl", "entropy:kind", "events", "predictor:scene"):
        assert str(Decision.parse(text)) == text


def grouped(recordings: int, seed: int) -> Calibrated:
    """Answers of two kinds, one of which is right far less often than a predictor says that looks at no kind."""
    rng = np.random.default_rng(seed)
    said = rng.uniform(size=2 * recordings)
    kinds = np.tile(["easy", "hard"], recordings)
    right = rng.uniform(size=len(said)) < np.where(kinds == "easy", said, said**6)
    texts = {"How many?": "easy", "Why?": "hard"}
    asked = ["How many?" if kind == "easy" else "Why?" for kind in kinds]
    groups = Groups.of(texts, asked, rng.uniform(size=recordings).repeat(2).tolist())
    predictor = Predictor(("a",), (0.0,), (1.0,), (1.0,), 0.0)
    return Calibrated(predictor, said, ~right, np.arange(recordings).repeat(2), 9.0, groups=groups)


def test_every_group_keeps_its_risk_where_the_common_threshold_keeps_it_on_average() -> None:
    wrong: dict[str, list[float]] = {"easy": [], "hard": [], "hard, common": []}
    for seed in range(60):
        known, fresh = grouped(150, seed), grouped(150, 1000 + seed)
        common = known.threshold(0.1)
        for kind in ("easy", "hard"):
            own = fresh.group("kind", kind)
            assert own is not None
            wrong[kind].append(float((own.wrong & (own.probabilities >= known.threshold(0.1, "kind", kind))).mean()))
            if kind == "hard":
                wrong["hard, common"].append(float((own.wrong & (own.probabilities >= common)).mean()))
    for kind in ("easy", "hard"):
        assert 0.05 < np.mean(wrong[kind]) < 0.1 + 3 * np.std(wrong[kind]) / math.sqrt(60)
    assert np.mean(wrong["hard, common"]) > 0.13, "the control: one threshold for all risks more where questions are hard"


def test_answers_of_a_group_that_is_small_or_unknown_never_stand() -> None:
    known = grouped(150, 0)
    assert known.threshold(0.1, "kind", "hard") > known.threshold(0.1)
    for by, label in (("kind", ""), ("kind", "never"), ("scene", "9")):
        assert known.threshold(0.1, by, label) == math.inf
    assert known.threshold(1 / 100, "scene", "0") == math.inf, "50 recordings are too few for 1 in 100"
    assert [known.least(0.1, "kind", "hard"), known.least(0.1)] == [known.threshold(0.1, "kind", "hard"), known.threshold(0.1)]
    assert known.least(1 / 200) == math.inf, "150 recordings are too few for 1 in 200"
    groups = known.groups
    assert [groups.label("kind", text, 0.0) for text in ("Why?", "Who?")] == ["hard", ""]
    assert [groups.label("scene", "Why?", rate) for rate in (-1.0, 0.5, 2.0)] == ["0", "1", "2"]


def test_thresholds_by_group_keep_the_risk_of_all_groups_together() -> None:
    """With a rare group in which the predictor is too sure of itself. The common threshold for it, and one of its own for the
    others, would spend the risk twice: that is the control."""
    risk, rng, taken, twice = 0.05, np.random.default_rng(5), list[float](), list[float]()
    predictor = Predictor(("sure",), (0.0,), (1.0,), (1.0,), 0.0)

    def drawn(count: int) -> tuple[Any, Any, Any]:
        said, rare = rng.uniform(0.3, 1.0, count), rng.random(count) < 0.08
        return said, rare, rng.random(count) > np.where(rare, said * 0.4, said)

    for _ in range(60):
        said, rare, wrong = drawn(200)
        labels = tuple(np.where(rare, "rare", "usual").tolist())
        known = Calibrated(predictor, said, wrong, np.arange(200), 9.0, groups=Groups(labels={"kind": labels, "scene": labels}))
        later, where, bad = drawn(2000)
        own = {label: known.least(risk, "kind", label) for label in ("rare", "usual")}
        least = np.where(where, own["rare"], own["usual"])
        taken.append(float(((later >= least) & bad).mean()))
        common = np.where(where, known.least(risk) if math.isinf(own["rare"]) else own["rare"], own["usual"])
        twice.append(float(((later >= common) & bad).mean()))
    assert np.mean(taken) <= risk + 2 * np.std(taken) / 60**0.5
    assert np.mean(twice) > np.mean(taken) + 0.005


def test_groups_are_kept_in_the_file(tmp_path: Path) -> None:
    known = grouped(40, 0)
    known.save(tmp_path / "a.json")
    again = Calibrated.load(tmp_path / "a.json")
    assert again.groups == known.groups
    for damage in (('"kind": ["easy", ', '"kind": ['), ('"cuts": [', '"cuts": [NaN, ')):
        text = (tmp_path / "a.json").read_text()
        assert damage[0] in text
        (tmp_path / "b.json").write_text(text.replace(*damage))
        with pytest.raises(BadCheckpoint, match="holds no calibrated predictor"):
            Calibrated.load(tmp_path / "b.json")
