"""``eventspec train``: recipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli.bars import shown
from eventspec.cli.help import App
from eventspec.cli.paths import given_path
from eventspec.cli.train_adapter import adapter
from eventspec.cli.train_lora import lora
from eventspec.cli.training import check_empty, check_out, check_preset, failing_once

train = App(help="Train the models that ship with eventspec, or your own of their kind.", no_args_is_help=True)


@train.callback()
def _group() -> None:
    pass


@train.command()
def embedded(
    out: Annotated[Path, typer.Option(parser=given_path, help="Rendered clips, checkpoints and the finished pair go here.")],
    preset: Annotated[
        str, typer.Option(help="cpu (nano, 2.5 h on 2 cores), cpu-tune (1.5 h), gpu (base, 25 min), cpu-base (7 h) or smoke.")
    ] = "cpu",
    begin_with: Annotated[
        str | None, typer.Option(help="Go on from the weights of this pair, with --preset cpu-tune: nano, or a pair's folder.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and its provenance.")] = False,
) -> None:
    """Train the embedded pair: a small Video-LLaVA on the synthetic street and an event drafter distilled on its answers."""
    from eventspec.core import BadInput
    from eventspec.train import embedded as recipe
    from eventspec.train.processes import launched

    if launched() > 1:
        raise BadInput(f"the embedded pair is trained in one process, not in {launched()}: start it without torchrun")
    check_preset(preset, recipe.PRESETS)
    check_out(out, resume)
    recipe.reexecute_with_allocator(sys.argv[1:])

    with shown(("render", "tower", "four", "eight", "distil", "fine")) as report:
        folder = recipe.train(preset, out, report, begin_with=begin_with)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **json.loads((folder / "provenance.json").read_text())}))
        return
    typer.echo(f"the trained pair is in {folder}: use it with --pair {folder}")


@train.command()
def heads(
    out: Annotated[Path, typer.Option(parser=given_path, help="Clips, answers, checkpoints, and the finished pair or heads.")],
    pair: Annotated[
        str | None, typer.Option(help="Whose target the heads are for: a pair of ours (nano), or the folder of a pair.toml.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(parser=given_path, help="The checkpoint folder of a target of your own instead, with --questions."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(parser=given_path, help="For --target: a qa.jsonl with recordings (image folders too) and questions."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="For --target: cpu (the default), cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="For --target: float32 (the default), bfloat16 or float16.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=4, help="For --target: longest answer that heads learn from; by default 96 tokens.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="By default eagle, eagle1, eagle3 and specvlm; also frugal, weighted, concat, hivis, msd, vispec, dream and "
            "massv. Repeatable."
        ),
    ] = None,
    begin_with: Annotated[
        str | None,
        typer.Option(help="Begin with the weights of this pair's heads, as far as they fit; the same pair, or another."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="cpu (1 h), gpu (8 min), with --begin-with cpu-tune (30 min) or gpu-tune (5 min), or smoke."),
    ] = "cpu",
    resume: Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the acceptance.")] = False,
) -> None:
    """Train heads on a target's features (EAGLE, EAGLE-3, SpecVLM and neighbours) by distillation from its running pass.

    For a pair of ours on rendered clips; with --target and --questions for any checkpoint folder that `generate` takes as a
    target, on recordings and questions of your own, which the target answers itself.

    On several GPUs, or processes: torchrun --nproc-per-node N -m eventspec train heads ... Gradients are averaged, so a step
    learns from N batches; the output folder must be the same for all. A run may go on with another N.
    """
    from eventspec.train import heads as recipe

    names = list(recipe.checked(head or recipe.NAMES))
    check_preset(preset, recipe.PRESETS)
    if target is None and questions is None:
        given = {"--device": device, "--dtype": dtype, "--max-new-tokens": max_new_tokens}
        _only_for_target(given)
        _heads_of_pair(pair or "nano", preset, names, out, resume, begin_with, as_json)
        return
    _own_target(target, questions, pair, begin_with)
    assert target is not None
    assert questions is not None
    check_out(out, resume)
    where = (device or "cpu", dtype or "float32")
    _heads_for(target, questions, preset, names, out, where, max_new_tokens or 96, as_json)


def _heads_of_pair(
    pair: str, preset: str, names: list[str], out: Path, resume: bool, begin_with: str | None, as_json: bool
) -> None:
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train import heads as recipe
    from eventspec.train.embedded import reexecute_with_allocator
    from eventspec.train.processes import launched_first, started

    folder_of(pair)
    if launched_first():
        check_out(out, resume)
        if begin_with is not None:
            _tell_first_weights(begin_with, names)
    reexecute_with_allocator(sys.argv[1:])
    stages = ("render train", "render calibration", "heads")
    with started() as processes, shown(stages, processes.first) as report, failing_once(processes):
        folder = recipe.train(pair, preset, names, out, report, processes=processes, begin_with=begin_with)
    if not processes.first:
        return
    recorded = json.loads((folder / "heads.json").read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for name, tau in recorded["calibration"]["tau"].items():
        typer.echo(f"{name:<8} tau of a chain of 8 on calibration clips: {tau:.2f}")
    typer.echo(f"the pair with its heads is in {folder}: use it with --pair {folder} --method eagle")


def _only_for_target(given: Mapping[str, object]) -> None:
    """BadInput for options that a pair of ours does not heed."""
    from eventspec.core import BadInput

    for name, value in given.items():
        if value is not None:
            raise BadInput(f"{name} is for --target, a checkpoint folder: leave it out, or give --target and --questions")


def _own_target(target: Path | None, questions: Path | None, pair: str | None, begin_with: str | None) -> None:
    """BadInput for options that do not go together with a target of one's own."""
    from eventspec.core import BadInput
    from eventspec.train.processes import launched

    if target is None or questions is None:
        raise BadInput("--target and --questions go together: a checkpoint folder, and a qa.jsonl about recordings")
    if pair is not None or begin_with is not None:
        other = "--pair" if pair is not None else "--begin-with"
        raise BadInput(f"{other} is for a pair of ours, --target for a checkpoint folder: give one of them")
    if launched() > 1:
        raise BadInput(f"heads for --target are trained in one process, not in {launched()}: start it without torchrun")


def _heads_for(
    target: Path, questions: Path, preset: str, names: list[str], out: Path, where: tuple[str, str], longest: int, as_json: bool
) -> None:
    import torch

    from eventspec.core import BadInput
    from eventspec.models.loading import LoadOptions
    from eventspec.train.own import train as learn

    device, dtype = where
    if dtype not in ("float32", "bfloat16", "float16"):
        raise BadInput(f"dtype '{dtype}' is unknown: choose float32, bfloat16 or float16")
    with shown(("answer", "heads")) as report:
        folder = learn(target, questions, preset, names, out, report, LoadOptions(getattr(torch, dtype), device), longest)
    recorded = json.loads((folder / "heads.json").read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for name, tau in recorded["calibration"]["tau"].items():
        again = ", which it learned from: there is one recording only" if recorded["learned_from_judged"] else ""
        typer.echo(f"{name:<8} tau of a chain of 8 on {recorded['judged']} answers{again}: {tau:.2f}")
    if recorded["too_short"]:
        typer.echo(f"note: {recorded['too_short']} answers were too short to learn from", err=True)
    typer.echo(f"the heads are in {folder}: generate --target {target} --method eagle --head {folder / names[0]}")


@train.command()
def packer(
    out: Annotated[Path, typer.Option(parser=given_path, help="Rendered clips, answers, checkpoints and the finished pair.")],
    pair: Annotated[
        str, typer.Option(help="Whose target the packer is for: a bundled pair, or the folder of a pair.toml.")
    ] = "nano",
    scale: Annotated[int, typer.Option(help="Patches a side that become one row: 2 leaves a quarter of the rows.")] = 2,
    preset: Annotated[str, typer.Option(help="cpu (12 min, after half an hour of clips and answers) or smoke.")] = "cpu",
    resume: Annotated[
        bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the agreement.")] = False,
) -> None:
    """Train a packer for `--method compressed-target --compress packer:SCALE` on the target's own answers. It is lossy."""
    from eventspec.core import BadInput
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train import packer as recipe
    from eventspec.train.embedded import reexecute_with_allocator
    from eventspec.train.processes import launched

    if launched() > 1:
        raise BadInput(f"a packer is trained in one process, not in {launched()}: start it without torchrun")
    check_preset(preset, recipe.PRESETS)
    folder_of(pair)
    check_out(out, resume)
    reexecute_with_allocator(sys.argv[1:])
    with shown(("render train", f"packer-{scale}")) as report:
        folder = recipe.train(pair, preset, scale, out, report)
    recorded = json.loads((folder / f"packers/{scale}/provenance.json").read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for name in ("before", "calibration"):
        figures = recorded[name]
        typer.echo(f"{name:<12} {figures['tokens']:.1%} of tokens, {figures['answers']:.1%} of {figures['n_answers']} answers")
    typer.echo(f"the pair with its packer is in {folder}: --pair {folder} --method compressed-target --compress packer:{scale}")


@train.command()
def mixture(
    out: Annotated[Path, typer.Option(parser=given_path, help="The finished pair and the report go here.")],
    pair: Annotated[str, typer.Option(help="Whose drafters are mixed: a bundled pair, or the folder of a pair.toml.")] = "nano",
    questions: Annotated[
        Path | None,
        typer.Option(parser=given_path, help="A qa.jsonl to fit on; by default rendered clips of the calibration split."),
    ] = None,
    preset: Annotated[str, typer.Option(help="cpu (400 questions, some minutes) or smoke.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the report.")] = False,
) -> None:
    """Fit how the drafters of `--method hybrid` are weighed against each other, on answers of the pair's target."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.recordings.qa import read_questions
    from eventspec.train import mixture as recipe

    check_preset(preset, recipe.PRESETS)
    folder_of(pair)
    asked = None if questions is None else read_questions(questions)
    check_empty(out)
    with shown(("questions", "rounds")) as report:
        folder = recipe.train(pair, preset, out, report, asked)
    recorded = json.loads((out / "mixture-report.json").read_text())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **recorded}))
        return
    for name, figures in {**recorded["before"], "mixture": recorded["after"]}.items():
        wrong = f"calibration error {figures['calibration_error']:.3f}, Brier {figures['brier']:.3f}"
        typer.echo(f"{name:<12} {wrong}, {figures['n']} tokens")
    typer.echo(f"the pair with its mixture is in {folder}: use it with --pair {folder} --method hybrid")


def _tell_first_weights(pair: str, names: list[str]) -> None:
    """A line on standard error for every head that begins with another head's weights, or finds none in the pair."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.train.heads import earlier_head

    for name in names:
        earlier = folder_of(pair) / "heads" / earlier_head(name)
        if not earlier.is_dir():
            typer.echo(
                f"note: pair {pair} has no head {earlier.name}: {name} has nothing to begin with but random weights", err=True
            )
        elif earlier.name != name:
            typer.echo(f"note: {name} begins with the weights of the pair's head {earlier.name}", err=True)


train.command()(adapter)
train.command()(lora)
