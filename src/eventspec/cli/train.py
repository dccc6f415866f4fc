"""``eventspec train``: the bundled pair's recipe, and those of what drafts without an event model of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventspec.cli import options, train_models
from eventspec.cli.bars import announced, shown
from eventspec.cli.help import App
from eventspec.cli.learning import ON_ALL, AsJson, Learning, Out, Resume, check_one_process, whose
from eventspec.errors import BadInput, check_known, several
from eventspec.files import check_outputs, read_json, writing
from eventspec.machine import SPREAD
from eventspec.train.names import (
    HEADS,
    PRESETS,
    check_begins,
    check_out,
    launched_first,
    reexecute_with_allocator,
)

train = App(help="Train the models that ship with eventspec, or your own of their kind.", no_args_is_help=True)

HeadNames = Annotated[
    list[str] | None,
    typer.Option(
        help="By default eagle, eagle1, eagle3 and specvlm; also frugal, weighted, concat, hivis, msd, vispec, dream, "
        "massv and spec-llava. Repeatable."
    ),
]
BeginWith = Annotated[
    str | None,
    typer.Option(help="Begin with the weights of this pair's heads, as far as they fit; the same pair, or another."),
]
BeginEmbedded = Annotated[
    str | None, typer.Option(help="Go on from the weights of this pair, with --preset cpu-tune: nano, or a pair's folder.")
]
EmbeddedPreset = Annotated[
    str, typer.Option(help="cpu (nano, 2.5 h on 2 cores), cpu-tune (1.5 h), gpu (base, 25 min), cpu-base (7 h) or smoke.")
]
HeadsPreset = Annotated[
    str, typer.Option(help="cpu (1 h), gpu (8 min), with --begin-with cpu-tune (30 min) or gpu-tune (5 min), or smoke.")
]


@train.command()
def embedded(
    out: Out,
    preset: EmbeddedPreset = "cpu",
    begin_with: BeginEmbedded = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a pair as `nano` is: a small Video-LLaVA on the synthetic street and an event drafter distilled on its answers."""
    from eventspec.pairs.pair_file import folder_of

    check_known("preset", [preset], PRESETS["embedded"])
    check_begins(preset, begin_with)
    check_one_process("a pair is")
    read = [] if begin_with is None else [folder_of(begin_with)]
    check_out(out, resume)
    check_outputs({"--out": out}, read)
    reexecute_with_allocator(sys.argv[1:])
    if not resume:
        announced(f"training into {out}")
    from eventspec.train import embedded as recipe

    with writing(out), shown(("render", "tower", "four", "eight", "distil", "fine")) as report:
        folder = recipe.train(preset, out, report, begin_with=begin_with)
    use = f"the trained pair is in {folder}: use it with --pair {folder}"
    options.print_found({"folder": str(folder), **read_json(folder / "provenance.json")}, as_json, use)


@train.command()
def heads(
    learning: Learning,
    target: Annotated[Path | None, options.path("The checkpoint folder of another target instead, with --questions.")] = None,
    device: Annotated[str | None, typer.Option(help="For --target: cpu (the default), cuda, ...")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="For --target; the default is float32.")
    ] = None,
    head: HeadNames = None,
    begin_with: BeginWith = None,
    preset: HeadsPreset = "cpu",
) -> None:
    """Train heads for `--method eagle` and `specvlm` on the target's own features and answers.

    On several GPUs, or processes: torchrun --nproc-per-node N -m eventspec train heads ... Gradients are averaged, so a step
    learns from N batches; the output folder must be the same for all. A run may go on with another N.
    """
    names = list(dict.fromkeys(head or HEADS[:4]))
    check_known("head", names, HEADS)
    check_known("preset", [preset], PRESETS["heads"])
    check_begins(preset, begin_with)
    if target is not None:
        _heads_for(learning, target, device or "cpu", dtype or "float32", preset, names, begin_with)
        return
    for name, value in {"--device": device, "--dtype": dtype}.items():
        if value is not None:
            raise BadInput(f"{name} is for --target, a checkpoint folder: leave it out, or give --target and --questions")
    if learning.pair is None and learning.questions is not None:
        raise BadInput("--questions goes with --target, a checkpoint folder, or with the --pair of a pair.toml of checkpoints")
    own = learning.file.load is not None
    if own and begin_with is not None:
        raise BadInput("--begin-with is for a pair of ours: leave it out")
    given = learning.begin(begin_with=begin_with)
    from eventspec.train import heads as recipe
    from eventspec.train import own as own_recipe

    if begin_with is not None and launched_first():
        options.print_notes(recipe.first_weights(begin_with, names))

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        figures = _head_figures(learning, folder)
        lines = _taus(figures, names, f"calibration clips{whose(figures)}")
        return figures, [*lines, f"the pair with its heads is in {folder}: use it with --pair {folder} --method eagle"]

    bundled = partial(recipe.train, learning.name, names=names, begin_with=begin_with)
    train = partial(own_recipe.train, learning.file, names=names) if own else bundled
    learning.run(train, recipe.PRESETS[preset], given, learning.stages("heads"), figures_of)


def _head_figures(learning: Learning, folder: Path) -> dict[str, Any]:
    figures = read_json(folder / "heads.json")
    if short := figures.get("too_short"):
        learning.note([f"{several(short, 'answer was', 'answers were')} too short to learn from"])
    return figures


def _taus(figures: Mapping[str, Any], names: Sequence[str], judged: str) -> list[str]:
    """Of the heads that were trained; the pair's others are named, as their figures are of an earlier training."""
    taus = figures["calibration"]["tau"]
    lines = [f"{name:<8} tau of a chain of 8 on {judged}: {taus[name]:.2f}" for name in names]
    others = sorted({*taus} - {*names})
    return [*lines, f"not trained now: {', '.join(others)}"] if others else lines


def _heads_for(
    learning: Learning, target: Path, device: str, dtype: str, preset: str, names: list[str], begin_with: str | None
) -> None:
    """For a checkpoint folder."""
    if learning.questions is None:
        raise BadInput("--target and --questions go together: a checkpoint folder, and a qa.jsonl about recordings")
    if learning.pair is not None or begin_with is not None:
        other = "--pair" if learning.pair is not None else "--begin-with"
        raise BadInput(f"{other} is for a pair, --target for a checkpoint folder: give one of them")
    if device == SPREAD:
        check_one_process(ON_ALL)
    models = options.Models(target=target, device=device)
    folders = models.check(["autoregressive"], options.Chosen())
    models.check_room(learning.max_new_tokens or 0, 0)
    given = learning.checked(folders, models.file())
    from eventspec.models.loading import LoadOptions
    from eventspec.train import heads as recipe
    from eventspec.train.own import train as learn

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        figures = _head_figures(learning, folder)
        lines = _taus(figures, names, f"{several(figures['judged'], 'answer')}{whose(figures)}")
        use = f"the heads are in {folder}: generate --target {target} --method eagle --head {folder / names[0]}"
        return figures, [*lines, use]

    how = LoadOptions.named(dtype, device=device)
    train = partial(learn, target, names=names, how=how)
    learning.run(train, recipe.PRESETS[preset], given, learning.stages("heads"), figures_of, target=(target, how))


@train.command()
def prior(
    learning: Learning,
    preset: Annotated[str, typer.Option(help="cpu (the answers to 6,256 questions) or smoke.")] = "cpu",
) -> None:
    """Count what the target usually says: the text prior of `--method prior`, which is the blind control of every drafter."""
    check_known("preset", [preset], PRESETS["prior"])
    learning.check_no_steps()
    given = learning.begin()
    from eventspec.train import prior as recipe

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        figures = read_json(learning.out / recipe.FIGURES)
        apart = whose(figures) or ", held out"
        line = f"its likeliest tokens are {figures['tokens']:.1%} of those of {several(figures['judged'], 'answer')}{apart}"
        return figures, [line, f"the pair with its prior is in {folder}: use it with --pair {folder} --method prior"]

    learning.run(partial(recipe.train, learning.name), recipe.PRESETS[preset], given, learning.stages(), figures_of)


@train.command()
def mixture(
    learning: Learning,
    preset: Annotated[str, typer.Option(help="cpu (400 questions, some minutes) or smoke.")] = "cpu",
) -> None:
    """Fit how the drafters of `--method hybrid` are weighed against each other, on answers of the pair's target.

    A pair of ours takes --questions too, in the place of rendered clips.
    """
    check_known("preset", [preset], PRESETS["mixture"])
    check_one_process("a mixture is")
    learning.check_no_steps()
    if learning.resume:
        raise BadInput("a mixture takes minutes, and has nothing to go on with: leave --resume out")
    given = learning.begin(anyway=True)
    from eventspec.train import mixture as recipe

    def figures_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
        figures = read_json(learning.out / "mixture-report.json")
        lines = [
            f"{name:<12} calibration error {own['calibration_error']:.3f}, Brier {own['brier']:.3f}, {own['n']} tokens"
            for name, own in {**figures["before"], "mixture": figures["after"]}.items()
        ]
        if figures["learned_from"]:
            more = several(figures["learned_from"], "question is", "questions are")
            learning.note([f"what is held out was too little: {more} about recordings that other trainings learn from"])
        return figures, [*lines, f"the pair with its mixture is in {folder}: use it with --pair {folder} --method hybrid"]

    train, stages = partial(recipe.train, learning.name), ("questions", "rounds")
    learning.run(train, recipe.PRESETS[preset], given, stages, figures_of, asks_again=True)


train_models.add_to(train)
