"""``eventspec scenes``: the synthetic street-scene dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli.help import App
from eventspec.cli.paths import given_path

scenes = App(help="The seeded synthetic street: frames, events, questions and answers.", no_args_is_help=True)


@scenes.callback()
def _group() -> None:
    pass


@scenes.command()
def make(
    out: Annotated[Path, typer.Option(parser=given_path, help="A folder that does not exist yet.")],
    clips: Annotated[int, typer.Option(max=1_000_000, help="How many one-second clips.")] = 20,
    split: Annotated[str, typer.Option(help="train, calibration or test: disjoint seeds.")] = "test",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Render clips with events, facts and questions: clip_000000/..., qa.jsonl."""
    from rich.console import Console
    from rich.progress import Progress

    from eventspec.scenes.writer import write_scenes

    with Progress(console=(page := Console(stderr=True)), transient=True, disable=not page.is_terminal) as bar:
        task = bar.add_task("rendering", total=clips)
        write_scenes(out, clips, split, seed, lambda done: bar.update(task, completed=done))
    if as_json:
        made = {"clips": clips, "split": split, "seed": seed, "folder": str(out), "questions": str(out / "qa.jsonl")}
        typer.echo(json.dumps(made))
        return
    typer.echo(f"{clips} clips in {out}, questions in {out / 'qa.jsonl'}")
