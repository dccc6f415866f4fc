"""Commands of ``eventspec train`` that teach models, or what stands between two: adapter, packer, lora, drafter."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from eventspec.cli.help import App
from eventspec.cli.learning import Learning, agreement, whose
from eventspec.errors import BadInput, check_known, several
from eventspec.files import read_json
from eventspec.train.names import CALIBRATION, PRESETS, calibratable, check_adapting, check_kinds, check_phases

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="linear, slim, bottleneck (the default), blocks, wide, attention, causal, cross, cached, fused, autoregressive, "
        "or the control constant. Repeatable."
    ),
]
Written = Annotated[
    str,
    typer.Option(
        help="rows: of the target's prompt, or tower: what its tower gives for every frame, for methods aligned and "
        "skip-encode; features: of its head, for event-eagle."
    ),
]
Reads = Annotated[
    str,
    typer.Option(
        help="To features, of the event model: last (what its head reads), penultimate (the layer before), or levels (a low, "
        "a middle and the last one)."
    ),
]
Phases = Annotated[
    list[str] | None,
    typer.Option(
        help="alignment, acceptance or end-to-end; by default all three. predictor, joint: the early notes' second and third. "
        "Repeatable, run in this order. calibration: adapters that the pair has are calibrated again for skip-encode, and stay "
        "as they are."
    ),
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
        "--loss",
        help="squared, cosine, contrast (InfoNCE) or information (mutual information): what counts in phases alignment and "
        "joint; by default the first three, to features the first two.",
    ),
]
AdapterPreset = Annotated[
    str, typer.Option(help="cpu (4 min for every kind, after a quarter of an hour of clips and answers), gpu or smoke.")
]


def adapter(
    learning: Learning,
    kind: Kinds = None,
    output: Written = "rows",
    phase: Phases = None,
    loss: Losses = None,
    reads: Reads = "last",
    free_running: FreeRunning = False,
    preset: AdapterPreset = "cpu",
) -> None:
    """Train adapters for `--method aligned` and `event-eagle`: what an event model computes becomes what the target's own
    language model reads. Kinds attention and causal write no features, autoregressive nothing else.

    On several GPUs, or processes, as `train heads`.
    """
    again = (phases := check_phases(phase or [], free_running)) == (CALIBRATION,)
    if again and output != "rows":
        raise BadInput(f"phase {CALIBRATION} is for method skip-encode, which reads adapters to rows: leave --output out")
    kinds = calibratable(learning.file, kind or []) if again else check_kinds(kind or ["bottleneck"], output)
    check_known("preset", [preset], PRESETS["adapters"])
    if free_running and output != "features":
        raise BadInput("--free-running pairs the tokens of two texts: it is for --output features")
    losses = check_adapting(loss or [], reads, output, phases)
    given = learning.begin(events=True)
    from eventspec.train import adapters as recipe

    written: Any = output
    read: Any = reads
    wanted = recipe.Wanted(kinds, written, phases, free_running, losses, read)

    seconds = len(kinds) * sum(recipe.SHARES.get(phase, 0.0) for phase in phases) * recipe.PRESETS[preset].stage.seconds

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        figures = read_json(folder / recipe.FIGURES)
        made = {name: figures["calibration"].get(name, {}) for name in (recipe.name_of(one, written) for one in kinds)}
        failed = {name: own["not_calibrated"] for name, own in made.items() if own.get("not_calibrated") is not None}
        learning.note(f"{name}: method skip-encode asks the target always ({why})" for name, why in failed.items())
        lines = [
            f"{name:<19} {own['tokens']:.1%} of the tokens right, {own['leading']:.1f} leading ones of an answer, "
            f"{own['answers']:.1%} of {several(own['n_answers'], 'answer')} whole{whose(own) or ', held out'}"
            for name, own in made.items()
            if "tokens" in own
        ]
        method, best = (
            "event-eagle" if written == "features" else "aligned",
            max(made, key=lambda name: made[name].get("leading", 0.0)),
        )
        use = f"the pair with its adapters is in {folder}: use it with --pair {folder} --method {method} --adapter {best}"
        if again:
            use = f"the pair with its adapters calibrated is in {folder}: use it with --pair {folder} --method skip-encode"
        if free_running:
            use = f"two texts that differ give no drafts: the figures are in {folder / recipe.FIGURES}, and there is no pair"
        return figures, [*lines, use]

    train = partial(recipe.train, learning.name, wanted=wanted)
    stages = learning.stages(*([] if again else phases), *(["calibrate"] if output != "features" else []))
    learning.run(train, recipe.PRESETS[preset], given, stages, figures_of, seconds)


def packer(
    learning: Learning,
    scale: Annotated[int, typer.Option(min=2, help="Patches a side that become one row: 2 leaves a quarter of the rows.")] = 2,
    preset: Annotated[str, typer.Option(help="cpu (12 min, after half an hour of clips and answers) or smoke.")] = "cpu",
) -> None:
    """Train a packer for `--method compressed-target --compress packer:SCALE` on the target's own answers. It is lossy."""
    from eventspec.pairs.fitting import check_packed

    check_known("preset", [preset], PRESETS["packer"])
    check_packed(learning.file, scale)
    given = learning.begin()
    from eventspec.train import packer as recipe

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        use = f"the pair with its packer is in {folder}: --pair {folder} --method compressed-target --compress packer:{scale}"
        return agreement(folder / recipe.figures_at(scale), use)

    train = partial(recipe.train, learning.name, scale=scale)
    learning.run(train, recipe.PRESETS[preset], given, learning.stages(f"packer-{scale}"), figures_of)


def lora(
    learning: Learning,
    rank: Annotated[int, typer.Option(min=1, max=1024, help="Of the update of every product of its language model.")] = 8,
    preset: Annotated[str, typer.Option(help="cpu (4 min, after a quarter of an hour of clips and answers) or smoke.")] = "cpu",
) -> None:
    """Train low-rank updates (LoRA) of an event drafter on the answers of its target, for `--drafter lora`."""
    check_known("preset", [preset], PRESETS["lora"])
    given = learning.begin(events=True)
    from eventspec.train import lora as recipe

    recipe.check_rank(rank)
    recipe.check_peft()

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        use = f"the pair with its drafter is in {folder}: --pair {folder} --method cross-modal --drafter {recipe.NAME}"
        return agreement(folder / recipe.FIGURES, use)

    train = partial(recipe.train, learning.name, rank=rank)
    learning.run(train, recipe.PRESETS[preset], given, learning.stages(recipe.NAME), figures_of)


def drafter(
    learning: Learning,
    preset: Annotated[str, typer.Option(help="cpu (2 h after the answers), gpu (half an hour) or smoke.")] = "cpu",
) -> None:
    """Train a small event drafter for a pair of checkpoints, with its target's tokenizer, on what the target says.

    The drafter of a pair of ours is trained by `train embedded`.
    """
    check_known("preset", [preset], PRESETS["drafter"])
    if (file := learning.file).load is None:
        raise BadInput(f"pair {file.name} is one of ours: `eventspec train embedded` trains its drafter")
    given = learning.begin(events=True)
    from eventspec.train import drafter as recipe

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        how = "" if "drafter" not in file.files else f" --drafter {recipe.NAME}"
        use = f"the pair with its drafter is in {folder}: use it with --pair {folder} --method cross-modal{how}"
        return agreement(folder / recipe.FIGURES, use)

    train = partial(recipe.train, learning.name)
    learning.run(train, recipe.PRESETS[preset], given, learning.stages("drafter"), figures_of)


def add_to(train: App) -> None:
    """The commands, in their order."""
    for command in (adapter, packer, lora, drafter):
        train.command()(command)
