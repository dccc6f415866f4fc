"""Adapters from events to the target: what their drafts are worth beside controls, and what skipping the encoder risks.

Both go into alignment.json, each at its own key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.align.acceptance import Calibrated, Predictor, auc, reliability, threshold
from eventspec.align.adapters import CONTROL
from eventspec.align.adapters import KINDS as KINDS_OF
from eventspec.align.substitute import FEATURES, LONGEST, SubstitutedTarget
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import BadInput
from eventspec.drafters import RespelledDrafter, TextPrior
from eventspec.experiments.arms import Arm
from eventspec.experiments.compare import Comparison, environment, in_contexts
from eventspec.experiments.figures import Row
from eventspec.experiments.measures.setup import Finding, Found, Setup, compared, scene, street
from eventspec.experiments.names import BASE, BLIND, CONTEXTS, with_events
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.files import read_json
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.methods import drafted_by_events, drafting_by
from eventspec.pairs.names import HYBRID, SKIP
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import inspect_adapter
from eventspec.train.loop import last_row

METHODS = (BASE, *BLIND, "cross-modal", "aligned", "event-eagle", "hybrid")
KINDS = ("real", "shuffled", "blank", "scattered")
CONTROLLED = ("real", "shuffled")
"""Events of adapters that are not the usual ones."""
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
PREDICTORS = {"all features": FEATURES, "text alone": ("length", "blind")}
"""Fitted here, on half of the scenes each: what is known of an answer without any event, and all."""
FIXED = (0.8, 0.85, 0.9)
"""Of the predictor's probability; thresholds of the early notes were on a cosine, see `deciding`."""
CURVE = 21
SEED = 8100
Interval = list[float | None]
"""A value and the ends of its 95 % interval, None where there are too few recordings."""
Array = np.ndarray[Any, Any]


def table(setup: Setup) -> Iterator[Finding]:
    """Every adapter with its own events and with another clip's, the methods and all controls, interleaved."""
    with street(setup, "alignment", SEED, setup.size(100, 2), setup.size(200, 2)) as (asked, path):
        pair = load_pair(setup.pair, "two", fit=False)
        pair = pair if setup.quick else warm_up(pair)
        adapters, prior = pair.parts.adapters, pair.parts.prior
        assert adapters is not None and prior is not None
        methods = [name for name in METHODS if name in pair.methods]
        kinds, arms = setup.size((KINDS, _arms(pair)), (KINDS[:2], _arms(pair)[:2]))
        part, rows = compared(Comparison(pair, asked, methods, events=kinds, others=arms, look=False), path, setup)
        by_question = {name: {row["question_id"]: row for row in own} for name, own in rows.items()}
        names = {"aligned": adapters.usual("rows"), "event-eagle": adapters.usual("features")}
        found = {"ahead": _ahead(by_question, prior), "skipped": _skipped(by_question)}
        yield ("table",), {**part, "adapters": names, **found}


def _arms(pair: Pair) -> list[Arm]:
    """Every adapter that its method does not take by itself, those it takes in method hybrid, and skipping at every risk."""
    adapters, arms = pair.parts.adapters, list[Arm]()
    assert adapters is not None
    usual = {adapters.usual("rows"), adapters.usual("features")}
    for name in adapters.folders:
        own, method = pair.with_adapter(name), drafting_by(pair.parts, name)
        if name not in usual:
            arms += [Arm(with_events(f"{method}, {name}", kind), method, own, kind) for kind in CONTROLLED]
        else:
            arms.append(Arm(f"{HYBRID}, {name}", HYBRID, pair.with_adapter(name, HYBRID)))
    return arms + [Arm(f"{SKIP}, risk {risk:g}", SKIP, pair.with_risk(risk)) for risk in RISKS]


def adapters(setup: Setup) -> Iterator[Finding]:
    """Adapters of trainings, with their own events and another clip's, beside today's methods; those that look at the target's
    rows also about a recording that another question was asked about before, beside the usual one so."""
    with street(setup, "adapters", SEED, setup.size(100, 2), setup.size(200, 2)) as (asked, path):
        pair = load_pair(setup.pair, "two", fit=False)
        pair = pair if setup.quick else warm_up(pair)
        assert pair.parts.prior is not None
        arms, methods = list[Arm](), (BASE, "prior", "cross-modal", "aligned", "event-eagle")
        for run in setup.folders:
            places = PairFile.read(run / "pair").places("adapters")
            for name in last_row(run / "calibration.jsonl")["adapters"]:
                own = pair.with_adapter(str(places[name]))
                method, label = drafting_by(pair.parts, str(places[name])), f"{name.removeprefix('features-')}{_also(run)}"
                title = f"{method}, {label}"
                events = CONTROLLED if CONTROL not in name else CONTROLLED[:1]
                arms += [Arm(with_events(title, kind), method, own, kind) for kind in events]
                if KINDS_OF[inspect_adapter(places[name])[0].kind].looks:
                    warm = [(with_events(title, kind), own, kind) for kind in CONTROLLED] + [(method, pair, "real")]
                    arms += in_contexts([Arm(one, method, made, kind) for one, made, kind in warm], [CONTEXTS[1]])
        between, spaces = pair.parts.adapters, pair.parts.tokens
        assert between is not None
        if (usual := between.usual("features")) is not None:  # `autoregressive` drafts chains: today's does so too
            chain = RespelledDrafter("event-eagle", between.events, spaces, between.other_ids, between.scored(usual))
            own = pair.with_method("event-eagle", drafted_by_events(pair.parts, chain))
            arms.append(Arm("event-eagle, as a chain", "event-eagle", own))
        names = [arm.name for arm in arms if arm.context == CONTEXTS[0]]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadInput(f"two trainings made {min(twice)}: give one of them")
        chosen = list({arm.name: arm for arm in arms}.values())  # today's method stands once
        part, rows = compared(Comparison(pair, asked, methods, events=CONTROLLED, others=chosen, look=False), path, setup)
        by_question = {name: {row["question_id"]: row for row in own} for name, own in rows.items()}
        yield ("adapters",), {**part, "ahead": _ahead(by_question, pair.parts.prior)}


def _also(run: Path) -> str:
    """What a training read that is not usual."""
    reads = read_json(run / "run.json").get("reads")
    return "" if reads is None else f", {reads}"


def _ahead(rows: Mapping[str, Mapping[str, Row]], prior: TextPrior) -> Found:
    """Of the answers' tokens that the prior's first choice gets wrong, the share that an arm's head start had accepted, and how
    much more that is than with a control's events and than the prior's own tree, each with its interval over recordings.

    Those among the first tokens of an answer that were verified in the prefill count, in the rows as they were timed."""
    blind = {
        at: np.array([_wrong_blind(prior, row["question"], row["token_ids"], i) for i in range(len(row["token_ids"]))])
        for at, row in rows[BASE].items()
    }
    among, taken = {at: float(wrong.sum()) for at, wrong in blind.items()}, dict[str, dict[str, float]]()
    for name, own in rows.items():
        if all(row["lossless"] for row in own.values()):
            heads = {at: row["speculation"]["head_start_accepted"] or 0 for at, row in own.items()}
            taken[name] = {at: float(blind[at][: heads[at]].sum()) for at in own}
    recordings, below = [rows[BASE][at]["recording"] for at in among], list(among.values())

    def share(values: Sequence[float]) -> Interval:
        return [ratio_of_sums(values, below), *(ratio_interval(values, below, recordings) or (None, None))]

    found = dict[str, Found]()
    for name, counts in taken.items():
        controls = [with_events(name, kind) for kind in KINDS[1:]]
        others = [other for other in (*controls, "prior") if other in taken and other != name]
        found[name] = {"share": share([counts[at] for at in among])}
        # The same answers, so the same tokens: the difference is a ratio of sums too.
        found[name]["more"] = {other: share([counts[at] - taken[other][at] for at in among]) for other in others}
    return {"tokens": int(sum(below)), "arms": found}


def _wrong_blind(prior: TextPrior, question: str, tokens: list[int], place: int) -> bool:
    """Whether the prior's first choice after the answer's own tokens is another than the answer's next one."""
    known = prior.following(question, tokens[:place], 1)
    return not known or known[0][0] != tokens[place]


def _skipped(rows: Mapping[str, Mapping[str, Row]]) -> dict[str, dict[str, float]]:
    """Of every arm that may answer from events alone, the share of answers that came from there, and of those that are not the
    target's."""
    base, found = rows[BASE], dict[str, dict[str, float]]()
    for name, own in rows.items():
        if name.startswith(SKIP):
            wrong = [row["token_ids"] != base[at]["token_ids"] for at, row in own.items()]
            taken = [bool(row["skipped"]) for row in own.values()]
            found[name] = {"skipped": float(np.mean(taken)), "wrong": float(np.mean(wrong)), "n": float(len(own))}
    return found


@dataclass(frozen=True)
class Judged:
    """An answer from events alone about a rendered scene, and the prior's own: what is known of the first (None: it is not to
    be judged), the log-probability of the second, and whether each is the target's."""

    scene: int
    kind: str
    features: tuple[float, ...] | None
    right: bool
    blind: float
    blind_right: bool


def _answers_of(pair: Pair, target: SubstitutedTarget | None, split: str, seed: int, scenes: Sequence[int]) -> Iterator[Judged]:
    """Every question about rendered scenes; without a target the prior's answers alone."""
    prior = pair.parts.prior
    assert prior is not None
    for index in scenes:
        recording, questions = scene(seed, index, split)
        media = media_of(recording)
        for qa in questions:
            drafted = None if target is None else target.substitute.answer(media, qa.question)
            wanted = generate(pair, recording, qa.question, "prior", max_new_tokens=LONGEST).token_ids
            guess = prior.sure_of(qa.question, [], LONGEST, 0.0)
            guess = guess[: guess.index(pair.eos_id) + 1] if pair.eos_id in guess else guess
            known = prior.log_probability(qa.question, guess), guess == wanted
            features, tokens = (None, None) if drafted is None else (drafted.features, drafted.token_ids)
            yield Judged(index, qa.kind, features, features is not None and tokens == wanted, *known)


def risk(setup: Setup) -> Iterator[Finding]:
    """Skipped and wrong answers by risk on disjoint sets of scenes, and how well the predictor and its controls separate right
    from wrong. The control takes the prior's own answers, by thresholds from the same calibration recordings."""
    sets, scenes = setup.size((3, 100), (1, 12))
    risks = setup.size(RISKS, RISKS[-1:])  # smaller ones take more calibration recordings
    with load_pair(setup.pair, "one", fit=False) as pair, torch.inference_mode():
        target = pair.method(SKIP).target
        assert isinstance(target, SubstitutedTarget) and target.calibrated is not None
        known = sorted(set(target.calibrated.recordings.tolist()))
        blind = list(_answers_of(pair, None, "calibration", 0, known[: setup.size(len(known), 5)]))
        scores, bad = np.exp([row.blind for row in blind]), np.array([not row.blind_right for row in blind])
        limits = {risk: threshold(scores, bad, [row.scene for row in blind], risk) for risk in risks}
        splits = []
        for split in range(sets):
            rows = list(_answers_of(pair, target, "test", SEED + 1000 * split, range(scenes)))
            splits.append(_judged(rows, target.calibrated, limits))
            setup.progress((split + 1) / sets)
        yield ("risk",), {"splits": splits, "calibrated_on": len(known), "environment": environment(pair)}


def _judged(rows: list[Judged], calibrated: Calibrated, limits: dict[float, float]) -> Found:
    """What thresholds take of a set of scenes, and what separates right from wrong answers there; limits are the prior's."""
    kept = [row for row in rows if row.features is not None]
    features, right = np.array([row.features for row in kept]), np.array([row.right for row in kept])
    sure = np.full(len(rows), -1.0)  # what is not to be judged is never taken
    sure[[row.features is not None for row in rows]] = calibrated.predictor.probabilities(features)
    good, blind, guessed = (np.array(v) for v in zip(*((r.right, np.exp(r.blind), r.blind_right) for r in rows), strict=True))
    part = {f"risk {risk:g}": _taken(sure, good, calibrated.threshold(risk)) for risk in RISKS}
    part |= {f"probability {limit:g}": _taken(sure, good, limit) for limit in FIXED}
    part |= {f"prior, risk {risk:g}": _taken(blind, guessed, limit) for risk, limit in limits.items()}
    kinds = np.array([row.kind for row in kept])
    areas = {"predictor": area(sure[sure >= 0], right, kinds)}
    for name, columns in PREDICTORS.items():
        used = [FEATURES.index(column) for column in columns]
        areas[name] = area(crossfit(features[:, used], right, [row.scene for row in kept]), right, kinds)
    areas |= {name: area(features[:, place], right, kinds) for place, name in enumerate(FEATURES)}
    shares = {"right": float(good.mean()), "prior_right": float(guessed.mean()), "scenes": len({row.scene for row in rows})}
    curves = {"predictor": _swept(sure, good), "prior": _swept(blind, guessed)}
    known = {"reliability": reliability(sure[sure >= 0], right), "curves": curves}
    return {"n": len(rows), **shares, "at": part, "auc": areas, **known}


def crossfit(features: Array, right: Array, scenes: Sequence[int], strength: float = 1.0) -> Array:
    """Probabilities of predictors of some features, each half of the scenes judged by one that was fitted on the other."""
    even, found = np.array(scenes) % 2 == 0, np.zeros(len(right))
    names = [str(place) for place in range(features.shape[1])]
    for half in (even, ~even):
        found[half] = Predictor.fit(names, features[~half], right[~half], strength).probabilities(features[half])
    return found


def area(scores: Array, right: Array, kinds: Array) -> list[float]:
    """[AUC over all answers, mean AUC within a kind of question]: the kind alone says much. A score that is higher
    where answers are wrong counts as the other way round."""
    whole = auc(scores, right)
    scores = scores if whole >= 0.5 else -scores
    both = [kind for kind in np.unique(kinds) if 0 < right[kinds == kind].mean() < 1]
    within = [auc(scores[kinds == kind], right[kinds == kind]) for kind in both]
    weights = [int((kinds == kind).sum()) for kind in both]
    return [max(whole, 1 - whole), float(np.average(within, weights=weights)) if both else 0.5]


def _swept(sure: Array, right: Array) -> list[list[float]]:
    """[skipped, wrong] for thresholds that take ever more, from none on."""
    limits = np.unique(np.quantile(sure[sure >= 0], np.linspace(0, 1, CURVE)))[::-1]
    found = [_taken(sure, right, limit) for limit in limits]
    return [[0.0, 0.0], *([one["skipped"], one["wrong"]] for one in found)]


def _taken(sure: Array, right: Array, limit: float) -> dict[str, float]:
    """Of all answers, the share that is taken from a probability on, and the share that is taken and wrong."""
    used = sure >= limit
    return {"skipped": float(used.mean()), "wrong": float((used & ~right).mean()), "n": len(used)}
