"""``eventspec train``: recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.bars import announced, shown
from eventspec.cli.help import App
from eventspec.errors import BadInput, check_known, several
from eventspec.files import check_empty, check_outputs, read_json, writing
from eventspec.train.names import (
    HEADS,
    PRESETS,
    check_kinds,
    check_losses,
    check_out,
    check_phases,
    launched,
    launched_first,
    reexecute_with_allocator,
)

if TYPE_CHECKING:
    from eventspec.models.loading import LoadOptions
    from eventspec.train.processes import Processes

train = App(help="Train the models that ship with eventspec, or your own of their kind.", no_args_is_help=True)

Out = Annotated[Path, options.path("Clips, answers, checkpoints, and the finished pair.")]
Resume = Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the figures.")]
HeadNames = Annotated[
    list[str] | None,
    typer.Option(
        help="By default eagle, eagle1, eagle3 and specvlm; also frugal, weighted, concat, hivis, msd, vispec, dream and "
        "massv. Repeatable."
    ),
]
PairOrNone = Annotated[
    str | None, typer.Option(help="Whose target the heads are for: a pair of ours (nano), or the folder of a pair.toml.")
]
Questions = Annotated[Path | None, options.path("For --target: a qa.jsonl with recordings (image folders too) and questions.")]
Begin = Annotated[
    str | None,
    typer.Option(help="Begin with the weights of this pair's heads, as far as they fit; the same pair, or another."),
]
BeginEmbedded = Annotated[
    str | None, typer.Option(help="Go on from the weights of this pair, with --preset cpu-tune: nano, or a pair's folder.")
]
EmbeddedPreset = Annotated[
    str, typer.Option(help="cpu (nano, 2.5 h on 2 cores), cpu-tune (1.5 h), gpu (base, 25 min), cpu-base (7 h) or smoke.")
]
Longest = Annotated[
    int | None, typer.Option(min=4, help="For --target: longest answer that heads learn from; by default 96 tokens.")
]
HeadsPreset = Annotated[
    str, typer.Option(help="cpu (1 h), gpu (8 min), with --begin-with cpu-tune (30 min) or gpu-tune (5 min), or smoke.")
]
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
AdapterPreset = Annotated[
    str, typer.Option(help="cpu (4 min for every kind, after a quarter of an hour of clips and answers), gpu or smoke.")
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
    check_known("preset", [preset], PRESETS["embedded"])
    _begin(out, resume, begin_with=begin_with, alone="a pair is")
    from eventspec.train import embedded as recipe

    with writing(out), shown(("render", "tower", "four", "eight", "distil", "fine")) as report:
        folder = recipe.train(preset, out, report, begin_with=begin_with)
    use = f"the trained pair is in {folder}: use it with --pair {folder}"
    options.print_found({"folder": str(folder), **read_json(folder / "provenance.json")}, as_json, use)


@train.command()
def heads(
    out: Out,
    pair: PairOrNone = None,
    target: Annotated[Path | None, options.path("The checkpoint folder of another target instead, with --questions.")] = None,
    questions: Questions = None,
    device: Annotated[str | None, typer.Option(help="For --target: cpu (the default), cuda, ...")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="For --target; the default is float32.")
    ] = None,
    max_new_tokens: Longest = None,
    head: HeadNames = None,
    begin_with: Begin = None,
    preset: HeadsPreset = "cpu",
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train heads for `--method eagle` and `specvlm` on the target's own features and answers.

    On several GPUs, or processes: torchrun --nproc-per-node N -m eventspec train heads ... Gradients are averaged, so a step
    learns from N batches; the output folder must be the same for all. A run may go on with another N.
    """
    from eventspec.recordings.qa import read_questions
    from eventspec.recordings.recording import whole_of

    names = list(dict.fromkeys(head or HEADS[:4]))
    check_known("head", names, HEADS)
    check_known("preset", [preset], PRESETS["heads"])
    if target is None and questions is None:
        for name, value in {"--device": device, "--dtype": dtype, "--max-new-tokens": max_new_tokens}.items():
            if value is not None:
                raise BadInput(f"{name} is for --target, a checkpoint folder: leave it out, or give --target and --questions")
        _heads_of_pair(pair or "nano", preset, names, out, resume, begin_with, as_json)
        return
    if target is None or questions is None:
        raise BadInput("--target and --questions go together: a checkpoint folder, and a qa.jsonl about recordings")
    if pair is not None or begin_with is not None:
        other = "--pair" if pair is not None else "--begin-with"
        raise BadInput(f"{other} is for a pair of ours, --target for a checkpoint folder: give one of them")
    _check_one_process("heads for --target are")
    check_out(out, resume)
    models, read = options.Models(target=target, device=device or "cpu"), read_questions(questions)
    folders = models.check(["autoregressive"], options.Chosen())
    models.check_room(max_new_tokens or 0, 0)
    check_outputs({"--out": out}, [*folders, questions, *(whole_of(one) for one in {asked.recording for asked in read})])
    announced(f"training into {out}")
    from eventspec.models.loading import LoadOptions

    how = LoadOptions.named(dtype or "float32", device=device or "cpu")
    _heads_for(target, questions, preset, names, out, how, max_new_tokens or 96, as_json)


def _heads_of_pair(
    pair: str, preset: str, names: list[str], out: Path, resume: bool, begin_with: str | None, as_json: bool
) -> None:
    _begin(out, resume, pair, begin_with)
    from eventspec.train import heads as recipe
    from eventspec.train.processes import started

    if begin_with is not None and launched_first():
        options.print_notes(recipe.first_weights(begin_with, names))
    stages = ("render train", "render calibration", "heads")
    with writing(out), started() as processes, shown(stages, processes.first) as report, _failing_once(processes):
        folder = recipe.train(pair, preset, names, out, report, processes=processes, begin_with=begin_with)
    if processes.first:
        figures = read_json(folder / "heads.json")
        lines = _taus(figures["calibration"]["tau"], names)
        use = f"the pair with its heads is in {folder}: use it with --pair {folder} --method eagle"
        options.print_found({"folder": str(folder), **figures}, as_json, *lines, use)


def _taus(taus: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Of the heads that were trained; the pair's others are named, as their figures are of an earlier training."""
    lines = [f"{name:<8} tau of a chain of 8 on calibration clips: {taus[name]:.2f}" for name in names]
    others = sorted({*taus} - {*names})
    return [*lines, f"not trained now: {', '.join(others)}"] if others else lines


def _heads_for(
    target: Path, questions: Path, preset: str, names: list[str], out: Path, how: LoadOptions, longest: int, as_json: bool
) -> None:
    from eventspec.train.own import train as learn

    with writing(out), shown(("answer", "heads")) as report:
        folder = learn(target, questions, preset, names, out, report, how, longest)
    figures = read_json(folder / "heads.json")
    again = ", which it learned from: there is one recording only" if figures["learned_from_judged"] else ""
    judged = f"tau of a chain of 8 on {several(figures['judged'], 'answer')}{again}"
    lines = [f"{name:<8} {judged}: {tau:.2f}" for name, tau in figures["calibration"]["tau"].items()]
    use = f"the heads are in {folder}: generate --target {target} --method eagle --head {folder / names[0]}"
    if figures["too_short"] and not as_json:
        options.print_notes([f"{several(figures['too_short'], 'answer was', 'answers were')} too short to learn from"])
    options.print_found({"folder": str(folder), **figures}, as_json, *lines, use)


@train.command()
def packer(
    out: Out,
    pair: Annotated[
        str, typer.Option(help="Whose target the packer is for: a bundled pair, or a pair.toml's folder.")
    ] = "nano",
    scale: Annotated[int, typer.Option(min=2, help="Patches a side that become one row: 2 leaves a quarter of the rows.")] = 2,
    preset: Annotated[str, typer.Option(help="cpu (12 min, after half an hour of clips and answers) or smoke.")] = "cpu",
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a packer for `--method compressed-target --compress packer:SCALE` on the target's own answers. It is lossy."""
    check_known("preset", [preset], PRESETS["packer"])
    _begin(out, resume, pair, alone="a packer is")
    from eventspec.train import packer as recipe

    with writing(out), shown(("render train", f"packer-{scale}")) as report:
        folder = recipe.train(pair, preset, scale, out, report)
    figures = read_json(folder / f"packers/{scale}/provenance.json")
    use = f"the pair with its packer is in {folder}: --pair {folder} --method compressed-target --compress packer:{scale}"
    options.print_found({"folder": str(folder), **figures}, as_json, *_agreement(figures), use)


@train.command()
def mixture(
    out: Annotated[Path, options.path("The finished pair and the report go here.")],
    pair: Annotated[str, typer.Option(help="Whose drafters are mixed: a bundled pair, or the folder of a pair.toml.")] = "nano",
    questions: Annotated[
        Path | None, options.path("A qa.jsonl to fit on; by default rendered clips of the calibration split.")
    ] = None,
    preset: Annotated[str, typer.Option(help="cpu (400 questions, some minutes) or smoke.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Fit how the drafters of `--method hybrid` are weighed against each other, on answers of the pair's target."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.recordings.qa import read_questions
    from eventspec.recordings.recording import whole_of

    check_known("preset", [preset], PRESETS["mixture"])
    folder = folder_of(pair)
    asked = None if questions is None else read_questions(questions)
    check_empty(out.resolve())
    check_outputs({"--out": out}, [folder, questions, *(whole_of(one.recording) for one in asked or ())])
    announced(f"training into {out}")
    from eventspec.train import mixture as recipe

    with writing(out), shown(("questions", "rounds")) as report:
        folder = recipe.train(pair, preset, out, report, asked)
    figures = read_json(out / "mixture-report.json")
    lines = [
        f"{name:<12} calibration error {own['calibration_error']:.3f}, Brier {own['brier']:.3f}, {own['n']} tokens"
        for name, own in {**figures["before"], "mixture": figures["after"]}.items()
    ]
    use = f"the pair with its mixture is in {folder}: use it with --pair {folder} --method hybrid"
    options.print_found({"folder": str(folder), **figures}, as_json, *lines, use)


@train.command()
def adapter(
    out: Out,
    pair: Between = "nano",
    kind: Kinds = None,
    output: Written = "rows",
    phase: Phases = None,
    loss: Losses = None,
    free_running: FreeRunning = False,
    preset: AdapterPreset = "cpu",
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train adapters for `--method aligned` and `event-eagle`: what an event model computes becomes what the target's own
    language model reads. Kinds attention, causal and constant write rows only.

    On several GPUs, or processes, as `train heads`.
    """
    phases, kinds = check_phases(phase or [], free_running), check_kinds(kind or ["bottleneck"], output)
    check_known("preset", [preset], PRESETS["adapters"])
    if free_running and output != "features":
        raise BadInput("--free-running pairs the tokens of two texts: it is for --output features")
    losses = check_losses(loss or [], output, phases)
    _begin(out, resume, pair)
    from eventspec.train import adapters as recipe
    from eventspec.train.processes import started

    written: Any = output
    stages = ("render train", "render calibration", *phases, *(["calibrate"] if written == "rows" else []))
    with writing(out), started() as processes, shown(stages, processes.first) as report, _failing_once(processes):
        wanted = recipe.Wanted(kinds, written, phases, free_running, losses)
        folder = recipe.train(pair, preset, wanted, out, report, processes=processes)
    if not processes.first:
        return
    figures = read_json(folder / recipe.FIGURES)
    made = {name: figures["calibration"][name] for name in (recipe.name_of(one, written) for one in kinds)}
    if not as_json:
        failed = {name: own["not_calibrated"] for name, own in made.items() if own.get("not_calibrated") is not None}
        options.print_notes(f"{name} is not calibrated for --method skip-encode: {why}" for name, why in failed.items())
    lines = [
        f"{name:<19} {own['tokens']:.1%} of the held-out tokens right, {own['leading']:.1f} leading ones of an answer, "
        f"{own['answers']:.1%} of {several(own['n_answers'], 'answer')} whole"
        for name, own in made.items()
    ]
    method, best = "aligned" if written == "rows" else "event-eagle", max(made, key=lambda name: made[name]["leading"])
    use = f"the pair with its adapters is in {folder}: use it with --pair {folder} --method {method} --adapter {best}"
    if free_running:
        use = f"two texts that differ give no drafts: the figures are in {folder / recipe.FIGURES}, and there is no pair"
    options.print_found({"folder": str(folder), **figures}, as_json, *lines, use)


@train.command()
def lora(
    out: Out,
    pair: Annotated[
        str, typer.Option(help="Whose event drafter learns: a bundled pair, or the folder of a pair.toml.")
    ] = "nano",
    rank: Annotated[int, typer.Option(min=1, max=1024, help="Of the update of every product of its language model.")] = 8,
    preset: Annotated[str, typer.Option(help="cpu (4 min, after a quarter of an hour of clips and answers) or smoke.")] = "cpu",
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train low-rank updates (LoRA) of an event drafter on the answers of its target, for `--drafter lora`."""
    check_known("preset", [preset], PRESETS["lora"])
    _begin(out, resume, pair, alone="low-rank updates are")
    from eventspec.train import lora as recipe

    recipe.check_rank(rank)
    recipe.check_peft()
    with writing(out), shown(("render train", "render calibration", recipe.NAME)) as report:
        folder = recipe.train(pair, preset, rank, out, report)
    figures = read_json(folder / recipe.FOLDER / recipe.FIGURES)
    use = f"the pair with its drafter is in {folder}: --pair {folder} --method cross-modal --drafter {recipe.NAME}"
    options.print_found({"folder": str(folder), **figures}, as_json, *_agreement(figures), use)


@contextmanager
def _failing_once(processes: Processes) -> Iterator[None]:
    """A training that fails comes to all of its processes; were it a failure in each, the launcher might end the first before
    it has said why."""
    from eventspec.train.loop import TrainingFailed

    try:
        yield
    except TrainingFailed:
        if processes.first:
            raise
        raise typer.Exit from None


def _check_one_process(what: str) -> None:
    """BadInput where torchrun started several; `what`: the subject of the sentence."""
    if launched() > 1:
        raise BadInput(f"{what} trained in one process, not in {launched()}: start it without torchrun")


def _begin(out: Path, resume: bool, pair: str | None = None, begin_with: str | None = None, alone: str = "") -> None:
    """Check the folder, the pairs, and for `alone` that it is one process; start that again with an allocator that suits
    training."""
    from eventspec.pairs.pair_file import folder_of

    if alone:
        _check_one_process(alone)
    read = [folder_of(one) for one in (pair, begin_with) if one is not None]
    if launched_first():
        check_out(out, resume)
        check_outputs({"--out": out}, read)
    reexecute_with_allocator(sys.argv[1:])
    # Whether what is gone on with is of this run is known later. What is no count of processes is refused first.
    if not resume and launched() and launched_first():
        announced(f"training into {out}")


def _agreement(figures: dict[str, Any]) -> list[str]:
    """How much of the target's answers was right before a training and after it."""
    lines = []
    for name in ("before", "calibration"):
        own = figures[name]
        leading = f", the first {own['leading']:.1f} of an answer" if "leading" in own else ""
        lines.append(
            f"{name:<12} {own['tokens']:.1%} of tokens{leading}, {own['answers']:.1%} of {several(own['n_answers'], 'answer')}"
        )
    return lines
