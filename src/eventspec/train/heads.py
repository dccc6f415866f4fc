"""The recipe of the heads that draft on a target's features: a bundled pair's target answers training clips, all heads learn
from its running pass, and their acceptance on calibration clips is reported while they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from eventspec.drafters import TrainedHead, load_head, save_head
from eventspec.drafters.heads import RECIPES, Head, Recipe, TargetSizes, family_of
from eventspec.drafters.heads.trees import Rates
from eventspec.errors import check_known
from eventspec.files import read_json, write_text
from eventspec.models.video_llava import load_video_llava
from eventspec.models.weights import fingerprint
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.train.answers import Preset, TrainingPreset, answered, preset_of, presets_of
from eventspec.train.data import WORKERS, Index, Questions, shuffled
from eventspec.train.distillation import BatchSource, HeadTraining
from eventspec.train.frozen import FrozenTarget, StreetBatches
from eventspec.train.gating import BATCHES, fit_gates
from eventspec.train.loop import Calibration, Report, Stage, changed_pair, last_row, note_run, rounded, run_stage
from eventspec.train.models import initialise
from eventspec.train.processes import ALONE, Processes

SNAPSHOTS = (0.25, 0.5)
GATES = "gates.json"
PRESETS = presets_of(
    {
        "cpu": TrainingPreset(3000, 64, Stage("heads", 3600, 1e-3, 8), 12),
        "cpu-tune": TrainingPreset(2400, 64, Stage("heads", 1800, 1e-3, 8), 6),
        "gpu": TrainingPreset(20000, 64, Stage("heads", 480, 1e-3, 64), 12),
        "gpu-tune": TrainingPreset(3000, 64, Stage("heads", 300, 1e-3, 16), 12),
        "smoke": TrainingPreset(4, 2, Stage("heads", 0, 1e-3, 2, steps=4), 2),
    }
)
NAMES = ("eagle", "eagle1", "eagle3", "specvlm")
"""The heads that are trained unless others are named."""


def checked(names: Iterable[str]) -> dict[str, Recipe]:
    """Recipes by name; BadInput for an unknown one."""
    check_known("head", names, RECIPES)
    return {name: RECIPES[name] for name in names}


def earlier_head(name: str) -> str:
    """The head of a pair whose weights one of that name may begin with."""
    return RECIPES[name].begins_with or name


def train(
    pair: str,
    size: Preset,
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
    preset, folder = preset_of(PRESETS, size), folder_of(pair)
    earlier = {} if begin_with is None else earlier_heads(names, folder_of(begin_with))  # damaged ones are refused first
    target = load_video_llava(folder / "target")
    with processes.first_ahead():
        note_run(out, {"target": fingerprint(target.language), "preset": preset.name, "heads": names})
        clips, answers = answered(folder, out, "train", preset.answered, report, workers)
        judged = answered(folder, out, "calibration", preset.held_out, report, workers)
    used = {token for known in answers.values() for branch in known for token in branch.answer}
    sizes = TargetSizes(target.config.language, tuple(sorted(used)), target.config.vision.tokens)
    heads = new_heads(names, sizes, earlier)
    torch.manual_seed(1 + processes.rank)  # every process draws its own noise, and its own questions
    target.to(processes.device)
    frozen = FrozenTarget(target, Questions.of_pair(folder).prefix())
    source, calibration = StreetBatches(frozen, clips, answers, preset.packed), StreetBatches(frozen, *judged, packed=8)
    batches = shuffled(sorted(answers), preset.stage.batch, 400, clips.folder, processes)
    rates = learn(preset.stage, heads, source, batches, (calibration, sorted(judged[1])), out, report, processes)
    return export(PairFile.read(folder), heads, rates, target.to("cpu").language, out) if processes.first else out / "pair"


def earlier_heads(names: Iterable[str], pair: Path) -> dict[str, Head]:
    """By the name of the head that begins with it, what the pair in this folder has; BadCheckpoint for a damaged one."""
    target, places = load_video_llava(pair / "target").language, {name: pair / "heads" / earlier_head(name) for name in names}
    return {name: load_head(place, target).head for name, place in places.items() if place.is_dir()}


def first_weights(pair: str, names: list[str]) -> list[str]:
    """A note for every head that begins with another head's weights, or finds none in the pair."""
    notes = []
    for name in names:
        earlier = folder_of(pair) / "heads" / earlier_head(name)
        if not earlier.is_dir():
            notes.append(f"pair {pair} has no head {earlier.name}: {name} has nothing to begin with but random weights")
        elif earlier.name != name:
            notes.append(f"{name} begins with the weights of the pair's head {earlier.name}")
    return notes


def new_heads(names: Iterable[str], sizes: TargetSizes, earlier: Mapping[str, Head] = MappingProxyType({})) -> dict[str, Head]:
    """Heads with their first weights; the weights that the `earlier` one of a name has in common with it are copied."""
    torch.manual_seed(0)
    heads = {name: recipe.make(sizes) for name, recipe in checked(names).items()}
    for name, head in heads.items():
        initialise(head)
        family_of(head).begin(head)
        if name in earlier:
            take_over(head, earlier[name])
    return heads


def learn(
    stage: Stage,
    heads: Mapping[str, Head],
    source: BatchSource,
    batches: Iterable[Index],
    judged: tuple[BatchSource, list[int]],
    out: Path,
    report: Report,
    processes: Processes = ALONE,
) -> dict[str, Rates]:
    """Train heads on `batches` of the source's numbers, and measure them on what is `judged`, while they learn and at the end
    (OUT/calibration.jsonl); how often their choices are right. Gates are fitted at the end, on batches that come after those of
    the training (OUT/gates.json). Of several processes the first one measures."""
    training = HeadTraining(source, heads, checked(heads), processes.rank).to(source.target.embed.weight.device)
    judge = HeadTraining(judged[0], heads, training.recipes, seed=1)

    def measured() -> dict[str, dict[str, float]]:
        training.eval()
        tau = judge.acceptance(judged[1], batch=8)
        training.train()
        return {"tau": rounded(tau)}

    calibration = Calibration(measured, out / "calibration.jsonl", every=100)
    run_stage(
        replace(stage, snapshots=SNAPSHOTS),
        training,
        batches,
        training.losses,
        out,
        calibration.noting(report),
        clipped=list(training.heads.values()),
        processes=processes,
    )
    if not processes.first:
        return {}
    gates = fit_gates(training, training.recipes, islice(batches, min(BATCHES, stage.steps or BATCHES)))
    if gates:
        write_text(out / GATES, json.dumps(gates) + "\n")
    calibration.note({"step": -1})
    training.eval()
    return judge.rates(judged[1], batch=8)


def take_over(head: Head, earlier: Head) -> None:
    """The weights that `earlier` has under the same name and shape."""
    own = head.state_dict()
    fit = {name: tensor for name, tensor in earlier.state_dict().items() if name in own and own[name].shape == tensor.shape}
    head.load_state_dict({**own, **fit})


def export(
    file: PairFile,
    heads: Mapping[str, Head],
    rates: Mapping[str, Rates],
    target: LanguageEnds,
    out: Path,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """The pair with the heads in it, and what is known `about` their training; heads it had under other names stay."""
    with changed_pair(file, out) as made:
        save_all(heads, rates, made.folder / "heads", target)
        listed = {**made.tables["heads"], **{name: f"heads/{name}" for name in heads}}
        made.with_table("heads", dict(sorted(listed.items()))).write()
        calibration, known = last_row(out / "calibration.jsonl"), made.folder / "heads.json"
        earlier = read_json(known)["calibration"]["tau"] if known.exists() else {}
        calibration["tau"] = {**earlier, **calibration["tau"]}
        gates = gates_of(out, read_json(known).get("gates") if known.exists() else None)
        found = {"calibration": calibration, **about, **gates, "torch": torch.__version__}
        write_text(known, json.dumps(found) + "\n")
    return out / "pair"


def gates_of(out: Path, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Entry `gates` of heads.json: what a run found of its gates, by head, beside those of `earlier` ones; {} without any."""
    found = {**(earlier or {}), **(read_json(out / GATES) if (out / GATES).exists() else {})}
    return {"gates": found} if found else {}


def save_all(heads: Mapping[str, Head], rates: Mapping[str, Rates], folder: Path, target: LanguageEnds) -> None:
    """Every head in a folder of its name, each of them whole or not at all."""
    for name, head in heads.items():
        part = folder / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        save_head(TrainedHead(head, rates[name]), part, target)
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)
