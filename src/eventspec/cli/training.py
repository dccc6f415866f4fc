"""What the commands of ``eventspec train`` share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli import options
from eventspec.errors import BadInput

if TYPE_CHECKING:
    from eventspec.train.processes import Processes

Out = Annotated[Path, options.path("Clips, answers, checkpoints, and the finished pair.")]
Resume = Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the figures.")]


@contextmanager
def failing_once(processes: Processes) -> Iterator[None]:
    """A training that fails comes to all of its processes; were it a failure in each, the launcher might end the first before
    it has said why."""
    from eventspec.train.loop import TrainingFailed

    try:
        yield
    except TrainingFailed:
        if processes.first:
            raise
        raise typer.Exit from None


def check_preset(preset: str, known: Collection[str]) -> None:
    if preset not in known:
        raise BadInput(f"preset '{preset}' is unknown: choose one of {', '.join(known)}")


def check_one_process(what: str) -> None:
    """BadInput where torchrun started several; `what`: the subject of the sentence."""
    from eventspec.train.processes import launched

    if launched() > 1:
        raise BadInput(f"{what} trained in one process, not in {launched()}: start it without torchrun")


def check_empty(out: Path, otherwise: str = "") -> None:
    """BadInput unless a folder is new or empty; `otherwise`: what else can be done."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is not an empty folder: choose another one{otherwise}")


def check_out(out: Path, resume: bool) -> None:
    """BadInput where no run may begin in `out`, or, to `resume`, none is there to go on with."""
    if not resume or out.is_file():
        check_empty(out, ", or continue it with --resume")
    elif not out.exists() or not any(out.iterdir()):
        raise BadInput(f"{out} holds no run that --resume could go on with: leave --resume out to begin one")


def begin(out: Path, resume: bool, pair: str | None = None) -> None:
    """Check the folder and the pair, and start the process again with an allocator that suits training."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train.embedded import reexecute_with_allocator
    from eventspec.train.processes import launched_first

    if pair is not None:
        folder_of(pair)
    if launched_first():
        check_out(out, resume)
    reexecute_with_allocator(sys.argv[1:])


def print_figures(folder: Path, figures: dict[str, Any], as_json: bool, *lines: str) -> None:
    """What a recipe noted of its result: one JSON object, or lines."""
    options.print_found({"folder": str(folder), **figures}, as_json, *lines)


def agreement(figures: dict[str, Any]) -> list[str]:
    """How much of the target's answers was right before a training and after it."""
    lines = []
    for name in ("before", "calibration"):
        own = figures[name]
        leading = f", the first {own['leading']:.1f} of an answer" if "leading" in own else ""
        lines.append(f"{name:<12} {own['tokens']:.1%} of tokens{leading}, {own['answers']:.1%} of {own['n_answers']} answers")
    return lines
