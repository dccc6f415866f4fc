"""``eventspec train``: the bundled pair's recipe, and those of what drafts without an event model of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventspec.cli import options, train_models
from eventspec.cli.bars import announced, shown
from eventspec.cli.help import App
from eventspec.cli.learning import AsJson, Learning, Out, Resume, check_one_process, whose
from eventspec.errors import BadInput, check_known, several
from eventspec.files import check_outputs, read_json, writing
from eventspec.train.names import (
    HEADS,
    PRESETS,
    Given,
    check_begins,
    check_out,
    launched_first,
    reexecute_with_allocator,
)

train = App(help="Train the models that ship with eventspec, or your own of their kind.", no_args_is_help=True)

HeadNames = Annotated[
    list[str] | None,
    typer.Option(
        help="By default eagle, eagle1, eagle3 and specvlm; also frugal, weighted, concat, hivis, msd, vispec, dream and "
        "massv. Repeatable."
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

    def run(folder: Path, report: Any, given: Given | None, preset: Any, **how: Any) -> Path:
        if own and given is not None:
            return own_recipe.train(learning.file, given, preset, names, folder, report, **how)
        return recipe.train(learning.name, preset, names, folder, report, begin_with=begin_with, **how)

    if begin_with is not None and launched_first():
        options.print_notes(recipe.first_weights(begin_with, names))
    if learning.rehearsed(run, learning.sized(recipe.PRESETS[preset]), given):
        return
    with learning.training(["heads"]) as (processes, report):
        folder = run(learning.out, report, given, learning.sized(recipe.PRESETS[preset]), processes=processes)
    if processes.first:
        figures = read_json(folder / "heads.json")
        lines = _taus(figures["calibration"]["tau"], names, whose(figures))
        _note_short(figures, learning.as_json)
        use = f"the pair with its heads is in {folder}: use it with --pair {folder} --method eagle"
        options.print_found({"folder": str(folder), **figures}, learning.as_json, *lines, use)


def _taus(taus: Mapping[str, float], names: Sequence[str], apart: str) -> list[str]:
    """Of the heads that were trained; the pair's others are named, as their figures are of an earlier training."""
    lines = [f"{name:<8} tau of a chain of 8 on calibration clips{apart}: {taus[name]:.2f}" for name in names]
    others = sorted({*taus} - {*names})
    return [*lines, f"not trained now: {', '.join(others)}"] if others else lines


def _note_short(figures: Mapping[str, Any], as_json: bool) -> None:
    if figures.get("too_short") and not as_json:
        options.print_notes([f"{several(figures['too_short'], 'answer was', 'answers were')} too short to learn from"])


def _heads_for(
    learning: Learning, target: Path, device: str, dtype: str, preset: str, names: list[str], begin_with: str | None
) -> None:
    """For a checkpoint folder."""
    if learning.questions is None:
        raise BadInput("--target and --questions go together: a checkpoint folder, and a qa.jsonl about recordings")
    if learning.pair is not None or begin_with is not None:
        other = "--pair" if learning.pair is not None else "--begin-with"
        raise BadInput(f"{other} is for a pair, --target for a checkpoint folder: give one of them")
    models = options.Models(target=target, device=device)
    folders = models.check(["autoregressive"], options.Chosen())
    models.check_room(learning.max_new_tokens or 0, 0)
    given = learning.checked(folders, models.file())
    from eventspec.models.loading import LoadOptions
    from eventspec.train import heads as recipe
    from eventspec.train.own import train as learn

    how = LoadOptions.named(dtype, device=device)

    def run(folder: Path, report: Any, given: Given | None, preset: Any, **more: Any) -> Path:
        assert given is not None  # there are questions
        return learn(target, given, preset, names, folder, report, how, **more)

    if learning.rehearsed(run, learning.sized(recipe.PRESETS[preset]), given):
        return
    with learning.training(["heads"]) as (processes, report):
        folder = run(learning.out, report, given, learning.sized(recipe.PRESETS[preset]), processes=processes)
    if not processes.first:
        return
    figures = read_json(folder / "heads.json")
    judged = f"tau of a chain of 8 on {several(figures['judged'], 'answer')}{whose(figures)}"
    lines = [f"{name:<8} {judged}: {tau:.2f}" for name, tau in figures["calibration"]["tau"].items()]
    use = f"the heads are in {folder}: generate --target {target} --method eagle --head {folder / names[0]}"
    _note_short(figures, learning.as_json)
    options.print_found({"folder": str(folder), **figures}, learning.as_json, *lines, use)


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

    def run(folder: Path, report: Any, given: Given | None, preset: Any, **how: Any) -> Path:
        return recipe.train(learning.name, preset, folder, report, given=given, **how)

    if learning.rehearsed(run, learning.sized(recipe.PRESETS[preset]), given):
        return
    with learning.training([]) as (processes, report):
        folder = run(learning.out, report, given, learning.sized(recipe.PRESETS[preset]), processes=processes)
    if processes.first:
        figures = read_json(learning.out / recipe.FIGURES)
        apart = whose(figures) or ", held out"
        line = f"its likeliest tokens are {figures['tokens']:.1%} of those of {several(figures['judged'], 'answer')}{apart}"
        use = f"the pair with its prior is in {folder}: use it with --pair {folder} --method prior"
        options.print_found({"folder": str(folder), **figures}, learning.as_json, line, use)


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

    def run(folder: Path, report: Any, given: Given | None, size: Any) -> Path:
        few = "smoke" if learning.dry_run else size.name  # it has no steps
        return recipe.train(learning.name, few, folder, report, given)

    if learning.rehearsed(run, recipe.SIZES[preset], given):
        return
    with writing(learning.out), shown(("questions", "rounds")) as report:
        folder = run(learning.out, report, given, recipe.SIZES[preset])
    figures = read_json(learning.out / "mixture-report.json")
    lines = [
        f"{name:<12} calibration error {own['calibration_error']:.3f}, Brier {own['brier']:.3f}, {own['n']} tokens"
        for name, own in {**figures["before"], "mixture": figures["after"]}.items()
    ]
    if figures["learned_from"] and not learning.as_json:
        more = several(figures["learned_from"], "question is", "questions are")
        options.print_notes([f"what is held out was too little: {more} about recordings that other trainings learn from"])
    use = f"the pair with its mixture is in {folder}: use it with --pair {folder} --method hybrid"
    options.print_found({"folder": str(folder), **figures}, learning.as_json, *lines, use)


train_models.add_to(train)
