"""The recipe of the heads that draft on a target's features: a bundled pair's target answers training clips, all heads learn
from its running pass, and their acceptance on calibration clips is reported while they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer

from eventspec.core import BadInput
from eventspec.drafters import TrainedHead, load_head, save_head
from eventspec.drafters.heads import RECIPES, Head, Recipe, TargetSizes, family_of
from eventspec.drafters.heads.trees import Rates
from eventspec.files import write_text
from eventspec.models.fingerprint import fingerprint
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.train.answered import answered
from eventspec.train.data import WORKERS, Questions
from eventspec.train.distillation import BatchSource, HeadTraining
from eventspec.train.loop import Report, Stage, note_run, run_stage
from eventspec.train.models import Sampler, initialise
from eventspec.train.processes import ALONE, Processes
from eventspec.train.street import StreetBatches

CALIBRATION = 64
SNAPSHOTS = (0.25, 0.5)


@dataclass(frozen=True)
class Preset:
    """Clips that the target answers, the stage, questions packed behind a recording."""

    answered: int
    stage: Stage
    packed: int


PRESETS = {
    "cpu": Preset(3000, Stage("heads", 3600, 1e-3, 8), 12),
    "cpu-tune": Preset(2400, Stage("heads", 1800, 1e-3, 8), 6),
    "gpu": Preset(20000, Stage("heads", 480, 1e-3, 64), 12),
    "gpu-tune": Preset(3000, Stage("heads", 300, 1e-3, 16), 12),
    "smoke": Preset(4, Stage("heads", 2, 1e-3, 2), 2),
}
NAMES = ("eagle", "eagle1", "eagle3", "specvlm")
"""The heads that are trained unless others are named."""


def checked(names: Iterable[str]) -> dict[str, Recipe]:
    """Recipes by name; BadInput for an unknown one."""
    for name in names:
        if name not in RECIPES:
            raise BadInput(f"head '{name}' is unknown: choose one of {', '.join(RECIPES)}")
    return {name: RECIPES[name] for name in names}


def earlier_head(name: str) -> str:
    """The head of a pair whose weights one of that name may begin with."""
    return RECIPES[name].begins_with or name


def train(
    pair: str,
    preset_name: str,
    names: list[str],
    out: Path,
    report: Report,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    begin_with: str | None = None,
) -> Path:
    """Train heads for a pair's target and write OUT/pair: the pair with its heads. Picks up where a run was interrupted, with
    any number of processes; the first of them does alone what is not training. `begin_with`: a pair, this one or another of its
    size; the weights that its heads have in common with the new ones are where these begin."""
    preset, folder = PRESETS[preset_name], folder_of(pair)
    earlier = {} if begin_with is None else earlier_heads(names, folder_of(begin_with))  # damaged ones are told before the work
    target, tokenizer = load_video_llava(folder / "target"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    with processes.first_ahead():
        note_run(out, {"target": fingerprint(target.language), "preset": preset_name, "heads": names})
        clips, answers = answered(folder, out, "train", preset.answered, report, workers)
        judged = answered(folder, out, "calibration", min(preset.answered, CALIBRATION), report, workers)
    used = {token for known in answers.values() for branch in known for token in branch.answer}
    sizes = TargetSizes(target.config.language, tuple(sorted(used)), target.config.vision.tokens)
    heads = new_heads(names, sizes, earlier)
    torch.manual_seed(1 + processes.rank)  # every process draws its own noise, and its own questions
    target.to(processes.device)
    questions = Questions(tokenizer)
    source = StreetBatches(target, questions, clips, answers, preset.packed)
    calibration = StreetBatches(target, questions, *judged, packed=8)
    sampler = Sampler(clips, preset.stage.batch, 400, sorted(answers), processes)
    rates = learn(preset.stage, heads, source, sampler, (calibration, sorted(judged[1])), out, report, processes)
    return export(folder, heads, rates, target.to("cpu"), out) if processes.first else out / "pair"


def earlier_heads(names: Iterable[str], pair: Path) -> dict[str, Head]:
    """By the name of the head that begins with it, what the pair in this folder has; BadCheckpoint for a damaged one."""
    target, places = load_video_llava(pair / "target").language, {name: pair / "heads" / earlier_head(name) for name in names}
    return {name: load_head(place, target).head for name, place in places.items() if place.is_dir()}


def new_heads(names: Iterable[str], sizes: TargetSizes, earlier: Mapping[str, Head] = MappingProxyType({})) -> dict[str, Head]:
    """Heads with their first weights; what the `earlier` one of a name has in common with it is taken over."""
    torch.manual_seed(0)
    heads = {name: recipe.make(sizes) for name, recipe in checked(names).items()}
    for name, head in heads.items():
        initialise(head)
        family_of(head).training.begin(head)
        if name in earlier:
            take_over(head, earlier[name], RECIPES[name].fresh)
    return heads


def learn(
    stage: Stage,
    heads: Mapping[str, Head],
    source: BatchSource,
    batches: Iterable[object],
    judged: tuple[BatchSource, list[int]],
    out: Path,
    report: Report,
    processes: Processes = ALONE,
) -> dict[str, Rates]:
    """Train heads on `batches` of the source's numbers, and measure them on what is `judged`, while they learn and at the end
    (OUT/calibration.jsonl); how often their choices are right. Of several processes the first one measures."""
    training = HeadTraining(source, heads, checked(heads), processes.rank).to(source.target.embed.weight.device)
    judge = Calibration(training, *judged, out / "calibration.jsonl")
    run_stage(
        replace(stage, snapshots=SNAPSHOTS),
        training,
        batches,
        training.losses,
        out,
        judge.telling(report),
        clipped=list(training.heads.values()),
        processes=processes,
    )
    if not processes.first:
        return {}
    judge.measure({"step": -1})
    return judge.rates()


def take_over(head: Head, earlier: Head, fresh: tuple[str, ...] = ()) -> None:
    """The weights that `earlier` has under the same name and shape, but for names that begin with one of `fresh`."""
    own = head.state_dict()
    fit = {name: tensor for name, tensor in earlier.state_dict().items() if name in own and own[name].shape == tensor.shape}
    head.load_state_dict({**own, **{name: tensor for name, tensor in fit.items() if not name.startswith(fresh)}})


class Calibration:
    """Acceptance on recordings that no training saw: tokens a chain of drafts would gain per round, the bonus token
    included."""

    def __init__(self, training: HeadTraining, source: BatchSource, numbers: list[int], log: Path, every: int = 100) -> None:
        self.training, self.log, self.every = training, log, every
        self.own, self.numbers = HeadTraining(source, training.own, training.recipes, seed=1), numbers

    def telling(self, report: Report) -> Report:
        """`report`, with a measurement every so many steps."""

        def report_step(name: str, progress: float, figures: dict[str, float]) -> None:
            if figures.get("step", 1) % self.every == 0:
                self.measure({"step": figures["step"], "progress": round(progress, 4)})
            report(name, progress, figures)

        return report_step

    def rates(self) -> dict[str, Rates]:
        """How often each of every head's choices is right, by level."""
        self.training.eval()
        return self.own.rates(self.numbers, batch=8)

    @torch.no_grad()
    def measure(self, where: dict[str, Any]) -> dict[str, float]:
        """tau of every head; written to the log."""
        self.training.eval()
        found = self.own.acceptance(self.numbers, batch=8)
        self.training.train()
        with self.log.open("a") as file:
            file.write(json.dumps({**where, "tau": {name: round(tau, 4) for name, tau in found.items()}}) + "\n")
        return found


def export(folder: Path, heads: Mapping[str, Head], rates: Mapping[str, Rates], target: VideoLlava, out: Path) -> Path:
    """A copy of the pair with the heads in it; heads it had under other names stay."""
    part = out / ".pair.part"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part)
    save_all(heads, rates, part / "heads", target.language)
    listed = {path.name: f"heads/{path.name}" for path in sorted((part / "heads").iterdir())}
    PairFile.read(part).with_table("heads", listed).write()
    calibration = json.loads((out / "calibration.jsonl").read_text().splitlines()[-1])
    calibration["tau"] = {**_known(part / "heads.json"), **calibration["tau"]}
    write_text(part / "heads.json", json.dumps({"calibration": calibration, "torch": torch.__version__}) + "\n")
    shutil.rmtree(out / "pair", ignore_errors=True)
    part.rename(out / "pair")
    return out / "pair"


def save_all(heads: Mapping[str, Head], rates: Mapping[str, Rates], folder: Path, target: LanguageEnds) -> None:
    """Every head in a folder of its name, each of them whole or not at all."""
    for name, head in heads.items():
        part = folder / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        save_head(TrainedHead(head, rates[name]), part, target)
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)


def _known(path: Path) -> dict[str, float]:
    """tau of the heads that a pair had before."""
    known: dict[str, float] = json.loads(path.read_text())["calibration"]["tau"] if path.exists() else {}
    return known
