r"""Heads on the target's features, compared: one table of all of them with controls, trees at equal node budgets, what drafting
could at best give, and checkpoints of a training. Run on a quiet machine; every mode prints JSON and writes its part of the
results:

python benchmarks/heads.py table  --scenes 100 --limit 200 --look  # every head, controls, intervals
python benchmarks/heads.py identity --scenes 100 --limit 200 --workers 2  # all arms to draft: is the answer the target's?
python benchmarks/heads.py trees  --scenes 40 --limit 60        # kinds of trees, of 8, 16, 24 and 59 nodes
python benchmarks/heads.py bound  --scenes 40 --limit 100       # decode-only speed-up beside tau / (V(k) + c/t)
python benchmarks/heads.py scaling --checkpoints A B C          # heads of one training at several ages, ascending

`benchmarks/heads_report.py` writes docs/heads.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from eventspec.core import Sampling
from eventspec.drafters import FeatureDrafter, load_head
from eventspec.drafters.heads.trees import LEVELS, STATIC, TREES, best_paths
from eventspec.engine import DraftPolicy
from eventspec.engine.cost import VerifyCurve, measure_rounds, measure_verify
from eventspec.engine.drafts import Drafts
from eventspec.engine.method import Method
from eventspec.experiments.arms import Arm, Recordings, interleaved
from eventspec.experiments.compare import compare, environment
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.nn import KVCache
from eventspec.nn.decode import block, compiled
from eventspec.nn.draft import DraftKernel, TreeConfig, fixed_tree
from eventspec.nn.linear import usable_for
from eventspec.nn.runner import packed_layer
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.methods import head_folder
from eventspec.pairs.warming import Costs, behind_prompt, session_of
from eventspec.recordings.qa import Question, read_questions
from eventspec.scenes.writer import write_scenes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/heads.json"
SMALL = ("massv",)
CONTROLS = ["autoregressive", "prior", "ngram"]
NODES = (8, 16, 24, 59)
"""Drafts in a tree; EAGLE-2's has 59 and the root."""
LONG = 40
READ = ("eagle", "specvlm", "frugal")
"""Heads whose reading of the prompt is compared with the published way to read it."""
BOUND = ("eagle", "specvlm", "frugal", "eagle3")


def heads_of(pair: Pair) -> list[str]:
    return [name for name in pair.parts.heads if name not in SMALL]


def ask(
    options: argparse.Namespace, arms: Callable[[Pair], list[Arm]], methods: list[str], words: int = 0
) -> tuple[dict[str, Any], list[Any]]:
    """Questions whose right answer has at least so many words, in all arms, interleaved: the summary, and every row."""
    pair = not_learning(warm_up(load_pair(options.pair, "one", fit=False)))
    with tempfile.TemporaryDirectory() as folder:
        street, rows = Path(folder, "street"), Path(folder, "rows.jsonl")
        write_scenes(street, options.scenes, "test", options.seed)
        questions = [q for q in read_questions(street / "qa.jsonl", None) if len(q.answer.split()) >= words][: options.limit]
        sampling = Sampling()
        told = compare(pair, questions, methods, sampling, ["real"], rows, progress, others=arms(pair), look=options.look)
        return told, [json.loads(line) for line in rows.read_text().splitlines()]


def progress(done: int, total: int) -> None:
    if done % 20 == 0:
        print(f"{done} of {total}", file=sys.stderr, flush=True)


class WholeLayer(DraftKernel):
    """Reads a prompt as the published code does: every pair goes through the whole layer."""

    def __init__(self, kernel: DraftKernel) -> None:
        self.__dict__.update(kernel.__dict__)
        layer = kernel.weights.layers[0]
        self.use_packed = usable_for(layer.qkv)
        self.all_packed = packed_layer(layer) if self.use_packed else layer
        self.block = compiled(block)

    def read(self, normed: torch.Tensor, x: torch.Tensor, rope: Any, cache: KVCache) -> torch.Tensor:
        if cache.length:
            return super().read(normed, x, rope, cache)
        stored = (cache.keys[0], cache.values[0], 0)
        found: torch.Tensor = self.block(
            normed, x, len(x), *rope, *stored, None, len(x), self.all_packed, self.use_packed, self.heads, self.eps
        )
        return found[-1:]


def not_learning(pair: Pair) -> Pair:
    """The same trees for all heads of a shape: what each would learn of its own rounds differs by chance."""
    return replace(pair, methods={name: replace(method, learnt=None) for name, method in pair.methods.items()})


def with_drafter(pair: Pair, drafter: FeatureDrafter) -> Pair:
    """The pair with another drafter in method eagle, whose policy stays."""
    method = pair.method("eagle")
    return pair.with_method("eagle", replace(method, drafts=Drafts.by(drafter)))


def whole_layer(pair: Pair, known: Costs) -> Pair:
    """The pair, its head reading prompts so, and warm."""
    drafter = copy(pair.drafter("eagle"))
    assert isinstance(drafter, FeatureDrafter)
    drafter.kernel = WholeLayer(drafter.kernel)
    return not_learning(warm_up(with_drafter(pair, drafter), ("eagle",), known))


def table(options: argparse.Namespace) -> dict[str, Any]:
    def arms(pair: Pair) -> list[Arm]:
        trees = [f"eagle:{arm}" for arm in ("static", "published", "chain")]
        names = [
            *heads_of(pair),
            *trees,
            *(f"{name}{arm}" for name in SMALL if name in pair.parts.heads for arm in ("", ":pruned")),
        ]
        known: Costs = {}
        made = {name: not_learning(warm_up(pair.with_head(name), ("eagle",), known)) for name in names}
        made |= {f"{name}:whole": whole_layer(made[name], known) for name in READ}
        return [Arm(name, "eagle", arm) for name, arm in made.items()]

    told, rows = ask(options, arms, CONTROLS)
    for name, figures in told["methods"].items():
        long = [r for r in rows if r["method"] == name and r["usage"]["completion_tokens"] >= LONG]
        base = [r for r in rows if r["method"] == "autoregressive" and r["usage"]["completion_tokens"] >= LONG]
        spent = [[r["timing_ms"]["decode"] for r in found] for found in (base, long)]
        figures["decode_speedup_long"] = ratio_of_sums(*spent) if len(base) == len(long) else None
        figures["long"] = len(long)
    return told


def ways_to_draft(pair: Pair) -> list[str]:
    specs = [f"{name}:{tree}" for name in heads_of(pair) for tree in ("dynamic", "static", "published", "chain")]
    return specs + [f"{name}:{arm}" for name in SMALL if name in pair.parts.heads for arm in ("dynamic", "pruned")]


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Answers only, no timing: every head in every arm it can draft, against the baseline's token ids."""
    pair = load_pair(options.pair, "one", fit=False)
    with tempfile.TemporaryDirectory() as folder:
        write_scenes(Path(folder, "street"), options.scenes, "test", options.seed)
        questions = read_questions(Path(folder, "street/qa.jsonl"), options.limit)
        shares = [questions[at :: options.workers] for at in range(options.workers)]
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            parts = list(pool.map(answered, [options.pair] * len(shares), shares, range(len(shares))))
    told = {spec: {name: sum(part[spec][name] for part in parts) for name in figures} for spec, figures in parts[0].items()}
    recordings = len({q.recording for q in questions})
    return {"n": len(questions), "recordings": recordings, "environment": environment(pair, ["real"]), "methods": told}


def answered(name: str, questions: list[Question], worker: int) -> dict[str, dict[str, int]]:
    """What every arm did on some questions."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # a core each: threads of two workers that wait for each other's cores take ten times
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})
    pair = load_pair(name, "one", fit=False)
    arms = [Arm("autoregressive", "autoregressive", pair)]
    arms += [Arm(spec, "eagle", pair.with_head(spec)) for spec in ways_to_draft(pair)]
    told = {arm.name: {"identical": 0, "failed": 0, "drafted": 0, "tokens": 0, "rounds": 0} for arm in arms[1:]}
    rows = interleaved(arms, Recordings(questions), questions, Sampling())
    for number, (_, found) in enumerate(rows, 1):
        for spec, figures in told.items():
            row = found[spec]
            figures["identical"] += row["token_ids"] == found["autoregressive"]["token_ids"]
            # A drafter that gave up would be identical too.
            figures["failed"] += any("failed" in note for note in row["notes"])
            figures["drafted"] += row["speculation"]["drafted"] > 0
            figures["tokens"] += len(row["token_ids"])
            figures["rounds"] += row["speculation"]["rounds"]
        progress(number, len(questions))
    return told


def trees(options: argparse.Namespace) -> dict[str, Any]:
    """Every kind of tree with the same number of nodes and no floor: what the shape is worth, whatever it costs."""

    def arms(pair: Pair) -> list[Arm]:
        found = []
        for head in options.heads or ["eagle"]:
            trained = load_head(head_folder(pair.parts, head), pair.parts.language_target.language)
            drafter = pair.with_head(head).drafter("eagle")
            assert isinstance(drafter, FeatureDrafter)
            head = Path(head).name
            for nodes in NODES:
                policy = DraftPolicy(max_nodes=nodes, node_cost=0.0, level_cost=0.0)
                levels = max(LEVELS, nodes)  # a chain of as many nodes has to be as deep
                static = fixed_tree(best_paths(trained.rates, nodes, levels))
                grown = {"dynamic": TreeConfig(levels=levels), "static": static, "chain": TreeConfig(1, levels)}
                if nodes <= len(STATIC):
                    grown["published"] = TREES["published"]
                for kind, growth in grown.items():
                    method = Method(pair.target, Drafts.by(drafter.with_tree(growth)), policy)
                    made = pair.with_method("eagle", method)
                    found.append(Arm(f"{head}, {nodes} nodes, {kind}", "eagle", made))
        return found

    told, rows = ask(options, arms, ["autoregressive"])
    kept = ("identical", "tau", "tau_ci95")
    told["methods"] = {name: {k: figures[k] for k in kept} for name, figures in told["methods"].items()}
    told["against_chain"] = {}
    for name in told["methods"]:
        head, *rest = name.split(", ")
        if len(rest) == 2:
            own, chain = ([r for r in rows if r["method"] == n] for n in (name, f"{head}, {rest[0]}, chain"))
            rounds = [[r["speculation"]["rounds"] for r in found] for found in (chain, own)]
            interval = ratio_interval(*rounds, [r["recording"] for r in own])
            told["against_chain"][name] = {"fewer_rounds": ratio_of_sums(*rounds), "ci95": interval}
    told["ranks"] = {
        Path(head).name: load_head(head_folder(known.parts, head), known.parts.language_target.language).rates
        for known in (load_pair(options.pair, "one", fit=False),)
        for head in options.heads or ["eagle"]
    }
    return told


def bound(options: argparse.Namespace) -> dict[str, Any]:
    """What tau and the measured costs allow: tau / (V(k) + c / t), and how much of it is reached on answers of 40 tokens and
    more. V is measured apart, in trees of k rows that take turns with drafts; t is a step of the baseline's, c what drafting
    takes a round, both in the run."""

    def arms(pair: Pair) -> list[Arm]:
        known: Costs = {}
        made = {name: not_learning(warm_up(pair.with_head(name), ("eagle",), known)) for name in options.heads or BOUND}
        return [Arm(name, "eagle", arm) for name, arm in made.items()]

    told, rows = ask(options, arms, ["autoregressive"], words=25)
    curve = verify_curve(load_pair(options.pair, "one", fit=False))
    rows = [r for r in rows if r["usage"]["completion_tokens"] >= LONG]
    base = [r for r in rows if r["method"] == "autoregressive"]
    step = sum(r["timing_ms"]["decode"] for r in base) / sum(len(r["token_ids"]) - 1 for r in base)
    found: dict[str, Any] = {}
    for name in told["methods"]:
        own = [r for r in rows if r["method"] == name]
        rounds = sum(r["speculation"]["rounds"] - 1 for r in own)
        if name == "autoregressive" or not rounds:
            continue
        nodes = sum(r["speculation"]["drafted"] for r in own) / rounds
        # `rounds_ms` leaves out the round that is the prefill, and with it the first draft and the reading of the prompt.
        drafts = sum(max(0, r["speculation"]["rounds"] - 2) for r in own)
        drafting = sum(r["rounds_ms"]["drafting"] for r in own) / max(1, drafts)
        tau = sum(len(r["token_ids"]) - 1 for r in own) / rounds
        verify = float(np.interp(nodes + 1, (1, *curve.counts), (curve.one, *curve.seconds))) / curve.one
        allowed = tau / (verify + drafting / step)
        spent = [[r["timing_ms"]["decode"] for r in found] for found in (base, own)]
        reached = ratio_of_sums(*spent) or 0.0
        found[name] = {
            "tau_behind_the_first": tau,
            "nodes": nodes,
            "V": verify,
            "c_over_t": drafting / step,
            "allowed": allowed,
        }
        seen = sum(r["rounds_ms"]["model"] - r["rounds_ms"]["drafting"] for r in own) / rounds / step
        prefill = sum(r["timing_ms"]["drafter_prefill"] or 0 for r in own) / len(own)
        found[name] |= {"decode_speedup": reached, "reached": reached / allowed, "prefill_ms": prefill, "V_in_run": seen}
    told["bound"] = {"n": len(base), "step_ms": step, "curve": [curve.one, curve.counts, curve.seconds], **found}
    return told


def verify_curve(pair: Pair) -> VerifyCurve:
    """V(k) behind drafts, as `warm_up` measures it, over more lengths. Steps and trees take turns: what they cost drifts
    together, by more than V is wanted to."""
    drafter = pair.drafter("eagle")
    assert isinstance(drafter, FeatureDrafter)

    def measured() -> VerifyCurve:
        alone = session_of(pair.target, 1)
        target, begin = behind_prompt(pair, drafter.with_tree(TreeConfig(2, 24)))
        draft = begin()
        turns = []
        for _ in range(12):
            one = measure_verify(alone, (), repeats=6).one
            turns.append(measure_rounds(target, draft, one, (2, 4, 6, 8, 12, 16, 24, 40), repeats=2)[0])
        columns = zip(*(turn.seconds for turn in turns), strict=True)
        return VerifyCurve(median(turn.one for turn in turns), turns[0].counts, tuple(median(column) for column in columns))

    return pair.workers.start("target", measured).result()


def scaling(options: argparse.Namespace) -> dict[str, Any]:
    def arms(pair: Pair) -> list[Arm]:
        # One policy for all: fitted to each, the budgets would differ by chance.
        return [Arm(path.name, "eagle", pair.with_head(str(path))) for path in options.checkpoints]

    told, rows = ask(options, arms, ["autoregressive"])
    kept = ("identical", "tau", "tau_ci95", "decode_speedup")
    told["methods"] = {name: {k: figures[k] for k in kept} for name, figures in told["methods"].items()}
    names = [path.name for path in options.checkpoints]
    told["against_the_one_before"] = []
    for before, after in pairwise(names):
        one, two = ([r for r in rows if r["method"] == n] for n in (before, after))
        rounds = [[r["speculation"]["rounds"] for r in found] for found in (one, two)]
        found = {"fewer_rounds": ratio_of_sums(*rounds), "ci95": ratio_interval(*rounds, [r["recording"] for r in two])}
        told["against_the_one_before"].append({"from": before, "to": after, **found})
    return told


MODES = {"table": table, "identity": identity, "trees": trees, "bound": bound, "scaling": scaling}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("mode", choices=MODES)
    options.add_argument("--pair", default="nano")
    options.add_argument("--scenes", type=int, default=100)
    options.add_argument("--limit", type=int, default=200)
    options.add_argument("--seed", type=int, default=9300)
    options.add_argument("--heads", nargs="*")
    options.add_argument("--workers", type=int, default=1, help="processes; for identity, where no time is taken")
    options.add_argument("--look", action="store_true", help="what each head says where the blind prior is wrong: takes long")
    options.add_argument("--checkpoints", nargs="*", type=Path, default=[])
    options.add_argument("--out", type=Path, default=RESULTS)
    found = options.parse_args()
    torch.set_num_threads(1)
    told = {"scenes": found.scenes, "seed": found.seed, **MODES[found.mode](found)}
    print(json.dumps(told, indent=1))
    known = json.loads(found.out.read_text()) if found.out.exists() else {}
    if "trained" in known.get(found.mode, {}):
        told["trained"] = known[found.mode]["trained"]
    found.out.write_text(json.dumps({**known, found.mode: told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
