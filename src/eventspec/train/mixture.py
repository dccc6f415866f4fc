"""The weights of a mixture, fitted on calibration questions: every node that was drafted after what the target said is right or
wrong, and a logistic model learns from which drafters named it and how surely."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.align.acceptance import fit_logistic, reliability
from eventspec.align.substitute import LONGEST
from eventspec.ask import generate
from eventspec.core import BadInput, Budget, Drafter, Proposal, Round
from eventspec.drafters.mixture import (
    Mixture,
    Rounds,
    SourceWeights,
    Union,
    is_model,
    named,
    without_blind_texts,
    without_models,
)
from eventspec.engine.drafts import Merge, all_of
from eventspec.files import write_text
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.names import BLIND, HYBRID
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.recordings import Recording
from eventspec.recordings.qa import held_out, read_questions
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import every_wording
from eventspec.scenes.writer import as_recording
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.loop import Report, Stage, changed_pair
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes

MOST = 4
"""Times as many questions, where so few gave less than a fit needs."""
ASKED = 2
"""Questions about a clip of the calibration split."""
PRESETS = presets_of(
    {name: TrainingPreset(n, 0, Stage("rounds", 0, 0, 1, steps=1), 1) for name, n in (("cpu", 400), ("smoke", 8))}
)
"""How many questions there are, where as many are given; nothing is trained by steps."""
AGAIN = 4
"""One question in so many is asked again, to measure rounds."""
LEAST = 500
"""Nodes that a fit needs."""
COSTS: dict[str, Any] = {"verify_cost": 1.0, "node_cost": 0.03, "level_cost": 0.15, "open_cost": 0.0, "patience": 1e9}
"""What drafting costs, whatever the machine: how busy it is does not decide what a fit sees, nor what is late."""


class Watched:
    """A merge that remembers every union it was given."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.unions: list[Union] = []

    def __call__(self, proposals: Sequence[Proposal], budget: Budget) -> Proposal:
        self.unions.append(Union.of(proposals))
        return self.merge(proposals, budget)


@dataclass(frozen=True)
class Judged:
    """Nodes whose parent the target said, of a union: which drafter named what, and whether the target said it too, bool
    [U]; and the number of the question."""

    names: tuple[str, ...]
    features: np.ndarray[Any, np.dtype[np.float64]]
    right: np.ndarray[Any, np.dtype[np.bool_]]
    question: int = 0

    @classmethod
    def of(cls, union: Union, said: Sequence[int]) -> Judged:
        """By what the target `said` from the union's root on."""
        on_path, right, kept = {-1: 0}, list[bool](), list[int]()
        for node, (token, parent) in enumerate(zip(union.tokens, union.parents, strict=True)):
            at = on_path.get(parent)
            if at is None or at >= len(said):
                continue
            kept.append(node)
            right.append(token == said[at])
            if right[-1]:
                on_path[node] = at + 1
        return cls(union.names, union.features()[kept], np.array(right, np.bool_))


def judged(pair: Pair, asked: Iterable[tuple[Recording, str]], report: Report, count: int) -> Iterator[Judged]:
    """What the drafters of method hybrid draft for questions, where they are called: all of them for one question, texts alone
    for the next, since after the prefill either may be worth its cost. Of more than `count` questions only so many are asked as
    a fit needs."""
    method, nodes = pair.method(HYBRID), 0
    watched = Watched(method.drafts.merge)
    watching = [
        pair.with_method(HYBRID, replace(method, drafts=replace(method.drafts, merge=watched, select=select)))
        for select in (all_of, lambda drafters, policy: without_models(drafters))
    ]
    report("questions", 0.0, {})
    for number, (recording, question) in enumerate(asked):
        if number >= count and (nodes >= 2 * LEAST or not nodes):  # half of them is judged
            break
        watched.unions = []
        result = generate(watching[number % 2], recording, question, HYBRID, max_new_tokens=LONGEST)
        places = np.cumsum([0, *(r.committed for r in result.trace.rounds)]).tolist()
        merged = [place for place, r in zip(places, result.trace.rounds, strict=False) if "+" in r.origin]
        if len(merged) == len(watched.unions):
            for place, union in zip(merged, watched.unions, strict=True):
                found = Judged.of(union, result.token_ids[place:])
                nodes += len(found.right)
                yield replace(found, question=number)
        report("questions", min(1.0, (number + 1) / count), {})


def fitted(rows: Sequence[Judged], least: int = LEAST) -> Mixture:
    """The weights under which what was judged is most likely, with a small Gaussian prior around those that take the drafters'
    own probabilities as they are. BadInput where there are too few to learn from."""
    names = tuple(dict.fromkeys(name for row in rows for name in row.names))
    count = sum(len(row.right) for row in rows)
    if not count:
        raise BadInput("no two drafters drafted for the same round, so there is nothing to weigh: train a prior or heads first")
    if count < least:
        raise BadInput(f"{count} drafted tokens are too few to fit a mixture on, {least} are needed: give more questions")
    features, at = np.zeros((count, len(names), 4)), 0
    for row in rows:
        features[at : at + len(row.right), [names.index(name) for name in row.names]] = row.features
        at += len(row.right)
    right = np.concatenate([row.right for row in rows])
    prior = np.tile([0.0, 1.0, 0.0, -1.0], len(names))
    weights, bias = fit_logistic(features.reshape(count, -1), right, prior)
    sources = [SourceWeights(*weights[at : at + 4]) for at in range(0, len(weights), 4)]
    return Mixture(dict(zip(names, sources, strict=True)), bias)


def rounds_of(pair: Pair, mixture: Mixture, asked: Sequence[tuple[Recording, str]], report: Report) -> dict[str, Rounds]:
    """What rounds after the head start gave, in method hybrid and in the same without events, with all drafters, with texts
    alone, and with models and what they wrote."""
    found, some = dict[str, Rounds](), list[tuple[str, tuple[Drafter, ...]]]()
    for name in [name for name in (HYBRID, BLIND) if name in pair.methods]:
        after = pair.method(name).drafts.after
        ways = (after, without_models(after), without_blind_texts(after))
        some += [(name, tuple(drafters)) for drafters in ways if drafters]
    for place, (name, drafters) in enumerate(dict.fromkeys(some)):
        method = pair.method(name)
        shipped = method.drafts.merge  # knows how an answer ends, and drafters that nothing is fitted for
        assert isinstance(shipped, Mixture)
        merge = replace(shipped, weights={**shipped.weights, **mixture.weights}, bias=mixture.bias)
        drafts = replace(method.drafts, after=drafters, merge=merge, select=all_of)
        drafting = pair.with_method(name, replace(method, drafts=drafts))
        rounds = list[Round]()
        for number, (recording, question) in enumerate(asked, 1):
            rounds += generate(drafting, recording, question, name, max_new_tokens=LONGEST).trace.rounds[1:]
            report("rounds", (place + number / len(asked)) / len(some), {})
        if rounds:
            sizes = np.array([(len(r.tokens), r.proposed, r.depth) for r in rounds])
            tokens, nodes, levels = sizes.mean(0).tolist()
            found[named(drafters)] = Rounds(tokens, nodes, levels if any(map(is_model, drafters)) else 0.0)
    return found


def street(clips: int) -> Iterator[tuple[Recording, str]]:
    """Questions about rendered clips of the calibration split, two about each."""
    for index in range(clips):
        clip = make_clip(split_seed("calibration", 0, index))
        every = every_wording(clip.facts)
        for place in np.random.default_rng((0, index)).permutation(len(every))[:ASKED]:
            yield as_recording(clip, f"clip {index}"), every[place].question


def train(
    where: str, size: Preset, out: Path, report: Report, processes: Processes = ALONE, given: Given | None = None
) -> Path:
    """Fit the mixture of a pair on rendered clips, or on the questions that are given, and write OUT/pair: the pair with
    mixture.json, and mixture-report.json with reliability before and after, by drafter, of every second round, which the
    reported fit did not see. Questions to a pair of checkpoints: about recordings that are held out; how many are not, since
    there were too few, the report says (`learned_from`): drafters that learned from them are surer there than they may be."""
    folder = folder_of(where)
    file, questions = PairFile.read(folder), [] if given is None else read_questions(given.questions)
    kept = held_out(questions) if file.load is not None else frozenset(one.resolved for one in questions)
    questions = sorted(questions, key=lambda one: one.resolved not in kept)  # those first
    apart = sum(one.resolved in kept for one in questions)
    pair = load_pair(folder, "two", fit=False).with_policy(**COSTS)  # a drafter beside the target writes on
    wanted = preset_of(PRESETS, size).answered
    count = min(wanted, apart or len(questions) or MOST * wanted)

    def asked() -> Iterator[tuple[Recording, str]]:
        if given is None:
            return street(MOST * wanted // ASKED)
        return ((question.open(), question.question) for question in questions)  # as many as a fit needs

    with pair:
        rows = list(judged(pair, asked(), report, count))
        whole = fitted(rows)
        rounds = rounds_of(pair, whole, list(islice(asked(), 0, count, AGAIN)), report)
    learned = 0 if given is None else len({row.question for row in rows if row.question >= apart})
    if file.load is not None:
        file = file.having_learned("mixture", (questions[number].resolved for number in {row.question for row in rows}))
    half = fitted(rows[::2], LEAST // 4)
    others = [row for row in rows[1::2] if all(name in half.weights for name in row.names) and len(row.right)]
    about = {"questions": count, "learned_from": learned, **report_of(half, others)}
    with changed_pair(file, out) as made:
        made = replace(made, files={**made.files, "mixture": "mixture.json"})
        replace(whole, rounds=rounds).save(made.place("mixture"))
        made.write()
    write_text(out / "mixture-report.json", json.dumps(about, indent=1) + "\n")
    return out / "pair"


def report_of(mixture: Mixture, rows: Sequence[Judged]) -> dict[str, Any]:
    """Reliability of every drafter's own probabilities, and of the mixture's."""
    after = np.concatenate([mixture.fitted_shares(row.names, row.features) for row in rows])
    right = np.concatenate([row.right for row in rows]).astype(float)
    found = {}
    for name in mixture.weights:
        own, hits = list[Any](), list[Any]()
        for row in rows:
            if name in row.names:
                named, odds, _, _ = row.features[:, row.names.index(name)].T
                own.append(1 / (1 + np.exp(-odds[named > 0])))
                hits.append(row.right[named > 0].astype(float))
        if own:
            found[name] = reliability(np.concatenate(own), np.concatenate(hits))
    return {"before": found, "after": reliability(after, right)}
