"""The recipe of adapters between a pair's event model and its target, which both stay as they are.

Three phases, each from where the one before ended. alignment: what is written is like the target's own, visual rows of the
same moments and places or features at the same tokens. acceptance: the target's own answers, by cross-entropy with what it said
on its own rows. end-to-end: the same, and the share of an answer that a chain drafted so would have accepted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.align.acceptance import Calibrated, Groups, Predictor, evidence_of
from eventspec.align.adapters import CONTROL, PROMPTED, Adapter, AdapterConfig, Output, Reads, width_to
from eventspec.align.deciding import FITTED, USUAL_RULE
from eventspec.align.substitute import Known
from eventspec.core import BadInput, Media, Trace
from eventspec.errors import several
from eventspec.files import parsed, read_json, write_text
from eventspec.models.eventgpt import EventGpt
from eventspec.models.weights import fingerprint
from eventspec.pairs import load_pair
from eventspec.pairs.methods import substitute_of
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.pairs.trained import digest_of, save_adapter
from eventspec.train.adapting import AdapterTraining, FeatureTraining, FreeRunning, RowTraining, TowerTraining, alike_share
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.data import WORKERS, Branch, PixelSource, shuffled
from eventspec.train.frozen import FrozenDrafter, FrozenTarget
from eventspec.train.loop import Calibration, Report, Stage, changed_pair, last_row, rounded, run_stage
from eventspec.train.material import Material, Models, Told, every_question, material_of
from eventspec.train.models import initialise
from eventspec.train.names import CALIBRATION, FURTHER_PHASES, Given, calibratable, check_phases
from eventspec.train.processes import ALONE, Processes
from eventspec.train.recorded import Recorded


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer from events about a recording, whose number is one for all windows of it: by the rules of `deciding.FITTED`
    their features, whether it is the target's; the question, and the recording's rate of events."""

    number: int
    features: Mapping[str, Sequence[float]]
    right: bool
    question: str = ""
    rate: float = 0.0


FIGURES = "adapters/adapters.json"
"""In a pair's folder: what its adapters reached on calibration clips."""
NONE_APART = "it learned from the only recording there is: no other one says how often it is right"
SHARES = {"alignment": 0.2, "acceptance": 0.5, "end-to-end": 0.3, "predictor": 0.2, "joint": 0.6}
"""Of a stage's seconds, by phase."""
TRAININGS: dict[Output, type[AdapterTraining]] = {"rows": RowTraining, "tower": TowerTraining, "features": FeatureTraining}
PRESETS = presets_of(
    {  # seconds for each adapter
        "cpu": TrainingPreset(1500, 400, Stage("adapters", 240, 1.5e-3, 8), 6),
        "gpu": TrainingPreset(20000, 400, Stage("adapters", 120, 1.5e-3, 64), 6),
        "smoke": TrainingPreset(4, 2, Stage("adapters", 0, 1e-3, 2, steps=4), 2),
    }
)


@dataclass(frozen=True)
class Wanted:
    """What is to be trained: adapters of some kinds to an output, in these phases (none: the usual ones). free_running: to
    features, of texts that the two models made on their own (`adapting.FreeRunning`), in phase alignment. losses: which of
    `adapting.LOSSES` count in phases alignment and joint, the usual ones for none. reads: as `AdapterConfig.of`."""

    kinds: Sequence[str]
    output: Output = "rows"
    phases: Sequence[str] = ()
    free_running: bool = False
    losses: Sequence[str] = ()
    reads: Reads = "last"

    def about(self, phases: Sequence[str]) -> dict[str, object]:
        """What a run notes, which may not change when it goes on; settings that were added later only where they are used."""
        further: dict[str, object] = {"losses": list(self.losses)} if self.losses else {}
        further |= {} if self.reads == "last" else {"reads": self.reads}
        what = {"adapters": list(self.kinds), "output": self.output, "phases": list(phases)}
        return {**what, "free_running": self.free_running, **further}


def train(
    pair: str,
    size: Preset,
    wanted: Wanted,
    out: Path,
    report: Report,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    given: Given | None = None,
) -> Path:
    """Train adapters for a pair, and write OUT/pair: the pair with them, the best first. Picks up where a run was interrupted,
    with any number of processes; the first of them does alone what is not training."""
    preset, output, free_running = preset_of(PRESETS, size), wanted.output, wanted.free_running
    again = (chosen := check_phases(wanted.phases, free_running)) == (CALIBRATION,)

    def begin(models: Models) -> dict[str, object]:
        between = {"target": fingerprint(models.target), "drafter": fingerprint(models.events)}
        return {**between, **wanted.about(chosen)}

    if again:  # nothing learns from what is answered
        preset = replace(preset, answered=1)
    material = material_of(pair, preset, out, report, given, workers, processes, begin)
    if again:
        return calibrate_again(pair, material, wanted.kinds, out, report)
    target, drafter, learned, judged = material.target, material.events, material.learned, material.judged
    torch.manual_seed(0)
    between = drafter.config, width_to(target.config, output), output, wanted.reads
    adapters = {name_of(kind, output): initialise(Adapter(AdapterConfig.of(kind, *between))) for kind in wanted.kinds}
    torch.manual_seed(1 + processes.rank)
    for model, device in zip((target, drafter), material.devices(processes), strict=True):
        model.to(device)
    frozen, events = FrozenTarget(target, material.before), FrozenDrafter(drafter, material.drafter_before)
    made = FreeRunning if free_running else TRAININGS[output]
    judging = not set(FURTHER_PHASES).isdisjoint(chosen)
    training = made(frozen, events, adapters, learned.source, learned.answers, preset.packed, wanted.losses, judging)
    judged_text = judged.answers
    if isinstance(training, FreeRunning):
        training.answers = training.pairs(learned.source, learned.answers)
        judged_text = training.pairs(judged.source, judged.answers)
    training.to(frozen.device)
    log = out / "calibration.jsonl"
    fitting = replace(preset, stage=material.fitting(preset.stage, processes))
    learn(training, fitting, chosen, (judged.source, even(judged_text, judged.recording)), log, report, processes)
    if not processes.first:
        return out / "pair"
    if isinstance(training, FreeRunning):
        write_figures(out / FIGURES, last_row(log), adapters, material.learned_from_judged)
        # Beside it, what they make of the target's own text: else two trainings would be judged by two tests.
        judge = FeatureTraining(frozen, events, adapters, learned.source, {}, preset.packed)
        theirs = judge.agreement(judged.source, even(judged.answers, judged.recording))
        same = alike_share(training.answers, judged_text)
        write_text(out / "free-running.json", json.dumps({"same_token": same, "on_the_target's_text": theirs}) + "\n")
        return out
    whole = export(material.file, adapters, (drafter, frozen), out, log, material.learned_from_judged)
    if output in PROMPTED:
        best = next(name for name in PairFile.read(whole).tables["adapters"] if name in adapters)
        calibrate(whole, best, material, report)
    return whole


def learn(
    training: AdapterTraining,
    preset: TrainingPreset,
    phases: Sequence[str],
    judged: tuple[PixelSource, dict[int, list[Branch]]],
    log: Path,
    report: Report,
    processes: Processes,
) -> None:
    """One phase after the other, in the folder of `log`, which gets a row before the first and after each: how far every
    adapter agrees with the target on what is `judged`, and how far apart they lie."""
    adapters, (clips, kept) = [adapter for _, adapter in training.each()], judged
    parts = [*adapters, *training.predictors.values()]

    def measured() -> dict[str, Any]:
        found = {"adapters": training.agreement(clips, kept), "gaps": training.gaps(clips, kept)}
        return {part: {adapter: rounded(own) for adapter, own in figures.items()} for part, figures in found.items()}

    calibration = Calibration(measured, log)
    noted = [parsed(line)["phase"] for line in log.read_text().splitlines()] if log.exists() else []
    for phase in ("", *phases):
        if phase:
            stage = replace(preset.stage, name=phase, seconds=preset.stage.seconds * SHARES[phase] * len(adapters))
            seed, losses = 600 + list(SHARES).index(phase), partial(training.losses, phase)
            batches = shuffled(sorted(training.answers), stage.batch, seed, training.clips.folder, processes)
            run_stage(stage, training, batches, losses, log.parent, report, clipped=parts, processes=processes)
        if processes.first and phase not in noted:
            calibration.note({"phase": phase})


def even(answers: Mapping[int, list[Branch]], recording: Callable[[int], int] = int) -> dict[int, list[Branch]]:
    """Those about recordings of even numbers, as `Told.recording` has them: they decide which adapter is best, the others
    calibrate when to trust it."""
    return {number: known for number, known in answers.items() if recording(number) % 2 == 0}


def name_of(kind: str, output: Output) -> str:
    """What a pair calls an adapter."""
    return kind if output == "rows" else f"{output}-{kind}"


def export(
    file: PairFile,
    adapters: Mapping[str, Adapter],
    models: tuple[EventGpt, FrozenTarget],
    out: Path,
    log: Path,
    learned_from_judged: bool = False,
) -> Path:
    """The pair with the adapters in it, in the place of those of the same names; the one whose drafts are accepted longest
    stands first, the control last. Their figures say whether they learned from what they were judged on."""
    drafter, target = models[0].to("cpu"), models[1].model.to("cpu").eval()
    with changed_pair(file, out) as made:
        figures = write_figures(made.folder / FIGURES, last_row(log), adapters, learned_from_judged)
        for kind, adapter in adapters.items():
            shutil.rmtree(made.folder / "adapters" / kind, ignore_errors=True)
            save_adapter(adapter.cpu(), made.folder / "adapters" / kind, drafter, target)
        there = {**made.tables["adapters"], **{kind: f"adapters/{kind}" for kind in adapters}}
        best = sorted(sorted(there), key=lambda name: (name.endswith(CONTROL), -figures.get(name, {}).get("leading", 0.0)))
        made.with_table("adapters", {kind: there[kind] for kind in best}).write()
    return out / "pair"


def write_figures(
    path: Path, last: Mapping[str, Any], adapters: Mapping[str, Adapter], learned_from_judged: bool
) -> dict[str, dict[str, float]]:
    """Figures of adapters by name after a phase and how many parameters each has, beside those of other adapters."""
    before = read_json(path)["calibration"] if path.exists() else {}
    sizes = {name: sum(parameter.numel() for parameter in adapter.parameters()) for name, adapter in adapters.items()}
    whose = {"learned_from_judged": True} if learned_from_judged else {}
    own = {name: {**found, "parameters": sizes[name], **whose} for name, found in last["adapters"].items()}
    figures: dict[str, dict[str, float]] = {**before, **own}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"calibration": figures, "phase": last["phase"], "torch": torch.__version__}) + "\n")
    return figures


def calibrate_again(pair: str, material: Material, kinds: Sequence[str], out: Path, report: Report) -> Path:
    """Write OUT/pair: the pair, its adapters to rows of these names calibrated as after a training. BadInput for others, and
    where they learned from what is kept to calibrate."""
    kinds = calibratable(material.file, kinds)
    # The file as it was: `material` has noted what a training would have learned from.
    file = replace(material.file, learned=PairFile.read(folder_of(pair)).learned)
    material = replace(material, models=replace(material.models, file=file))
    if isinstance(material.judged.source, Recorded) and not material.learned_from_judged:
        kept = dict.fromkeys(str(question.resolved.resolve()) for question in material.judged.source.asked)
        known = [place for place in kept if "adapters" in material.file.learned.get(place, "").split(", ")]
        if known:
            learned = f"adapters of this pair learned from {several(len(known), 'of the recordings', 'of the recordings')}"
            raise BadInput(f"{learned} that are kept to calibrate, such as {known[0]}: give --questions about others")
    with changed_pair(material.file, out) as made:
        for kind in kinds:  # they may lie elsewhere
            place = made.folder / "adapters" / kind
            if not place.exists():
                shutil.copytree(material.file.places("adapters")[kind], place)
        if not (made.folder / FIGURES).exists():
            write_text(made.folder / FIGURES, json.dumps({"calibration": {}}) + "\n")
        made.with_table("adapters", {**made.tables["adapters"], **{kind: f"adapters/{kind}" for kind in kinds}}).write()
    for kind in kinds:
        calibrate(out / "pair", kind, material, report)
    return out / "pair"


def calibrate(pair: Path, name: str, material: Material, report: Report) -> None:
    """Compare what an adapter answers from events alone with the target's own answers: the predictors of method skip-encode
    learn from one half of the recordings, their thresholds come from the other. Where there are too few the figures say so, and
    where all were learned from: an adapter that knows answers by heart says nothing of another recording."""
    learned, folder = material.learned_from_judged, PairFile.read(pair).places("adapters")[name]
    rows = [] if learned else list(_from_events(pair, name, material.judged, report))
    width, kinds = material.target.config.language.hidden_size, material.judged.kinds
    found = {rule: save_calibrated(rows, folder, rule, width, kinds) for rule in FITTED}
    why = found[USUAL_RULE]
    if why is None and isinstance(material.judged.source, Recorded):
        calibrated = (question.resolved for question in material.judged.source.asked)
        PairFile.read(pair).having_learned("skip-encode", calibrated).write()
    if why is not None:
        figures = read_json(pair / FIGURES)
        figures["calibration"].setdefault(name, {})["not_calibrated"] = NONE_APART if learned else why
        write_text(pair / FIGURES, json.dumps(figures) + "\n")


def _from_events(pair: Path, name: str, judged: Told, report: Report) -> Iterator[JudgedAnswer]:
    substitute, total = substitute_of(load_pair(pair, "one", fit=False).parts, name), sum(map(len, judged.answers.values()))
    media: Media | None = None
    for place, (number, seen, question, branch) in enumerate(every_question(judged), 1):
        with torch.inference_mode():
            if seen is not media:  # all questions about a recording come together
                media, read = seen, substitute.aligned.encode(seen, Trace())
            known = Known.of(substitute, seen, question, read, read)
            features = {rule: own for rule, fitted in FITTED.items() if (own := fitted.read(known)) is not None}
        if known.features is not None:  # others are never taken
            right = known.tokens == branch.answer
            yield JudgedAnswer(judged.recording(number), features, right, question, known.rate)
        report("calibrate", place / total, {})


def save_calibrated(
    rows: Sequence[JudgedAnswer],
    folder: Path,
    rule: str = USUAL_RULE,
    width: int = 1,
    kinds: Mapping[str, str] | None = None,
) -> str | None:
    """Fit a rule of `deciding.FITTED`, for a target of this width, on the recordings of even numbers, and keep what that
    predicts for the others, and which of those are alike by the `kinds` of questions. Where there are too few, what is lacking;
    what is kept then never trusts an answer."""
    learned, judged = ([row for row in rows if row.number % 2 == half] for half in (0, 1))
    fitted, of = FITTED[rule], {"adapter": digest_of(folder)}
    names, strength, path = fitted.names(width), fitted.strength, folder / fitted.file
    features, right = [row.features[rule] for row in learned], [row.right for row in learned]
    try:
        if not judged:
            raise BadInput("no answer from events came to an end about the recordings that are kept to calibrate on")
        predictor = Predictor.fit(names, features, right, strength)
    except BadInput as error:
        Calibrated.of_nothing(names, of).save(path)
        return str(error)
    evidence = evidence_of(names, features, right, [row.number for row in learned], strength)
    probabilities = predictor.probabilities([row.features[rule] for row in judged])
    wrong, recordings = np.array([not row.right for row in judged]), np.array([row.number for row in judged])
    groups = Groups.of(kinds or {}, [row.question for row in judged], [row.rate for row in judged])
    Calibrated(predictor, probabilities, wrong, recordings, evidence, of, groups).save(path)
    return None
