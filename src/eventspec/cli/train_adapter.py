"""``eventspec train adapter``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli.bars import shown
from eventspec.cli.paths import given_path
from eventspec.cli.training import check_out, check_preset, failing_once

Out = Annotated[Path, typer.Option(parser=given_path, help="Clips, answers, checkpoints, and the finished pair.")]
Between = Annotated[
    str, typer.Option(help="Between whose event model and target: a bundled pair, or the folder of a pair.toml.")
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="linear, bottleneck (the default), blocks, wide, attention, causal, cross, fused, or the control constant. "
        "Repeatable."
    ),
]
Written = Annotated[
    str, typer.Option(help="rows: of the target's prompt, for method aligned; features: of its head, for event-eagle.")
]
Phases = Annotated[
    list[str] | None, typer.Option(help="alignment, acceptance or end-to-end; by default all three. Repeatable.")
]
FreeRunning = Annotated[
    bool,
    typer.Option(
        "--free-running",
        help="To features, from texts that the models make on their own, as earlier work did; nothing is kept but figures.",
    ),
]
Losses = Annotated[
    list[str] | None,
    typer.Option(
        "--loss", help="squared, cosine or contrast (InfoNCE, rows only): what counts in phase alignment; by default all."
    ),
]
Preset = Annotated[
    str, typer.Option(help="cpu (4 min for every kind, after a quarter of an hour of clips and answers), gpu or smoke.")
]
Resume = Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the agreement.")]


def adapter(
    out: Out,
    pair: Between = "nano",
    kind: Kinds = None,
    output: Written = "rows",
    phase: Phases = None,
    loss: Losses = None,
    free_running: FreeRunning = False,
    preset: Preset = "cpu",
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train adapters for `--method aligned` and `event-eagle`: what an event model computes becomes what the target's own
    language model reads. Kinds attention, causal and constant write rows only.

    On several GPUs, or processes, as `train heads`.
    """
    from eventspec.core import BadInput
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train import adapters as recipe
    from eventspec.train.embedded import reexecute_with_allocator
    from eventspec.train.processes import launched_first, started

    (kinds, written), phases = recipe.checked(kind or ["bottleneck"], output), recipe.check_phases(phase or [], free_running)
    if free_running and written != "features":
        raise BadInput("--free-running pairs the tokens of two texts: it is for --output features")
    losses = recipe.check_losses(loss or [], written, phases)
    check_preset(preset, recipe.PRESETS)
    folder_of(pair)
    if launched_first():
        check_out(out, resume)
    reexecute_with_allocator(sys.argv[1:])
    stages = ("render train", "render calibration", *phases, *(["calibrate"] if written == "rows" else []))
    with started() as processes, shown(stages, processes.first) as report, failing_once(processes):
        wanted = recipe.Wanted(kinds, written, phases, free_running, losses)
        folder = recipe.train(pair, preset, wanted, out, report, processes=processes)
    if not processes.first:
        return
    recorded = json.loads((folder / recipe.FIGURES).read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for made in kinds:
        name = recipe.name_of(made, written)
        own = recorded["calibration"][name]
        right = f"{own['tokens']:.1%} of the held-out tokens right, {own['leading']:.1f} leading ones of an answer"
        typer.echo(f"{name:<19} {right}, {own['answers']:.1%} of {own['n_answers']} answers whole")
        if (why := own.get("not_calibrated")) is not None:
            typer.echo(f"note: {name} is not calibrated for --method skip-encode: {why}", err=True)
    if free_running:
        typer.echo(f"two texts that differ give no drafts: the figures are in {folder / recipe.FIGURES}, and there is no pair")
        return
    method = "aligned" if written == "rows" else "event-eagle"
    names = [recipe.name_of(made, written) for made in kinds]
    best = max(names, key=lambda name: recorded["calibration"][name]["leading"])
    typer.echo(f"the pair with its adapters is in {folder}: use it with --pair {folder} --method {method} --adapter {best}")
