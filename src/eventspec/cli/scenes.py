"""``eventspec scenes``: the synthetic street-scene dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli import options
from eventspec.cli.bars import counted
from eventspec.cli.help import App

scenes = App(help="The seeded synthetic street: frames, events, questions and answers.", no_args_is_help=True)


@scenes.command()
def make(
    out: Annotated[Path, options.path("A folder that does not exist yet.")],
    clips: Annotated[int, typer.Option(max=1_000_000, help="How many one-second clips.")] = 20,
    split: Annotated[str, typer.Option(help="train, calibration or test: disjoint seeds.")] = "test",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Render clips with events, facts and questions: clip_000000/..., qa.jsonl."""
    from eventspec.scenes.writer import write_scenes

    with counted("rendering") as show:
        write_scenes(out, clips, split, seed, lambda done: show(done, clips))
    questions = out / "qa.jsonl"
    made = {"clips": clips, "split": split, "seed": seed, "folder": str(out), "questions": str(questions)}
    options.print_found(made, as_json, f"{clips} clips in {out}, questions in {questions}")
