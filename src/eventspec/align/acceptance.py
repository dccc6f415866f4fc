"""Whether a drafted answer will be the target's, predicted before the target has seen a frame; and how often that may go wrong.

A logistic model gives the probability from what is known of a draft. Which probability is enough is no guess: the threshold is
chosen on calibration recordings so that answers that are taken and wrong stay, of all answers, a share below the risk that the
user sets. That holds on average over calibrations, and for recordings and questions like those of the calibration.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.align.deciding import GROUPINGS
from eventspec.core import BadCheckpoint, BadInput
from eventspec.errors import check_risk, several
from eventspec.files import parsed, write_text

Floats = np.ndarray[Any, np.dtype[np.float64]]
LEAST = 40
"""Answers that a fit needs, of either kind a quarter of so many."""
EVIDENCE = 3.0
"""Standard errors by which a predictor has to be better than chance on recordings that it did not learn from, to be used."""
BINS = 10


@torch.inference_mode(False)
@torch.enable_grad()
def fit_logistic(features: Floats, right: Any, prior: Floats, strength: float = 1.0) -> tuple[list[float], float]:
    """Weights [F] and bias under which labels bool [N] are most likely given features float64 [N, F] (binary cross-entropy),
    with a Gaussian prior around the weights `prior`, float64 [F], that counts so much."""
    x, y, begin = torch.from_numpy(features), torch.from_numpy(np.asarray(right, float)), torch.from_numpy(prior)
    weights, bias = begin.clone().requires_grad_(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        found = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights + bias, y, reduction="sum")
        whole = found + strength * ((weights - begin) ** 2).sum()
        whole.backward()
        return whole

    optimiser.step(loss)
    return weights.detach().tolist(), float(bias.detach())


@dataclass(frozen=True)
class Predictor:
    """Log-odds that a draft is the target's answer: a weight for each of the named features, standardised, and a bias."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    @classmethod
    def fit(cls, names: Sequence[str], features: Any, right: Any, strength: float = 1.0) -> Predictor:
        """As `fit_logistic`, of features float [N, F], right bool [N]. BadInput for NaN, for other shapes, and where there are
        too few of either kind to learn from."""
        rows, kept = _matrix(features, len(names)), np.asarray(right, bool)
        if kept.shape != (len(rows),):
            raise BadInput(f"{len(rows)} answers, and {list(kept.shape)} of which are right: give one for each")
        fewest = int(min(kept.sum(), (~kept).sum()))
        if len(rows) < LEAST or fewest < LEAST // 4:
            raise BadInput(
                f"{len(rows)} answers, {fewest} of the rarer kind, are too few to fit a predictor on: {LEAST} are needed, "
                f"{LEAST // 4} of either kind"
            )
        mean, scale = rows.mean(0), np.maximum(rows.std(0), 1e-9)
        weights, bias = fit_logistic((rows - mean) / scale, kept, np.zeros(len(names)), strength)
        return cls(tuple(names), tuple(mean), tuple(scale), tuple(weights), bias)

    def probabilities(self, features: Any) -> Floats:
        """float64 [N] for features float [N, F]; BadInput for NaN and other shapes."""
        standard = (_matrix(features, len(self.names)) - np.array(self.mean)) / np.array(self.scale)
        return np.asarray(1 / (1 + np.exp(-np.clip(standard @ np.array(self.weights) + self.bias, -40, 40))))

    def as_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Predictor:
        """ValueError, KeyError or TypeError for what is none."""
        names = tuple(str(name) for name in data["names"])
        mean, scale, weights = (tuple(map(float, data[part])) for part in ("mean", "scale", "weights"))
        made = cls(names, mean, scale, weights, float(data["bias"]))
        numbers = (*mean, *scale, *weights, made.bias)
        if not all(map(math.isfinite, numbers)) or {len(mean), len(scale), len(weights)} != {len(names)} or min(scale) <= 0:
            raise ValueError("a number for every feature, and a scale above 0")
        return made


@dataclass(frozen=True)
class Groups:
    """Which calibration answers are alike: the `kinds` of questions by their texts, as their files have them; the rates of
    events, log(1 + events a second), that cut recordings into thirds (`cuts`, ascending); and of every answer its kind, ""
    where there is none, and its third, by `GROUPINGS`."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    cuts: tuple[float, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, kinds: Mapping[str, str], questions: Sequence[str], rates: Sequence[float]) -> Groups:
        """Of calibration answers to these questions about recordings with these rates of events."""
        made = cls(kinds, tuple(np.quantile(rates, (1 / 3, 2 / 3)).tolist()) if len(rates) else ())
        about = list(zip(questions, rates, strict=True))
        return replace(made, labels={by: tuple(made.label(by, *one) for one in about) for by in GROUPINGS})

    def label(self, by: str, question: str, rate: float) -> str:
        """The group of a question about a recording with a rate of events; "" where it is in none."""
        return self.kinds.get(question, "") if by == "kind" else str(bisect_right(self.cuts, rate))


@dataclass(frozen=True)
class Calibrated:
    """A predictor, and what it said of calibration answers that it did not learn from: probabilities float64 [N], which of the
    answers would have been wrong, bool [N], and which recording each is about, int64 [N]. evidence: as `evidence_of`, of the
    answers that it learned from. of: digests of what gave the answers, by name. groups: of the answers."""

    predictor: Predictor
    probabilities: Floats
    wrong: np.ndarray[Any, np.dtype[np.bool_]]
    recordings: np.ndarray[Any, np.dtype[np.int64]]
    evidence: float
    of: Mapping[str, str] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)

    @classmethod
    def of_nothing(cls, names: Sequence[str], of: Mapping[str, str]) -> Calibrated:
        """What is known where there was too little to calibrate on: no answer is ever sure enough."""
        zero, none = (0.0,) * len(names), np.zeros(0)
        predictor = Predictor(tuple(names), zero, (1.0,) * len(names), zero, 0.0)
        return cls(predictor, none, none.astype(bool), none.astype(np.int64), -math.inf, of)

    def few(self, risk: float) -> str | None:
        """In words, where the recordings are too few for a risk; else None. BadInput for a risk outside (0, 1)."""
        found, least = len(np.unique(self.recordings)), needed(risk)
        few = f"{several(found, 'calibration recording')} are too few for a risk of {risk:g}: {least} are needed at least"
        return few if found < least else None

    def group(self, by: str, label: str) -> Calibrated | None:
        """The calibration answers of one group alone; None where there are none."""
        here = np.array([own == label for own in self.groups.labels.get(by, ())], bool)
        if not label or not here.any():
            return None
        return replace(self, probabilities=self.probabilities[here], wrong=self.wrong[here], recordings=self.recordings[here])

    def threshold(self, risk: float, by: str = "", label: str = "") -> float:
        """As `threshold`, of these answers; infinite unless the predictor separates right ones from wrong ones both where it
        learned and here: one that was fitted to noise may order these by luck. `by`: of the group `label` alone; infinite where
        that has too few recordings for the risk. The common threshold would not do for it: that one spends the risk over all
        groups together, and the others have spent theirs."""
        if by:
            own = self.group(by, label)
            return math.inf if own is None or own.few(risk) else own.threshold(risk)
        least = threshold(self.probabilities, self.wrong, self.recordings, risk)
        if least <= self.probabilities.min():
            return least  # everything may be taken, nothing has to be separated
        separates = not self.wrong.any() or above_chance(self.probabilities, ~self.wrong) > 1.645  # one-sided, at 5 %
        return least if self.evidence >= EVIDENCE and separates else math.inf

    def least(self, risk: float, by: str = "", label: str = "") -> float:
        """As `threshold`, worked out once; infinite where there are too few recordings for the risk."""
        if (asked := (risk, by, label)) not in self._known:
            self._known[asked] = math.inf if self.few(risk) else self.threshold(*asked)
        return self._known[asked]

    @cached_property
    def _known(self) -> dict[tuple[float, str, str], float]:
        return {}

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        rows = {"probabilities": self.probabilities.tolist(), "wrong": self.wrong.astype(int).tolist()}
        rows["recordings"] = self.recordings.tolist()
        rows["groups"] = {by: list(labels) for by, labels in self.groups.labels.items()}
        known = {"evidence": self.evidence, "of": dict(self.of), "kinds": dict(self.groups.kinds), "cuts": self.groups.cuts}
        write_text(path, json.dumps({"predictor": self.predictor.as_json(), **known, **rows}) + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibrated:
        """BadCheckpoint for a file that holds none."""
        try:
            data = parsed(path.read_bytes())
            predictor = Predictor.from_json(data["predictor"])
            probabilities, wrong = np.array(data["probabilities"], float), np.array(data["wrong"], bool)
            if not np.isin(data["wrong"], (0, 1)).all():
                raise ValueError("wrong is 0 or 1")
            recordings = np.array(data["recordings"], np.int64)
            evidence, of = float(data["evidence"]), {str(name): str(digest) for name, digest in data["of"].items()}
            if math.isnan(evidence):
                raise ValueError("evidence is no number")
            if not probabilities.shape == wrong.shape == recordings.shape or probabilities.ndim != 1:
                raise ValueError("a probability for every answer")
            if not ((probabilities >= 0) & (probabilities <= 1)).all():
                raise ValueError("probabilities from 0 to 1")
            kinds = {str(question): str(kind) for question, kind in data.get("kinds", {}).items()}
            labels = {by: tuple(map(str, data["groups"][by])) for by in GROUPINGS if by in data.get("groups", {})}
            groups = Groups(kinds, tuple(map(float, data.get("cuts", ()))), labels)
            if {len(own) for own in labels.values()} - {len(wrong)} or not all(map(math.isfinite, groups.cuts)):
                raise ValueError("a group for every answer")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadCheckpoint(f"{path} holds no calibrated predictor ({why}): calibrate it again") from None
        return cls(predictor, probabilities, wrong, recordings, evidence, of, groups)


def needed(risk: float) -> int:
    """Recordings that a calibration needs for a risk: so many that none goes wrong on would be enough."""
    return math.ceil(1 / check_risk(risk) - 1 - 1e-9)


def threshold(probabilities: Any, wrong: Any, recordings: Any, risk: float) -> float:
    """The least probability from which on answers may be taken: of all answers about a new recording, those taken and wrong are
    then a share of `risk` at most, on average over calibrations and recordings. Infinite where none may be taken.

    Conformal risk control (Angelopoulos et al. 2022, section 2.1). Answers about one recording are not exchangeable with those
    about a new one, recordings are: the loss is the share of a recording's answers that are taken and wrong. BadInput for a
    risk outside (0, 1), and for too few recordings: it says how many."""
    least = needed(risk)
    scores, bad, about = np.asarray(probabilities, float), np.asarray(wrong, bool), np.asarray(recordings)
    if scores.ndim != 1 or not scores.shape == bad.shape == about.shape or not np.isfinite(scores).all():
        raise BadInput(
            f"probabilities {list(scores.shape)} of answers {list(bad.shape)} {list(about.shape)}: one number for each"
        )
    _, place, sizes = np.unique(about, return_inverse=True, return_counts=True)
    if len(sizes) < least:
        raise BadInput(f"{len(sizes)} calibration recordings are too few for a risk of {risk:g}: {least} are needed at least")
    order = np.argsort(-scores, kind="stable")
    falling, lost = scores[order], np.cumsum((bad / sizes[place])[order])
    # Equal probabilities are taken together: only the last of them says how much is lost.
    ends = np.append(falling[1:] != falling[:-1], True)
    allowed = math.inf
    for value, loss in zip(falling[ends].tolist(), lost[ends].tolist(), strict=True):
        if (loss + 1) / (len(sizes) + 1) > risk + 1e-12:
            break
        allowed = value
    return allowed


def evidence_of(names: Sequence[str], features: Any, right: Any, recordings: Any, strength: float = 1.0) -> float:
    """How surely features separate right answers from wrong ones: by how many standard errors the AUC lies above chance where
    each half of the recordings is judged by a predictor fitted on the other. Of labels that mean nothing it is drawn from about
    a standard normal distribution. Features float [N, F], right bool [N], recordings [N]; -inf where a half is too small."""
    rows, kept, about = np.asarray(features, float), np.asarray(right, bool), np.asarray(recordings)
    later = np.isin(about, np.unique(about)[1::2])
    said = np.zeros(len(rows))
    try:
        for half in (later, ~later):
            said[half] = Predictor.fit(names, rows[~half], kept[~half], strength).probabilities(rows[half])
    except BadInput:
        return -math.inf
    # Each half by itself: two predictors' probabilities need not compare.
    return sum(above_chance(said[half], kept[half]) for half in (later, ~later)) / math.sqrt(2)


def above_chance(scores: Any, right: Any) -> float:
    """By how many standard errors of chance the `auc` lies above one half (Mann-Whitney, normal approximation); 0 where there
    is one kind only."""
    good = int(np.count_nonzero(right))
    bad = len(right) - good
    if not good or not bad:
        return 0.0
    return (auc(scores, right) - 0.5) / math.sqrt((good + bad + 1) / (12 * good * bad))


def auc(scores: Any, right: Any) -> float:
    """The probability that a right answer has a higher score than a wrong one, ties counted half; 0.5 where there is one kind
    only."""
    values, kept = np.asarray(scores, float), np.asarray(right, bool)
    good, bad = values[kept], np.sort(values[~kept])
    if not len(good) or not len(bad):
        return 0.5
    below, up_to = np.searchsorted(bad, good, "left"), np.searchsorted(bad, good, "right")
    return float((below + up_to).mean() / 2 / len(bad))


def reliability(predicted: Any, right: Any) -> dict[str, Any]:
    """How often what was given a probability is right: by tenths of the probability, with n; the Brier score, and the expected
    calibration error."""
    said, hits = np.asarray(predicted, float), np.asarray(right, float)
    place = np.minimum((said * BINS).astype(int), BINS - 1)
    bins = [place == tenth for tenth in range(BINS) if (place == tenth).any()]
    rows = [{"n": int(here.sum()), "said": float(said[here].mean()), "right": float(hits[here].mean())} for here in bins]
    apart = sum(row["n"] * abs(row["said"] - row["right"]) for row in rows) / max(1, len(said))
    return {"bins": rows, "brier": float(((said - hits) ** 2).mean()), "calibration_error": apart, "n": len(said)}


def _matrix(features: Any, width: int) -> Floats:
    rows = np.asarray(features, float)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise BadInput(f"features are {list(rows.shape)}: wanted a row of {width} numbers for every answer")
    if not np.isfinite(rows).all():
        raise BadInput("a feature is NaN or infinite: leave that answer out")
    return rows
