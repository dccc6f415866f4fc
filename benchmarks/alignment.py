r"""Adapters from events to the target, compared: what their drafts are worth beside controls, what skipping the encoder risks,
and how feature gaps and acceptance go together in training. Every mode prints JSON and writes its part of the results:

python benchmarks/alignment.py table --pair adapters/pair --scenes 100 --limit 200  # on a quiet machine
python benchmarks/alignment.py risk  --pair adapters/pair --scenes 100              # three disjoint sets of scenes; counts only
python benchmarks/alignment.py training RUN [RUN ...]                               # folders of `eventspec train adapter`
python benchmarks/alignment.py low-rank RUN [RUN ...] --pair distilled/pair         # of `eventspec train lora`

They go into benchmarks/results/alignment.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eventspec.align.acceptance import auc, needed, reliability, threshold
from eventspec.align.substitute import FEATURES, LONGEST, SubstitutedTarget
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Sampling
from eventspec.experiments.arms import Arm
from eventspec.experiments.compare import compare, environment
from eventspec.experiments.figures import Row
from eventspec.experiments.rows import RowFile
from eventspec.experiments.statistics import mean, ratio_interval, ratio_of_sums
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.methods import HYBRID, SKIP, drafting_by
from eventspec.pairs.pair_file import folder_of
from eventspec.recordings.qa import read_questions
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording, write_scenes
from eventspec.train import lora
from eventspec.train.adapters import FIGURES
from eventspec.train.answered import answered
from eventspec.train.data import Questions
from eventspec.train.frozen import FrozenTarget

RESULTS = Path(__file__).parent / "results/alignment.json"
METHODS = ["autoregressive", "prior", "ngram", "cross-modal", "aligned", "event-eagle", "hybrid", SKIP]
KINDS = ["real", "shuffled", "blank", "scattered"]
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
FIXED = (0.8, 0.85, 0.9)
"""Thresholds of the early notes, on the predictor's probability."""
SPLITS = 3
CURVE = 21
Interval = list[float | None]
"""A value and the ends of its 95 % interval, None where there are too few recordings."""


def table(options: argparse.Namespace) -> dict[str, Any]:
    """Every adapter and its controls, interleaved."""
    pair = warm_up(load_pair(options.pair, "two", fit=False))
    adapters = pair.parts.adapters
    assert adapters is not None
    with nullcontext(options.rows) if options.rows else tempfile.TemporaryDirectory() as folder:
        street, rows = Path(folder, "street"), Path(folder, "rows.jsonl")
        if not (street / "qa.jsonl").exists():
            write_scenes(street, options.scenes, "test", options.seed)
        usual = {adapters.usual("rows"), adapters.usual("features")}
        arms = [
            Arm(f"{drafting_by(pair.parts, name)}, {name}", drafting_by(pair.parts, name), pair.with_adapter(name))
            for name in adapters.folders
            if name not in usual
        ]
        mixed = [name for name in adapters.folders if name in usual]
        arms += [Arm(f"{HYBRID}, {name}", HYBRID, pair.with_adapter(name, HYBRID)) for name in mixed]
        methods = [name for name in METHODS if name in pair.methods]
        asked, sampling = read_questions(street / "qa.jsonl", options.limit), Sampling()
        told = compare(pair, asked, methods, sampling, KINDS, rows, progress, others=arms, resume=rows.exists())
        found = read_rows(rows)
        return {**told, "vision": seen(found, read_rows(rows.with_name("rows.vision.jsonl"))), "skipping": skipping(found)}


def read_rows(path: Path) -> dict[str, dict[str, Row]]:
    """Rows by arm and question."""
    found = dict[str, dict[str, Row]]()
    for (arm, question), row in RowFile(path, resume=True).rows.items():
        found.setdefault(arm, {})[question] = row
    return found


def seen(rows: dict[str, dict[str, Row]], looks: dict[str, dict[str, Row]]) -> dict[str, dict[str, Interval]]:
    """Of answer tokens that the prior gets wrong, the share that an arm's first choice gets right, and how much more that is
    than with a control's events, each with its interval over recordings."""
    found = dict[str, dict[str, Interval]]()
    for name, own in looks.items():
        places = {at: row["vision"] for at, row in own.items() if row["vision"] is not None and row["vision"][1]}
        recordings = [rows[name][at]["recording"] for at in places]
        among = [float(of) for _, of in places.values()]

        def share(right: list[float], among: list[float] = among, recordings: list[str] = recordings) -> Interval:
            return [ratio_of_sums(right, among), *(ratio_interval(right, among, recordings) or (None, None))]

        found[name] = {"right": share([float(right) for right, _ in places.values()])}
        for control in (f"{name}, {kind} events" for kind in KINDS[1:]):
            # The same answers, so the same tokens: the difference is a ratio of sums too.
            if (other := looks.get(control)) is not None:
                found[name][control] = share([float(right - other[at]["vision"][0]) for at, (right, _) in places.items()])
    return found


def skipping(rows: dict[str, dict[str, Row]]) -> dict[str, float | None]:
    """What an answer takes on average: the target's own, one from events alone, and one that events were tried for first."""
    own = rows.get(SKIP, {}).values()
    times = {
        "target_ms": [row["timing_ms"]["total"] for row in rows["autoregressive"].values()],
        "skipped_ms": [row["timing_ms"]["total"] for row in own if row["skipped"]],
        "asked_ms": [row["timing_ms"]["total"] for row in own if not row["skipped"]],
    }
    return {name: mean(values) for name, values in times.items()}


def progress(done: int, total: int) -> None:
    if done % 20 == 0:
        print(f"{done} of {total}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Looked:
    """An answer from events alone about a rendered scene, and the prior's own: what is known of the first, the log-probability
    of the second, and whether each is the target's."""

    scene: int
    features: tuple[float, ...]
    right: bool
    blind: float
    blind_right: bool


def looked_at(pair: Pair, target: SubstitutedTarget, seed: int, scenes: int) -> Iterator[Looked]:
    """Every question about rendered scenes."""
    prior = pair.parts.prior
    assert prior is not None
    for index in range(scenes):
        clip = make_clip(split_seed("test", seed, index))
        recording = as_recording(clip, f"scene {index}")
        media = media_of(recording)
        for qa in questions(clip.facts, index):
            drafted = target.substitute.answer(media, qa.question)
            wanted = generate(pair, recording, qa.question, "prior", max_new_tokens=LONGEST).token_ids
            guess = prior.sure_of(qa.question, [], LONGEST, 0.0)
            guess = guess[: guess.index(pair.eos_id) + 1] if pair.eos_id in guess else guess
            known = prior.log_probability(qa.question, guess), guess == wanted
            if drafted.features is not None:
                yield Looked(index, drafted.features, drafted.token_ids == wanted, *known)


def risk(options: argparse.Namespace) -> dict[str, Any]:
    """Skipped and wrong answers by risk on disjoint sets of scenes, and how well the predictor and single features tell right
    from wrong. The control takes the prior's own answers, by a threshold from the scenes of even numbers on the others."""
    with load_pair(options.pair, "one", fit=False) as pair, torch.inference_mode():
        target = pair.method(SKIP).target
        assert isinstance(target, SubstitutedTarget)
        splits, predictor = [], target.calibrated.predictor
        for split in range(SPLITS):
            rows = list(looked_at(pair, target, options.seed + 1000 * split, options.scenes))
            features, right = np.array([row.features for row in rows]), np.array([row.right for row in rows])
            sure = predictor.probabilities(features)
            limits = {f"risk {risk:g}": target.calibrated.threshold(risk) for risk in RISKS}
            limits |= {f"threshold {limit:g}": limit for limit in FIXED}
            told = {name: taken(sure, right, limit) for name, limit in limits.items()}
            scene, blind = np.array([row.scene for row in rows]), np.exp([row.blind for row in rows])
            guessed, even = np.array([row.blind_right for row in rows]), scene % 2 == 0
            for risk in (risk for risk in RISKS if needed(risk) <= len(set(scene[even]))):
                limit = threshold(blind[even], ~guessed[even], scene[even], risk)
                told[f"prior, risk {risk:g}"] = taken(blind[~even], guessed[~even], limit)
            by_feature = {name: auc(features[:, place], right) for place, name in enumerate(FEATURES)}
            scores = {"auc": {"predictor": auc(sure, right), **by_feature}, "reliability": reliability(sure, right)}
            shares = {"right": float(right.mean()), "prior_right": float(guessed.mean()), "scenes": len(set(scene))}
            curves = {"predictor": swept(sure, right), "prior": swept(blind, guessed)}
            splits.append({"n": len(rows), **shares, "at": told, **scores, "curves": curves})
            print(f"{split + 1} of {SPLITS} sets of scenes", file=sys.stderr, flush=True)
        calibrated_on = len(set(target.calibrated.recordings.tolist()))
        return {"splits": splits, "calibrated_on": calibrated_on, "environment": environment(pair, ["real"])}


def swept(sure: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> list[list[float]]:
    """[skipped, wrong] for thresholds that take ever more."""
    limits = np.unique(np.quantile(sure, np.linspace(0, 1, CURVE)))[::-1]
    found = [taken(sure, right, limit) for limit in limits]
    return [[one["skipped"], one["wrong"]] for one in found]


def taken(sure: np.ndarray[Any, Any], right: np.ndarray[Any, Any], limit: float) -> dict[str, float]:
    """Of all answers, the share that is taken from a probability on, and the share that is taken and wrong."""
    used = sure >= limit
    return {"skipped": float(used.mean()), "wrong": float((used & ~right).mean()), "n": len(used)}


def training(options: argparse.Namespace) -> dict[str, Any]:
    """What the calibration of trainings said, phase by phase; trainings of one kind are told as one."""
    found = dict[tuple[str, bool], dict[str, Any]]()
    for run in options.runs:
        about = fields.read_json(run / "run.json")
        lines = [json.loads(line) for line in (run / "calibration.jsonl").read_text().splitlines()]
        path = next(path for path in (run / "pair" / FIGURES, run / FIGURES) if path.exists())
        known = json.loads(path.read_text())["calibration"]
        sizes = {name: known[name]["parameters"] for name in lines[-1]["adapters"]}
        kind = {name: about[name] for name in ("output", "free_running")}
        curves = {phase: curve(run / f"{phase}.jsonl") for phase in about["phases"]}
        own = {**kind, "phases": lines, "parameters": sizes, "curves": [curves]}
        known = found.setdefault((about["output"], about["free_running"]), own)
        if known is not own:
            joined(known, own)
    return {"runs": list(found.values())}


def joined(known: dict[str, Any], other: dict[str, Any]) -> None:
    """Another training of the same kind, told with the one that is known: further adapters."""
    for line, more in zip(known["phases"], other["phases"], strict=True):
        assert line["phase"] == more["phase"]
        line["adapters"] |= more["adapters"]
        line["gaps"] |= more["gaps"]
    known["parameters"] |= other["parameters"]
    known["curves"] += other["curves"]


def low_rank(options: argparse.Namespace) -> dict[str, Any]:
    """What low-rank updates of an event drafter learned, and what a pair's own drafter says of the same clips."""
    runs = [fields.read_json(run / "pair" / lora.FOLDER / lora.FIGURES) for run in options.runs]
    folder = folder_of(options.pair)
    target, drafter = load_video_llava(folder / "target"), load_eventgpt(folder / "drafter")
    clips, wanted = answered(folder, options.runs[0], "calibration", lora.PRESETS["cpu"].held_out, lambda *_: None, 1)
    frozen, size = FrozenTarget(target, Questions(Tokenizer.from_file(str(folder / "tokenizer.json")))), parameters(drafter)
    found = lora.LowRankTraining(frozen, drafter, 1, clips, wanted, lora.PRESETS["cpu"].packed).agreement(clips, wanted)
    return {"runs": runs, "whole": {"calibration": found, "parameters": size}}


def parameters(model: torch.nn.Module) -> int:
    """How many there are."""
    return sum(parameter.numel() for parameter in model.parameters())


def curve(path: Path) -> list[dict[str, float]]:
    """What a stage noted in training, at `CURVE` places at most."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kept = np.unique(np.linspace(0, len(lines) - 1, CURVE).astype(int)) if lines else ()
    return [lines[place] for place in kept]


def main() -> None:
    """Measure one part and write it beside the others."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = options.add_subparsers(dest="mode", required=True)
    for mode, own in (("table", table), ("risk", risk)):
        made = modes.add_parser(mode)
        made.add_argument("--pair", default="embedded")
        made.add_argument("--scenes", type=int, default=100)
        made.add_argument("--limit", type=int, default=200)
        made.add_argument("--seed", type=int, default=8100)
        made.add_argument("--rows", type=Path, help="a folder for scenes and rows of the table, to go on with later")
        made.set_defaults(run=own)
    trained = modes.add_parser("training")
    trained.add_argument("runs", nargs="+", type=Path)
    trained.set_defaults(run=training)
    updated = modes.add_parser("low-rank")
    updated.add_argument("runs", nargs="+", type=Path)
    updated.add_argument("--pair", default="embedded", help="whose drafter was distilled whole")
    updated.set_defaults(run=low_rank)
    given = options.parse_args()
    told = given.run(given)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_text(RESULTS, json.dumps({**before, given.mode: told}, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
