"""``eventspec train lora``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli.bars import shown
from eventspec.cli.paths import given_path
from eventspec.cli.training import check_out, check_preset

Out = Annotated[Path, typer.Option(parser=given_path, help="Clips, answers, checkpoints, and the finished pair.")]
Whose = Annotated[str, typer.Option(help="Whose event drafter learns: a bundled pair, or the folder of a pair.toml.")]
Rank = Annotated[int, typer.Option(help="Of the update of every product of its language model.")]
Preset = Annotated[str, typer.Option(help="cpu (4 min, after a quarter of an hour of clips and answers) or smoke.")]
Resume = Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the agreement.")]


def lora(
    out: Out, pair: Whose = "nano", rank: Rank = 8, preset: Preset = "cpu", resume: Resume = False, as_json: AsJson = False
) -> None:
    """Train low-rank updates (LoRA) of an event drafter on the answers of its target, for `--drafter lora`."""
    from eventspec.core import BadInput
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train import lora as recipe
    from eventspec.train.embedded import reexecute_with_allocator
    from eventspec.train.processes import launched

    if launched() > 1:
        raise BadInput(f"low-rank updates are trained in one process, not in {launched()}: start it without torchrun")
    check_preset(preset, recipe.PRESETS)
    recipe.check_rank(rank)
    recipe.check_peft()
    folder_of(pair)
    check_out(out, resume)
    reexecute_with_allocator(sys.argv[1:])
    with shown(("render train", "render calibration", recipe.NAME)) as report:
        folder = recipe.train(pair, preset, rank, out, report)
    recorded = json.loads((folder / recipe.FOLDER / recipe.FIGURES).read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for name in ("before", "calibration"):
        own = recorded[name]
        right = f"{own['tokens']:.1%} of tokens, the first {own['leading']:.1f} of an answer"
        typer.echo(f"{name:<12} {right}, {own['answers']:.1%} of {own['n_answers']} answers")
    typer.echo(f"the pair with its drafter is in {folder}: --pair {folder} --method cross-modal --drafter {recipe.NAME}")
