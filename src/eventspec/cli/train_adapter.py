"""``eventspec train adapter`` and ``train lora``."""

from __future__ import annotations

from typing import Annotated

import typer

from eventspec.cli import options, training
from eventspec.cli.bars import shown
from eventspec.errors import BadInput

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


def adapter(
    out: training.Out,
    pair: Between = "nano",
    kind: Kinds = None,
    output: Written = "rows",
    phase: Phases = None,
    loss: Losses = None,
    free_running: FreeRunning = False,
    preset: Preset = "cpu",
    resume: training.Resume = False,
    as_json: training.AsJson = False,
) -> None:
    """Train adapters for `--method aligned` and `event-eagle`: what an event model computes becomes what the target's own
    language model reads. Kinds attention, causal and constant write rows only.

    On several GPUs, or processes, as `train heads`.
    """
    from eventspec.train import adapters as recipe
    from eventspec.train.processes import started

    (kinds, written), phases = recipe.checked(kind or ["bottleneck"], output), recipe.check_phases(phase or [], free_running)
    if free_running and written != "features":
        raise BadInput("--free-running pairs the tokens of two texts: it is for --output features")
    losses = recipe.check_losses(loss or [], written, phases)
    training.check_preset(preset, recipe.PRESETS)
    training.begin(out, resume, pair)
    stages = ("render train", "render calibration", *phases, *(["calibrate"] if written == "rows" else []))
    with started() as processes, shown(stages, processes.first) as report, training.failing_once(processes):
        wanted = recipe.Wanted(kinds, written, phases, free_running, losses)
        folder = recipe.train(pair, preset, wanted, out, report, processes=processes)
    if not processes.first:
        return
    figures = training.read_figures(folder / recipe.FIGURES)
    made = {name: figures["calibration"][name] for name in (recipe.name_of(one, written) for one in kinds)}
    if not as_json:
        failed = {name: own["not_calibrated"] for name, own in made.items() if own.get("not_calibrated") is not None}
        options.print_notes(f"{name} is not calibrated for --method skip-encode: {why}" for name, why in failed.items())
    lines = [
        f"{name:<19} {own['tokens']:.1%} of the held-out tokens right, {own['leading']:.1f} leading ones of an answer, "
        f"{own['answers']:.1%} of {own['n_answers']} answers whole"
        for name, own in made.items()
    ]
    method, best = "aligned" if written == "rows" else "event-eagle", max(made, key=lambda name: made[name]["leading"])
    use = f"the pair with its adapters is in {folder}: use it with --pair {folder} --method {method} --adapter {best}"
    if free_running:
        use = f"two texts that differ give no drafts: the figures are in {folder / recipe.FIGURES}, and there is no pair"
    training.print_figures(folder, figures, as_json, *lines, use)


def lora(
    out: training.Out,
    pair: Annotated[
        str, typer.Option(help="Whose event drafter learns: a bundled pair, or the folder of a pair.toml.")
    ] = "nano",
    rank: Annotated[int, typer.Option(help="Of the update of every product of its language model.")] = 8,
    preset: Annotated[str, typer.Option(help="cpu (4 min, after a quarter of an hour of clips and answers) or smoke.")] = "cpu",
    resume: training.Resume = False,
    as_json: training.AsJson = False,
) -> None:
    """Train low-rank updates (LoRA) of an event drafter on the answers of its target, for `--drafter lora`."""
    from eventspec.train import lora as recipe

    training.check_one_process("low-rank updates are")
    training.check_preset(preset, recipe.PRESETS)
    recipe.check_rank(rank)
    recipe.check_peft()
    training.begin(out, resume, pair)
    with shown(("render train", "render calibration", recipe.NAME)) as report:
        folder = recipe.train(pair, preset, rank, out, report)
    figures = training.read_figures(folder / recipe.FOLDER / recipe.FIGURES)
    use = f"the pair with its drafter is in {folder}: --pair {folder} --method cross-modal --drafter {recipe.NAME}"
    training.print_figures(folder, figures, as_json, *training.agreement(figures), use)
