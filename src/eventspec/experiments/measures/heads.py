"""Heads on the target's features, compared: all of them with controls, trees with as many nodes, what drafting could at best
give, and one by the clips that it learns from. All go into heads.json, each at its own key."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from eventspec.core import BadInput, Sampling
from eventspec.costs.fit import Opening, VerifyCurve, behind_prompt, measure_rounds, measure_verify, session_of
from eventspec.drafters import FeatureDrafter, load_head
from eventspec.drafters.heads.checkpoint import TrainedHead
from eventspec.drafters.heads.trees import LEVELS, STATIC, TREES, best_paths
from eventspec.engine import DraftPolicy
from eventspec.engine.drafts import Drafts
from eventspec.engine.method import Method
from eventspec.experiments.arms import Arm
from eventspec.experiments.compare import Comparison, environment
from eventspec.experiments.figures import Row
from eventspec.experiments.identity import Trial, compare_answers, heads_of
from eventspec.experiments.measures.setup import Finding, Found, Setup, compared, one_thread, street
from eventspec.experiments.names import BASE, BLIND
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.models.configuration import read_json
from eventspec.nn import KVCache
from eventspec.nn.cpu.decoder import packed_layer
from eventspec.nn.cpu.products import usable_for
from eventspec.nn.decode import block, compiled
from eventspec.nn.draft import DraftKernel, TreeConfig, fixed_tree
from eventspec.nn.weights import Place
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.names import BRANCHES, folder_named
from eventspec.train.answers import TrainingPreset
from eventspec.train.heads import train
from eventspec.train.loop import Stage

SMALL = ("massv", "spec-llava")
"""Heads that are small models of their own: they grow no fixed trees."""
NODES = (8, 16, 24, 59)
"""Drafts in a tree; EAGLE-2's has 59 and the root."""
LONG = 40
"""Tokens of a long answer."""
READ = ("eagle", "specvlm", "frugal")
"""Heads whose reading of the prompt is compared with the published way to read it."""
BOUND = ("eagle", "specvlm", "frugal", "eagle3")
GATED = ("specvlm", "frugal")
"""Heads whose compressor has a gate that chooses."""
AMOUNTS = (75, 150, 300, 600)
"""Clips that a head learns from."""
LESSONS = 150
"""Steps of 8 clips that each of these heads takes: two epochs of most clips, sixteen of fewest."""
SEED = 9300
Arms = Callable[[Pair], list[Arm]]


def asked(
    setup: Setup, name: str, arms: Arms, methods: Sequence[str], words: int = 0, many: bool = False
) -> tuple[Found, dict[str, list[Row]]]:
    """Questions whose right answers have at least so many words, in all arms, interleaved: the summary, and rows by arm. What
    each drafter would say where the blind prior is wrong is looked up where controls are among the methods."""
    many = many or len(methods) > 1
    sizes = {"scenes": setup.size(100 if many else 40, 2), "seed": SEED}
    limit = setup.size(200 if many else 100, 2)
    with one_thread(), street(setup, name, **sizes, limit=limit, words=words) as (questions, rows):
        pair = fitted(setup, load_pair(setup.pair, "one", fit=False))
        comparison = Comparison(pair, questions, methods, others=arms(pair), look=len(methods) > 1)
        part, found = compared(comparison, rows, setup)
        return {**sizes, **part}, found


def fitted(setup: Setup, pair: Pair, methods: Sequence[str] = (), known: Opening | None = None) -> Pair:
    """A pair with the budgets that its drafts are worth on this machine, which learns nothing: what each would learn of its own
    rounds differs by chance."""
    pair = pair if setup.quick else warm_up(pair, methods, known)
    return replace(pair, methods={name: replace(method, learnt=None) for name, method in pair.methods.items()})


def fitted_arms(setup: Setup, pairs: dict[str, Pair]) -> list[Arm]:
    """Arms of pairs with a head each, by name; what one shape costs is measured once."""
    known: Opening = {}
    return [Arm(name, "eagle", fitted(setup, pair, ("eagle",), known)) for name, pair in pairs.items()]


def table(setup: Setup) -> Iterator[Finding]:
    """Every head, with controls and other trees, and read as published."""

    def arms(pair: Pair) -> list[Arm]:
        names = [name for name in pair.parts.heads if name not in SMALL]
        names += [f"eagle:{tree}" for tree in ("static", "published", "eagle2", "chain")]
        names += [f"{name}{way}" for name in SMALL if name in pair.parts.heads for way in ("", ":pruned")]
        names = setup.size(names, ["eagle"])
        made = {name: pair.with_head(name) for name in names}
        made |= {f"{name}:whole": _read_whole(made[name]) for name in READ if name in made}
        return fitted_arms(setup, made)

    part, _ = asked(setup, "heads", arms, (BASE, *BLIND))
    if "trained" in (before := setup.known_at(["table"])):
        part["trained"] = before["trained"]  # how long each head was trained is noted by hand
    yield ("table",), part


def branches(setup: Setup) -> Iterator[Finding]:
    """Heads whose compressor chooses: the gate beside each of its branches, always; and what the gate chose, by kind of
    question."""

    def arms(pair: Pair) -> list[Arm]:
        names = setup.size([name for name in GATED if name in pair.parts.heads], ["specvlm"])
        made = {name: pair.with_head(name) for name in names}
        for name in names:
            for branch in BRANCHES:
                with suppress(BadInput):  # another head's
                    made[f"{name}:{branch}"] = pair.with_head(f"{name}:{branch}")
        return fitted_arms(setup, made)

    part, rows = asked(setup, "branches", arms, (BASE,), many=True)
    part["shares"] = {name: _shares(own) for name, own in rows.items() if name in GATED}
    yield ("branches",), part


def _shares(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By kind of question and of all, the share of answers that a head drafted through each branch; `none drafted` where no
    draft was worth its cost."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        for kind in ("all", str(row["kind"] or "-")):
            kinds.setdefault(kind, []).append(row["compressor"] or "none drafted")
    return {
        kind: {"n": float(len(found)), **{branch: found.count(branch) / len(found) for branch in sorted(set(found))}}
        for kind, found in sorted(kinds.items())
    }


def _decoding(rows: Sequence[Row]) -> list[float]:
    return [row["timing_ms"]["decode"] for row in rows]


class WholeLayer(DraftKernel):
    """Reads a prompt as the published code does: every row goes through the whole layer."""

    def __init__(self, kernel: DraftKernel) -> None:
        self.__dict__.update(kernel.__dict__)
        layer = kernel.weights.layers[0]
        self.use_packed = usable_for(layer.qkv)
        self.all_packed = packed_layer(layer) if self.use_packed else layer
        self.block = compiled(block)

    def read(self, normed: torch.Tensor, x: torch.Tensor, rope: Any, cache: KVCache) -> torch.Tensor:
        if cache.length:
            return super().read(normed, x, rope, cache)
        cos, sin = rope
        place = Place(cos, sin, cache.keys, cache.values, 0, None, len(x))
        sizes = self.sizes._replace(packed=self.use_packed)
        found: torch.Tensor = self.block(normed, x, len(x), place, 0, self.all_packed, sizes)
        return found[-1:]


def _drafter(pair: Pair) -> FeatureDrafter:
    drafter = pair.drafter("eagle")
    assert isinstance(drafter, FeatureDrafter)
    return drafter


def _read_whole(pair: Pair) -> Pair:
    """The pair, its head reading prompts so; its policy stays."""
    drafter = copy(_drafter(pair))
    drafter.kernel = WholeLayer(drafter.kernel)
    return pair.with_method("eagle", replace(pair.method("eagle"), drafts=Drafts.by(drafter)))


def identity(setup: Setup) -> Iterator[Finding]:
    """Answers of every head with every tree it can draft, against the baseline's, token by token; no time is taken."""
    pair, counted = load_pair(setup.pair, "one", fit=False), dict[str, dict[str, int]]()
    with one_thread(), street(setup, "identity", SEED, setup.size(100, 1), setup.size(200, 1)) as (questions, _):
        arms = [replace(arm, name=arm.name.removeprefix("eagle, ")) for arm in heads_of(pair) if arm.method == "eagle"]
        arms = setup.size(arms, arms[:2])
        for number, q in enumerate(questions, 1):
            tallies = compare_answers(pair, arms, [Trial(q.id, q.open(), q.question, Sampling())])
            for arm in arms:
                tally, own = tallies[arm.name], counted.setdefault(arm.name, {"identical": 0, "failed": 0, "drafted": 0})
                own["identical"] += not tally.different
                own["failed"] += tally.failed  # a drafter that gave up would be identical too
                own["drafted"] += tally.drafted > 0
            setup.progress(number / len(questions))
    about = {"n": len(questions), "recordings": len({q.recording for q in questions}), "environment": environment(pair)}
    yield ("identity",), {**about, "methods": counted}


def _trained(pair: Pair, head: str) -> TrainedHead:
    return load_head(folder_named("head", head, pair.parts.heads), pair.parts.language_target.language)


def trees(setup: Setup) -> Iterator[Finding]:
    """Every kind of tree with as many nodes and no floor: what the shape is worth, whatever it costs."""
    head = "eagle"

    def arms(pair: Pair) -> list[Arm]:
        rates, drafter, found = _trained(pair, head).rates, _drafter(pair.with_head(head)), []
        for nodes in setup.size(NODES, NODES[:1]):
            policy = DraftPolicy(max_nodes=nodes, node_cost=0.0, level_cost=0.0)
            levels = max(LEVELS, nodes)  # a chain of as many nodes has to be as deep
            grown = {"dynamic": TreeConfig(levels=levels), "static": fixed_tree(best_paths(rates, nodes, levels))}
            grown["chain"] = TreeConfig(1, levels)
            if nodes <= len(STATIC):
                grown["published"] = TREES["published"]
            for kind, growth in grown.items():
                method = Method(pair.target, Drafts.by(drafter.with_tree(growth)), policy)
                found.append(Arm(f"{head}, {nodes} nodes, {kind}", "eagle", pair.with_method("eagle", method)))
        return found

    part, rows = asked(setup, "trees", arms, (BASE,))
    part["methods"] = {name: {k: own[k] for k in ("identical", "tau", "tau_ci95")} for name, own in part["methods"].items()}
    part["against_chain"] = {
        name: fewer_rounds(rows[f"{name.rpartition(', ')[0]}, chain"], rows[name]) for name in part["methods"] if name != BASE
    }
    part["ranks"] = {head: _trained(load_pair(setup.pair, "one", fit=False), head).rates}
    yield ("trees",), part


def fewer_rounds(others: list[Row], own: list[Row]) -> Found:
    """How many rounds others take for one of ours, with its interval over recordings."""
    theirs, ours = ([row["speculation"]["rounds"] for row in rows] for rows in (others, own))
    interval = ratio_interval(theirs, ours, [row["recording"] for row in own])
    return {"fewer_rounds": ratio_of_sums(theirs, ours), "ci95": interval}


def bound(setup: Setup) -> Iterator[Finding]:
    """What tau and the measured costs allow: tau / (V(k) + c / t), and how much of it is reached on answers of at least `LONG`
    tokens. V is measured apart, in trees of k rows that take turns with drafts; t is a step of the baseline's, c what drafting
    takes a round, both in the run."""

    def arms(pair: Pair) -> list[Arm]:
        return fitted_arms(setup, {name: pair.with_head(name) for name in setup.size(BOUND, BOUND[:1])})

    part, rows = asked(setup, "bound", arms, (BASE,), words=25)
    with one_thread():
        curve = _verify_curve(load_pair(setup.pair, "one", fit=False), setup.size(12, 1))
    long = {name: [r for r in own if r["usage"]["completion_tokens"] >= setup.size(LONG, 2)] for name, own in rows.items()}
    base = long.pop(BASE)
    step = sum(_decoding(base)) / sum(len(row["token_ids"]) - 1 for row in base)
    found = {name: _bounded(own, base, step, curve) for name, own in long.items() if own}
    about = {"n": len(base), "step_ms": step, "curve": [curve.one, curve.counts, curve.seconds]}
    yield ("bound",), {**part, "bound": {**about, **found}}


def _bounded(own: list[Row], base: list[Row], step: float, curve: VerifyCurve) -> Found:
    """What is allowed and reached of one head's rows; `step` in milliseconds."""
    rounds = sum(row["speculation"]["rounds"] - 1 for row in own)
    nodes = sum(row["speculation"]["drafted"] for row in own) / rounds
    # `rounds_ms` leaves out the round that is the prefill, and with it the first draft and the reading of the prompt.
    drafts = sum(max(0, row["speculation"]["rounds"] - 2) for row in own)
    drafting = sum(row["rounds_ms"]["drafting"] for row in own) / max(1, drafts)
    tau = sum(len(row["token_ids"]) - 1 for row in own) / rounds
    verify = float(np.interp(nodes + 1, (1, *curve.counts), (curve.one, *curve.seconds))) / curve.one
    allowed, reached = tau / (verify + drafting / step), ratio_of_sums(_decoding(base), _decoding(own)) or 0.0
    return {
        "tau_behind_the_first": tau,
        "nodes": nodes,
        "V": verify,
        "c_over_t": drafting / step,
        "allowed": allowed,
        "decode_speedup": reached,
        "reached": reached / allowed,
        "V_in_run": sum(row["rounds_ms"]["model"] - row["rounds_ms"]["drafting"] for row in own) / rounds / step,
    }


def _verify_curve(pair: Pair, turns: int) -> VerifyCurve:
    """V(k) after drafts, as `warm_up` measures it, over more lengths. Steps and trees take turns: what they cost drifts
    together, by more than V is wanted to."""
    drafter = _drafter(pair)

    def measured() -> VerifyCurve:
        alone = session_of(pair.target, 1)
        target, begin = behind_prompt(pair, drafter.with_tree(TreeConfig(2, 24)))
        draft, found = begin(), list[VerifyCurve]()
        for _ in range(turns):
            one = measure_verify(alone, (), repeats=6).one
            found.append(measure_rounds(target, draft, one, (2, 4, 6, 8, 12, 16, 24, 40), repeats=2)[0])
        columns = zip(*(turn.seconds for turn in found), strict=True)
        return VerifyCurve(median(turn.one for turn in found), found[0].counts, tuple(median(column) for column in columns))

    return pair.workers.start("target", measured).result()


def lessons(head: Path, clips: int, stage: Stage) -> Found:
    """How a head was taught: steps, epochs, and the words that it can name."""
    words = read_json(head / "config.json")["draft_vocab_size"]
    return {"steps": stage.steps, "epochs": stage.steps * stage.batch / clips, "words": words}


def data(setup: Setup) -> Iterator[Finding]:
    """EAGLE-3's head (2503.01840: more data, longer drafts) taught by ever more clips, from nothing and in as many steps each,
    on one core. Such a head names the tokens that its clips' answers have, so that more clips give it more words as well."""
    stage = Stage("heads", 480, 1e-3, setup.size(8, 2), steps=setup.size(LESSONS, 2))
    with nullcontext(setup.work) if setup.work else tempfile.TemporaryDirectory() as place:
        amounts = sorted(setup.size(AMOUNTS, (2, 4)), reverse=True)
        runs = {clips: Path(place, f"eagle3-{clips}") for clips in amounts}
        for done, (clips, run) in enumerate(runs.items()):
            if not run.exists() and done:  # the clips and answers of the largest one, which begin alike
                for folder in ("train", "calibration", "answers"):
                    shutil.copytree(runs[amounts[0]] / folder, run / folder)
            preset = TrainingPreset(clips, setup.size(64, 2), stage, 6, f"{clips} clips")
            train(setup.pair, preset, ["eagle3"], run, lambda *words: None, 1)
            setup.progress((done + 1) / len(runs) / 2)
        heads = {f"{clips} clips": runs[clips] / "pair/heads/eagle3" for clips in reversed(amounts)}

        def arms(pair: Pair) -> list[Arm]:
            # One policy: fitted to each, the budgets would differ by chance.
            return [Arm(title, "eagle", pair.with_head(str(path))) for title, path in heads.items()]

        part, rows = asked(setup, "data", arms, (BASE,))
        part["taught"] = {
            title: lessons(path, clips, stage) for (title, path), clips in zip(heads.items(), amounts[::-1], strict=True)
        }
    kept = ("identical", "tau", "tau_ci95", "decode_speedup")
    part["methods"] = {title: {key: own[key] for key in kept} for title, own in part["methods"].items()}
    part["against_the_one_before"] = [{"from": a, "to": b, **fewer_rounds(rows[a], rows[b])} for a, b in pairwise(heads)]
    yield ("data",), part
