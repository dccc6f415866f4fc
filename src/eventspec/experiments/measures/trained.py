"""What trainings of adapters and of low-rank updates noted, read from their folders, for alignment.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eventspec.core import BadInput
from eventspec.experiments.measures.setup import Finding, Found, Setup
from eventspec.files import parsed
from eventspec.models.configuration import read_json
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.pairs.trained import load_adapter
from eventspec.train import lora
from eventspec.train.adapters import FIGURES, PRESETS
from eventspec.train.adapting import FeatureTraining, RowTraining
from eventspec.train.answers import answered
from eventspec.train.data import Questions
from eventspec.train.frozen import FrozenDrafter, FrozenTarget


def training(setup: Setup) -> Iterator[Finding]:
    """What the calibration of trainings said, phase by phase; trainings of one kind are joined."""
    found = dict[tuple[str, bool], Found]()
    for run in setup.folders:
        about, lines = read_json(run / "run.json"), _lines(run / "calibration.jsonl")
        path = run / "pair" / FIGURES
        known = read_json(path if path.exists() else run / FIGURES)["calibration"]
        own: Found = {name: about[name] for name in ("output", "free_running")} | {"phases": lines}
        own["parameters"] = {name: known[name]["parameters"] for name in lines[-1]["adapters"]}
        if (free := run / "free-running.json").exists():
            own["free"] = read_json(free)
        first = found.setdefault((about["output"], about["free_running"]), own)
        if first is not own:
            _join(first, own)
    yield ("training",), {"runs": list(found.values())}


def losses(setup: Setup) -> Iterator[Finding]:
    """The same adapter, taught by each loss of phase alignment alone and by several, and then by the same cross-entropy; or in
    other phases. The folders are one run; what is known of earlier ones stays apart: machines differ in what they learn in a
    time."""
    found = Found()
    for run in setup.folders:
        about = read_json(run / "run.json")
        name, phases = " ".join(about.get("losses", ["all"])), about["phases"]
        name += "" if phases[1:] in ([], ["acceptance"]) else f", then {' and '.join(phases[1:])}"
        name += "" if about["output"] == "rows" else f", to {about['output']}"
        lines, parts = _lines(run / "calibration.jsonl"), ("adapters", "gaps")
        found[name] = [{"phase": line["phase"], **{part: next(iter(line[part].values())) for part in parts}} for line in lines]
    yield ("losses",), {"runs": [*setup.known_at(["losses"]).get("runs", []), found]}


def nulls(setup: Setup) -> Iterator[Finding]:
    """Gaps of trained adapters to what is wanted of another recording at the same places."""
    folder, preset = folder_of(setup.pair), PRESETS[setup.size("cpu", "smoke")]
    clips, wanted = answered(folder, setup.folders[0], "calibration", preset.held_out, lambda *_: None, 1)
    drafter, frozen = _models(folder)
    places = PairFile.read(folder).places("adapters")
    adapters = {name: load_adapter(place, drafter.model, frozen.model) for name, place in places.items()}
    found, half = Found(), {number: known for number, known in wanted.items() if number % 2 == 0}  # as `adapters.even`
    for output, made in (("rows", RowTraining), ("features", FeatureTraining)):
        own = {name: adapter for name, adapter in adapters.items() if adapter.config.output == output}
        judged = made(frozen, drafter, own, clips, wanted, preset.packed)
        gaps, another = judged.gaps(clips, half), judged.gaps(clips, half, apart=1)
        found |= {name: {"own": gaps[name], "another": another[name]} for name in gaps}
    yield ("nulls",), found


def low_rank(setup: Setup) -> Iterator[Finding]:
    """What low-rank updates of an event drafter learned, and what a pair's own drafter says of the same clips."""
    runs = [read_json(run / "pair" / lora.FIGURES) for run in setup.folders]
    folder, preset = folder_of(setup.pair), lora.PRESETS[setup.size("cpu", "smoke")]
    clips, wanted = answered(folder, setup.folders[0], "calibration", preset.held_out, lambda *_: None, 1)
    drafter, _ = _models(folder)
    size = sum(parameter.numel() for parameter in drafter.model.parameters())
    judged = lora.LowRankTraining(drafter, 1, clips, wanted, preset.packed)
    whole = {"calibration": judged.agreement(clips, wanted), "parameters": size}
    yield ("low-rank",), {"runs": runs, "whole": whole}


def _models(folder: Path) -> tuple[FrozenDrafter, FrozenTarget]:
    """The models of a pair as trainings take them."""
    before = Questions.of_pair(folder).prefix()
    return FrozenDrafter(load_eventgpt(folder / "drafter"), before), FrozenTarget(load_video_llava(folder / "target"), before)


def _join(first: Found, other: Found) -> None:
    """Add another training of the same kind: further adapters."""
    for line, more in zip(first["phases"], other["phases"], strict=True):
        assert line["phase"] == more["phase"]
        line["adapters"] |= more["adapters"]
        line["gaps"] |= more["gaps"]
    first["parameters"] |= other["parameters"]


def _lines(path: Path) -> list[Found]:
    """BadInput where there are none."""
    if not path.exists():
        raise BadInput(f"{path} is missing: --folder names what `eventspec train` wrote")
    try:
        return [parsed(line) for line in path.read_bytes().splitlines()]
    except ValueError as error:
        raise BadInput(f"{path} is damaged ({error}): --folder names what `eventspec train` wrote") from None
