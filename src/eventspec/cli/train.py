"""``eventspec train``: recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli.paths import given_path

train = typer.Typer(help="Train the models that ship with eventspec, or your own of their kind.", no_args_is_help=True)


@train.callback()
def _group() -> None:
    pass


@train.command()
def embedded(
    out: Annotated[Path, typer.Option(parser=given_path, help="Rendered clips, checkpoints and the finished pair go here.")],
    preset: Annotated[
        str, typer.Option(help="cpu (nano, 2.5 h on 2 cores), gpu (base, 25 min), cpu-base (7 h) or smoke.")
    ] = "cpu",
    resume: Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and its provenance.")] = False,
) -> None:
    """Train the embedded pair: a small Video-LLaVA on the synthetic street and an event drafter distilled on its answers."""
    from eventspec.core import BadInput
    from eventspec.train import embedded as recipe

    if preset not in recipe.PRESETS:
        raise BadInput(f"preset '{preset}' is unknown: choose one of {', '.join(recipe.PRESETS)}")
    if out.exists() and any(out.iterdir()) and not resume:
        raise BadInput(f"{out} is not empty: choose another folder, or continue it with --resume")
    recipe.reexecute_with_allocator(sys.argv[1:])

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {}

        def report(name: str, progress: float, figures: dict[str, float]) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=1.0, figures="")
            words = " ".join(f"{key.lstrip('_')} {value:.3g}" for key, value in figures.items())
            bar.update(tasks[name], completed=progress, figures=words)

        folder = recipe.train(preset, out, report)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **json.loads((folder / "provenance.json").read_text())}))
        return
    typer.echo(f"the trained pair is in {folder}: use it with --pair {folder}")
