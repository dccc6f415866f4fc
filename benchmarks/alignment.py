r"""Adapters from events to the target, compared: what their drafts are worth beside controls, what skipping the encoder risks,
and how feature gaps and acceptance go together in training. Every mode prints JSON and writes its part of the results:

python benchmarks/alignment.py table --pair adapters/pair --scenes 100 --limit 200  # on a quiet machine
python benchmarks/alignment.py risk  --pair adapters/pair --scenes 100              # three disjoint sets of scenes; counts only
python benchmarks/alignment.py training RUN [RUN ...]                               # folders of `eventspec train adapter`
python benchmarks/alignment.py losses RUN [RUN ...]                                 # the same, each with `--loss`
python benchmarks/alignment.py nulls RUN --pair adapters/pair                       # gaps to another recording's rows
python benchmarks/alignment.py low-rank RUN [RUN ...] --pair distilled/pair         # of `eventspec train lora`

They go into benchmarks/results/alignment.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eventspec.align.acceptance import Predictor, auc, reliability, threshold
from eventspec.align.substitute import FEATURES, LONGEST, SubstitutedTarget
from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Sampling
from eventspec.drafters import TextPrior
from eventspec.experiments.arms import Arm
from eventspec.experiments.compare import compare, environment
from eventspec.experiments.figures import Row
from eventspec.experiments.rows import RowFile
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import Pair, load_pair, warm_up
from eventspec.pairs.adapters import load_adapter
from eventspec.pairs.methods import HYBRID, SKIP, drafting_by
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.recordings.qa import read_questions
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording, write_scenes
from eventspec.train import lora
from eventspec.train.adapters import FIGURES, PRESETS, even
from eventspec.train.adapting import FeatureTraining, RowTraining
from eventspec.train.answered import answered
from eventspec.train.data import Questions
from eventspec.train.frozen import FrozenTarget

RESULTS = Path(__file__).parent / "results/alignment.json"
METHODS = ["autoregressive", "prior", "ngram", "cross-modal", "aligned", "event-eagle", "hybrid"]
KINDS = ["real", "shuffled", "blank", "scattered"]
CONTROLLED = {"real": "", "shuffled": ", shuffled events"}
"""Events of adapters that are not the usual ones."""
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
PREDICTORS = {"all features": FEATURES, "text alone": ("length", "blind")}
"""Fitted anew, on half of the scenes each: what is known of an answer without any event, and all."""
FIXED = (0.8, 0.85, 0.9)
"""Thresholds of the early notes, on the predictor's probability."""
SPLITS = 3
CURVE = 21
Interval = list[float | None]
"""A value and the ends of its 95 % interval, None where there are too few recordings."""


def table(options: argparse.Namespace) -> dict[str, Any]:
    """Every adapter with its own events and with another clip's, the methods and all controls, interleaved."""
    pair = warm_up(load_pair(options.pair, "two", fit=False))
    adapters, prior = pair.parts.adapters, pair.parts.prior
    assert adapters is not None
    assert prior is not None
    with nullcontext(options.rows) if options.rows else tempfile.TemporaryDirectory() as folder:
        street, rows = Path(folder, "street"), Path(folder, "rows.jsonl")
        if not (street / "qa.jsonl").exists():
            write_scenes(street, options.scenes, "test", options.seed)
        usual = {adapters.usual("rows"), adapters.usual("features")}
        arms = list[Arm]()
        for name in adapters.folders:
            own, method = pair.with_adapter(name), drafting_by(pair.parts, name)
            if name not in usual:
                arms += [Arm(f"{method}, {name}{of}", method, own, kind) for kind, of in CONTROLLED.items()]
            else:
                arms.append(Arm(f"{HYBRID}, {name}", HYBRID, pair.with_adapter(name, HYBRID)))
        arms += [Arm(f"{SKIP}, risk {risk:g}", SKIP, pair.with_risk(risk)) for risk in RISKS]
        asked, sampling = read_questions(street / "qa.jsonl", options.limit), Sampling()
        methods = [name for name in METHODS if name in pair.methods]
        how = {"others": arms, "resume": rows.exists(), "look": False}
        told = compare(pair, asked, methods, sampling, KINDS, rows, progress, **how)
        found = read_rows(rows)
        names = {method: adapters.usual(output) for method, output in (("aligned", "rows"), ("event-eagle", "features"))}
        return {**told, "adapters": names, "ahead": ahead(found, prior), "skipped": skipped(found)}


def read_rows(path: Path) -> dict[str, dict[str, Row]]:
    """Rows by arm and question."""
    found = dict[str, dict[str, Row]]()
    for (arm, question), row in RowFile(path, resume=True).rows.items():
        found.setdefault(arm, {})[question] = row
    return found


def ahead(rows: dict[str, dict[str, Row]], prior: TextPrior) -> dict[str, dict[str, Any]]:
    """Of the answers' tokens that the prior's first choice gets wrong, the share that an arm's head start had accepted, and how
    much more that is than with a control's events and than the prior's own tree, each with its interval over recordings.

    Those among the first tokens of an answer that were verified in the prefill count, in the rows as they were timed."""
    blind = {
        at: np.array([wrong_blind(prior, row["question"], row["token_ids"], i) for i in range(len(row["token_ids"]))])
        for at, row in rows["autoregressive"].items()
    }
    among, taken = {at: float(wrong.sum()) for at, wrong in blind.items()}, dict[str, dict[str, float]]()
    for name, own in rows.items():
        if all(row["lossless"] for row in own.values()):
            heads = {at: row["speculation"]["head_start_accepted"] or 0 for at, row in own.items()}
            taken[name] = {at: float(blind[at][: heads[at]].sum()) for at in own}
    recordings = [rows["autoregressive"][at]["recording"] for at in among]

    def share(values: Sequence[float]) -> Interval:
        below = list(among.values())
        return [ratio_of_sums(values, below), *(ratio_interval(values, below, recordings) or (None, None))]

    found = dict[str, dict[str, Any]]()
    for name, own in taken.items():
        controls = [f"{name}, {kind} events" for kind in KINDS[1:]]
        others = [other for other in (*controls, "prior") if other in taken and other != name]
        found[name] = {"share": share([own[at] for at in among])}
        # The same answers, so the same tokens: the difference is a ratio of sums too.
        found[name]["more"] = {other: share([own[at] - taken[other][at] for at in among]) for other in others}
    return {"tokens": int(sum(among.values())), "arms": found}


def wrong_blind(prior: TextPrior, question: str, tokens: list[int], place: int) -> bool:
    """Whether the prior's first choice behind the answer's own tokens is another than the answer's next one."""
    known = prior.following(question, tokens[:place], 1)
    return not known or known[0][0] != tokens[place]


def skipped(rows: dict[str, dict[str, Row]]) -> dict[str, dict[str, float]]:
    """Of every arm that may answer from events alone, the share of answers that came from there, and of those that are not the
    target's."""
    base, found = rows["autoregressive"], dict[str, dict[str, float]]()
    for name, own in rows.items():
        if name.startswith(SKIP):
            wrong = [row["token_ids"] != base[at]["token_ids"] for at, row in own.items()]
            taken = [bool(row["skipped"]) for row in own.values()]
            found[name] = {"skipped": float(np.mean(taken)), "wrong": float(np.mean(wrong)), "n": float(len(own))}
    return found


def progress(done: int, total: int) -> None:
    if done % 20 == 0:
        print(f"{done} of {total}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Looked:
    """An answer from events alone about a rendered scene, and the prior's own: what is known of the first (None: it is not to
    be judged), the log-probability of the second, and whether each is the target's."""

    scene: int
    kind: str
    features: tuple[float, ...] | None
    right: bool
    blind: float
    blind_right: bool


def looked_at(pair: Pair, target: SubstitutedTarget | None, split: str, seed: int, scenes: Sequence[int]) -> Iterator[Looked]:
    """Every question about rendered scenes; without a target the prior's answers alone."""
    prior = pair.parts.prior
    assert prior is not None
    for index in scenes:
        clip = make_clip(split_seed(split, seed, index))
        recording = as_recording(clip, f"scene {index}")
        media = media_of(recording)
        for qa in questions(clip.facts, index):
            drafted = None if target is None else target.substitute.answer(media, qa.question)
            wanted = generate(pair, recording, qa.question, "prior", max_new_tokens=LONGEST).token_ids
            guess = prior.sure_of(qa.question, [], LONGEST, 0.0)
            guess = guess[: guess.index(pair.eos_id) + 1] if pair.eos_id in guess else guess
            known = prior.log_probability(qa.question, guess), guess == wanted
            features, tokens = (None, None) if drafted is None else (drafted.features, drafted.token_ids)
            yield Looked(index, qa.kind, features, features is not None and tokens == wanted, *known)


def risk(options: argparse.Namespace) -> dict[str, Any]:
    """Skipped and wrong answers by risk on disjoint sets of scenes, and how well the predictor and its controls tell right from
    wrong. The control takes the prior's own answers, by thresholds from the same calibration recordings."""
    with load_pair(options.pair, "one", fit=False) as pair, torch.inference_mode():
        target = pair.method(SKIP).target
        assert isinstance(target, SubstitutedTarget)
        known = sorted(set(target.calibrated.recordings.tolist()))
        blind = list(looked_at(pair, None, "calibration", 0, known))
        scores, bad = np.exp([row.blind for row in blind]), np.array([not row.blind_right for row in blind])
        limits = {risk: threshold(scores, bad, [row.scene for row in blind], risk) for risk in RISKS}
        splits = []
        for split in range(SPLITS):
            rows = list(looked_at(pair, target, "test", options.seed + 1000 * split, range(options.scenes)))
            splits.append(judged(rows, target, limits))
            print(f"{split + 1} of {SPLITS} sets of scenes", file=sys.stderr, flush=True)
        return {"splits": splits, "calibrated_on": len(known), "environment": environment(pair, ["real"])}


def judged(rows: list[Looked], target: SubstitutedTarget, limits: dict[float, float]) -> dict[str, Any]:
    """What thresholds take of a set of scenes, and what tells right answers from wrong ones there; limits are the prior's."""
    kept = [row for row in rows if row.features is not None]
    features, right = np.array([row.features for row in kept]), np.array([row.right for row in kept])
    sure = np.full(len(rows), -1.0)  # what is not to be judged is never taken
    sure[[row.features is not None for row in rows]] = target.calibrated.predictor.probabilities(features)
    good, blind, guessed = (np.array(v) for v in zip(*((r.right, np.exp(r.blind), r.blind_right) for r in rows), strict=True))
    told = {f"risk {risk:g}": taken(sure, good, target.calibrated.threshold(risk)) for risk in RISKS}
    told |= {f"threshold {limit:g}": taken(sure, good, limit) for limit in FIXED}
    told |= {f"prior, risk {risk:g}": taken(blind, guessed, limit) for risk, limit in limits.items()}
    kinds = np.array([row.kind for row in kept])
    told_apart = {"predictor": apart(sure[sure >= 0], right, kinds)}
    for name, columns in PREDICTORS.items():
        used = [FEATURES.index(column) for column in columns]
        told_apart[name] = apart(crossfit(features[:, used], right, [row.scene for row in kept]), right, kinds)
    told_apart |= {name: apart(features[:, place], right, kinds) for place, name in enumerate(FEATURES)}
    shares = {"right": float(good.mean()), "prior_right": float(guessed.mean()), "scenes": len({row.scene for row in rows})}
    curves = {"predictor": swept(sure, good), "prior": swept(blind, guessed)}
    known = {"reliability": reliability(sure[sure >= 0], right), "curves": curves}
    return {"n": len(rows), **shares, "at": told, "auc": told_apart, **known}


def crossfit(features: np.ndarray[Any, Any], right: np.ndarray[Any, Any], scenes: Sequence[int]) -> np.ndarray[Any, Any]:
    """Probabilities of predictors of some features, each half of the scenes judged by one that was fitted on the other."""
    even, said = np.array(scenes) % 2 == 0, np.zeros(len(right))
    names = [str(place) for place in range(features.shape[1])]
    for half in (even, ~even):
        said[half] = Predictor.fit(names, features[~half], right[~half]).probabilities(features[half])
    return said


def apart(scores: np.ndarray[Any, Any], right: np.ndarray[Any, Any], kinds: np.ndarray[Any, Any]) -> list[float]:
    """[AUC over all answers, mean AUC within a kind of question]: which kind it is tells much by itself. A score that is higher
    where answers are wrong counts as the other way round."""
    whole = auc(scores, right)
    scores = scores if whole >= 0.5 else -scores
    both = [kind for kind in np.unique(kinds) if 0 < right[kinds == kind].mean() < 1]
    within = [auc(scores[kinds == kind], right[kinds == kind]) for kind in both]
    weights = [int((kinds == kind).sum()) for kind in both]
    return [max(whole, 1 - whole), float(np.average(within, weights=weights)) if both else 0.5]


def swept(sure: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> list[list[float]]:
    """[skipped, wrong] for thresholds that take ever more, from none on."""
    limits = np.unique(np.quantile(sure[sure >= 0], np.linspace(0, 1, CURVE)))[::-1]
    found = [taken(sure, right, limit) for limit in limits]
    return [[0.0, 0.0], *([one["skipped"], one["wrong"]] for one in found)]


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
        if (told := run / "free-running.json").exists():
            own["free"] = json.loads(told.read_text())
        known = found.setdefault((about["output"], about["free_running"]), own)
        if known is not own:
            joined(known, own)
    return {"runs": list(found.values())}


def losses(options: argparse.Namespace) -> dict[str, Any]:
    """The same adapter, taught by each loss of phase alignment alone and by all, and then by the same cross-entropy."""
    found = dict[str, Any]()
    for run in options.runs:
        name = " ".join(fields.read_json(run / "run.json").get("losses", ["all"]))
        lines = [json.loads(line) for line in (run / "calibration.jsonl").read_text().splitlines()]
        found[name] = [{"phase": line["phase"], **{part: one(line[part]) for part in ("adapters", "gaps")}} for line in lines]
    return found


def one(values: dict[str, Any]) -> Any:
    """The only value of a table."""
    (value,) = values.values()
    return value


def nulls(options: argparse.Namespace) -> dict[str, Any]:
    """Gaps of trained adapters to what is wanted of another recording at the same places."""
    folder, found = folder_of(options.pair), dict[str, Any]()
    target, drafter = load_video_llava(folder / "target"), load_eventgpt(folder / "drafter")
    clips, wanted = answered(folder, options.runs[0], "calibration", PRESETS["cpu"].held_out, lambda *_: None, 1)
    frozen = FrozenTarget(target, Questions(Tokenizer.from_file(str(folder / "tokenizer.json"))))
    adapters = {name: load_adapter(folder / where, drafter, target) for name, where in PairFile.read(folder).adapters.items()}
    for output, made in (("rows", RowTraining), ("features", FeatureTraining)):
        own = {name: adapter for name, adapter in adapters.items() if adapter.config.output == output}
        training = made(frozen, drafter, own, clips, wanted, PRESETS["cpu"].packed)
        found |= {name: {"own": gaps} for name, gaps in training.gaps(clips, even(wanted)).items()}
        for name, gaps in training.gaps(clips, even(wanted), apart=1).items():
            found[name]["another"] = gaps
    return found


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
    apart = modes.add_parser("losses")
    apart.add_argument("runs", nargs="+", type=Path)
    apart.set_defaults(run=losses)
    null = modes.add_parser("nulls")
    null.add_argument("runs", nargs=1, type=Path)
    null.add_argument("--pair", default="embedded")
    null.set_defaults(run=nulls)
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
