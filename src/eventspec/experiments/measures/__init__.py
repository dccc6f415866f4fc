"""Which experiments there are, and how one is run: every part of its results is on the disk as soon as it is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from eventspec.errors import BadInput, check_known
from eventspec.experiments.reports import Found, results_of
from eventspec.files import write_text

if TYPE_CHECKING:
    from eventspec.experiments.measures.setup import Finding, Setup


@dataclass(frozen=True)
class Experiment:
    """What it measures, the name of its results file, and which folders it takes, if any."""

    about: str
    results: str
    measure: Callable[[Setup], Iterator[Finding]]
    folders: str = ""


def _by(module: str, name: str) -> Callable[[Setup], Iterator[Finding]]:
    """A function of a module of this package, which is imported when it is called: names are checked before torch is there."""

    def measure(setup: Setup) -> Iterator[Finding]:
        found: Iterator[Finding] = getattr(import_module(f"{__name__}.{module}"), name)(setup)
        return found

    return measure


EXPERIMENTS = {
    "main-job": Experiment("every method and control, a core a model", "main-job", _by("main_job", "apart")),
    "shared-cores": Experiment("methods and controls, cores shared out", "shared-cores", _by("main_job", "shared")),
    "identity": Experiment(
        "answers of every arm beside plain decoding, token by token", "identity", _by("numerics", "identity")
    ),
    "rounding": Experiment("how far rows in company move from rows alone", "rounding", _by("numerics", "rounding")),
    "reuse": Experiment("answers that change when frames share features", "reuse", _by("reuse", "measure")),
    "heads": Experiment("every head with its controls", "heads", _by("heads", "table")),
    "heads-identity": Experiment("answers of every head and kind of tree", "heads", _by("heads", "identity")),
    "branches": Experiment("a head's compressor: its gate beside each branch", "heads", _by("heads", "branches")),
    "compressed": Experiment("lossy targets, alone and with a head", "heads", _by("compressed", "measure")),
    "trees": Experiment("kinds of trees with as many nodes", "heads", _by("heads", "trees")),
    "bound": Experiment("decoding beside what tau allows", "heads", _by("heads", "bound")),
    "data": Experiment("one head by the clips that it learns from", "heads", _by("heads", "data")),
    "learning": Experiment("heads that learn while they answer", "heads", _by("learning", "measure")),
    "alignment": Experiment("every adapter with its controls", "alignment", _by("alignment", "table")),
    "adapters": Experiment(
        "adapters of trainings with their controls", "alignment", _by("alignment", "adapters"), "of `train adapter`"
    ),
    "risk": Experiment("answers from events alone, by risk", "alignment", _by("alignment", "risk")),
    "entropy": Experiment("how sure models are, by what they see", "entropy", _by("entropy", "measure")),
    "deciding": Experiment("rules that let answers from events stand", "alignment", _by("deciding", "measure")),
    "training": Experiment("what trainings of adapters noted", "alignment", _by("trained", "training"), "of `train adapter`"),
    "losses": Experiment("one adapter by each loss alone", "alignment", _by("trained", "losses"), "of `train adapter --loss`"),
    "gaps-null": Experiment(
        "gaps to another recording's features", "alignment", _by("trained", "nulls"), "one of `train adapter`"
    ),
    "low-rank": Experiment("low-rank updates of an event drafter", "alignment", _by("trained", "low_rank"), "of `train lora`"),
}


def check(names: list[str], folders: tuple[Path, ...]) -> None:
    """BadInput for names that do not exist, and where folders are missing or not wanted."""
    check_known("experiment", names, EXPERIMENTS)
    for name in names:
        wanted = EXPERIMENTS[name].folders
        if wanted and not folders:
            raise BadInput(f"{name} reads folders ({wanted}): give each with --folder")
        if folders and not wanted:
            raise BadInput(f"{name} reads no folders: leave --folder out")
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise BadInput(f"{missing[0]} is no folder: --folder names one of a training")
    for name in names:
        wanted = EXPERIMENTS[name].folders
        if "train adapter" in wanted and (other := [folder for folder in folders if not (folder / "run.json").is_file()]):
            raise BadInput(f"{other[0]} is no folder of `train adapter`, which {name} reads: it has no run.json")


def run(name: str, setup: Setup, out: Path | None, fresh: bool = False) -> Found:
    """Measure, and keep every part in the results file `out` as soon as it is there; all parts as in the file. `fresh`: what is
    known is measured again. BadInput for a file of something else."""
    before, found = known(out), Found()
    setup = replace(setup, known={} if fresh else before)
    for place, part in EXPERIMENTS[name].measure(setup):
        found = with_part(found, place, part)
        if out is not None:  # another run may have written its own part in the meantime
            write_text(out, json.dumps(with_part(known(out), place, part), indent=1) + "\n")
    return found


def known(out: Path | None) -> Found:
    """What a results file holds by now. BadInput for one of something else."""
    return {} if out is None or not out.exists() else results_of(out)


def with_part(found: Found, place: tuple[str, ...], part: Found) -> Found:
    """Results with a part at its place; what else they hold stays."""
    if not place:
        return {**found, **part}
    below = found.get(place[0], {})
    return {**found, place[0]: with_part(below if isinstance(below, dict) else {}, place[1:], part)}
