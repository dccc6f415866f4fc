"""What the commands of ``eventspec train`` share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from eventspec.train.processes import Processes


@contextmanager
def failing_once(processes: Processes) -> Iterator[None]:
    """A training that fails comes to all of its processes; were it a failure in each, the launcher might end the first before
    it has told."""
    from eventspec.train.loop import TrainingFailed

    try:
        yield
    except TrainingFailed:
        if processes.first:
            raise
        raise typer.Exit from None


def check_preset(preset: str, known: Collection[str]) -> None:
    from eventspec.core import BadInput

    if preset not in known:
        raise BadInput(f"preset '{preset}' is unknown: choose one of {', '.join(known)}")


def check_empty(out: Path, otherwise: str = "") -> None:
    """BadInput unless a folder is new or empty; `otherwise`: what else can be done."""
    from eventspec.core import BadInput

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is not an empty folder: choose another one{otherwise}")


def check_out(out: Path, resume: bool) -> None:
    """BadInput where no run may begin in `out`, or, to `resume`, none is there to go on with."""
    from eventspec.core import BadInput

    if not resume or out.is_file():
        check_empty(out, ", or continue it with --resume")
    elif not out.exists() or not any(out.iterdir()):
        raise BadInput(f"{out} holds no run that --resume could go on with: leave --resume out to begin one")
