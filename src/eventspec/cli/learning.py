"""What the trainings of a pair's parts have in common: their options, what is checked before torch is imported, and what they
would take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli import options
from eventspec.cli.bars import Report, announced, shown
from eventspec.errors import BadInput, several
from eventspec.files import check_folder, check_outputs, read_json, writing
from eventspec.machine import SPREAD
from eventspec.train.names import Given, check_out, launched, launched_first, reexecute_with_allocator

if TYPE_CHECKING:
    from eventspec.models.loading import LoadOptions
    from eventspec.pairs.pair_file import PairFile
    from eventspec.train.answers import TrainingPreset
    from eventspec.train.processes import Processes

Out = Annotated[Path, options.path("Clips, answers, checkpoints, and the finished pair.")]
Resume = Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run, or its clips and answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the folder and the figures.")]
Work = Annotated[
    Path | None,
    options.path("For a pair of checkpoints: what its target said, shared by all trainings; by default in --out."),
]
Questions = Annotated[
    Path | None, options.path("For a pair of checkpoints: a qa.jsonl with recordings (image folders too) and questions.")
]
Longest = Annotated[
    int | None, typer.Option(min=4, help="With --questions: longest answer that is learned from; by default 96 tokens.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell time, memory and disk, from a run on a few questions; no more.")]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Recordings in a step of a process; default: the preset's. Memory goes with it.")
]
Trained = Annotated[
    str | None, typer.Option(help="Whose part is trained: a bundled pair (nano by default), or the folder of a pair.toml.")
]


ON_ALL = f"for a target on all devices (device {SPREAD}) a part is"
"""What takes one process."""


@dataclass(frozen=True)
class Learning:
    """The options of every training of a part."""

    out: Out
    pair: Trained = None
    questions: Questions = None
    work: Work = None
    max_new_tokens: Longest = None
    batch: Batch = None
    resume: Resume = False
    dry_run: DryRun = False
    as_json: AsJson = False

    @property
    def name(self) -> str:
        return self.pair or "nano"

    @property
    def file(self) -> PairFile:
        """The pair's; BadInput where there is none, BadCheckpoint for a broken one."""
        from eventspec.pairs.pair_file import PairFile, folder_of

        return PairFile.read(folder_of(self.name))

    def begin(self, anyway: bool = False, begin_with: str | None = None, events: bool = False) -> Given | None:
        """Check folders and pairs, and start this process again with an allocator that suits training. Gives the questions
        that the pair learns from, None for a pair of ours; `anyway`: that takes some too; `events`: something learns from
        those of the recordings."""
        from eventspec.pairs.fitting import check_loading
        from eventspec.pairs.pair_file import folder_of

        file = self.file
        file.check_models()
        if file.load is not None:
            names = ("dtype", "device", "drafter_device")
            check_loading(file.place("target"), *(file.load.get(name) for name in names))
            if file.load.get("device") == SPREAD:
                check_one_process(ON_ALL)
        if file.load is not None and self.questions is None:
            raise BadInput(f"pair {file.name} is of checkpoints: --questions names a qa.jsonl about recordings to learn from")
        given = {"--questions": self.questions, "--work": self.work, "--max-new-tokens": self.max_new_tokens}
        unfit = next((name for name, value in given.items() if value is not None), None)
        if file.load is None and unfit is not None and not (anyway and unfit == "--questions"):
            raise BadInput(f"{unfit} is for a pair of checkpoints, {file.name} learns from rendered clips: leave it out")
        file.check_kept(self.out / "pair")
        read = [file.folder, *(folder_of(one) for one in (begin_with,) if one is not None)]
        read += [file.place(role) for role in ("target", "drafter") if file.load is not None and role in file.files]
        return self.checked(read, file, events)

    def checked(self, read: Sequence[Path], file: PairFile, events: bool = False) -> Given | None:
        """The last of `begin`, for what is read besides, and the pair whose target answers."""
        from eventspec.pairs.fitting import suits
        from eventspec.pairs.names import BASELINE, EVENT_METHOD
        from eventspec.recordings.qa import read_questions
        from eventspec.recordings.recording import whole_of

        asked = (
            []
            if self.questions is None
            else read_questions(self.questions, check=suits(file, [EVENT_METHOD if events else BASELINE]))
        )
        recordings = [whole_of(one) for one in {question.recording for question in asked}]
        if launched_first() and not self.dry_run:
            check_out(self.out, self.resume)
            if self.work is not None:
                check_folder(self.work)
            check_outputs({"--out": self.out}, [*read, self.questions, *recordings])
            check_outputs({"--work": self.work}, [*read, self.questions, *recordings])
        reexecute_with_allocator(sys.argv[1:])
        # Whether what is gone on with is of this run is known later. What is no count of processes is refused first.
        if not self.resume and launched() and launched_first():
            announced("running through it on a few questions" if self.dry_run else f"training into {self.out}")
        if self.questions is None:
            return None
        return Given(self.questions, self.work or self.out, self.max_new_tokens or 96)

    def check_no_steps(self) -> None:
        """For what is counted, not trained in steps: BadInput for --batch."""
        if self.batch is not None:
            raise BadInput("--batch is for what is trained in steps, this is not: leave it out")

    def run(
        self,
        recipe: Callable[..., Path],
        preset: TrainingPreset,
        given: Given | None,
        stages: Sequence[str],
        figures_of: Callable[[Path], tuple[Mapping[str, Any], Sequence[str]]],
        seconds: float | None = None,
        target: tuple[Path, LoadOptions] | None = None,
        asks_again: bool = False,
    ) -> None:
        """Train, and print the figures of the folder that was written, and lines about them; with --dry-run, what that would
        take. `recipe`: one of `eventspec.train`, to which its preset, where to, and who takes part are still to be given.
        seconds: of training, where those of the preset's stage are not all. target: who answers, and how it is opened, if not
        the pair's; asks_again: and does so whatever the workspace holds."""
        preset = preset if self.batch is None else replace(preset, stage=replace(preset.stage, batch=self.batch))
        if self.dry_run:
            from eventspec.train.rehearsal import rehearse
            from eventspec.train.workspace import Answers, loading_of, who_answers

            if launched() > 1:
                raise BadInput("--dry-run measures one process: start it without torchrun")
            known = None
            if given is not None and not asks_again:
                place, how = target or (self.file.place("target"), loading_of(self.file))
                known = Answers(given.work, who_answers(place, how), given.longest)
            expected = rehearse(recipe, preset, given, seconds, known)
            options.print_found(asdict(expected), self.as_json, expected.line)
            return
        asked = {} if given is None else {"given": given}
        with self.training(stages) as (processes, report):
            folder = recipe(size=preset, out=self.out, report=report, processes=processes, **asked)
        if processes.first:
            figures, lines = figures_of(folder)
            options.print_found({"folder": str(folder), **figures}, self.as_json, *lines)

    def stages(self, *learned: str) -> tuple[str, ...]:
        """What is shown of a training: those that learn, after what gives the target's answers."""
        return (*(("render train", "render calibration") if self.questions is None else ("answer",)), *learned)

    def note(self, lines: Iterable[str]) -> None:
        """Notes beside the figures, for who reads them."""
        if not self.as_json:
            options.print_notes(lines)

    @contextmanager
    def training(self, stages: Sequence[str]) -> Iterator[tuple[Processes, Report]]:
        """The processes that take part, and what shows how far the stages are. A training that fails comes to all processes;
        were it a failure in each, the launcher might end the first before it has said why."""
        from eventspec.train.loop import TrainingFailed
        from eventspec.train.processes import started

        with writing(self.out), started() as processes, shown(stages, processes.first) as report:
            try:
                yield processes, report
            except TrainingFailed:
                if processes.first:
                    raise
                raise typer.Exit from None


def check_one_process(what: str) -> None:
    """BadInput where torchrun started several; `what`: the subject of the sentence."""
    if launched() > 1:
        raise BadInput(f"{what} trained in one process, not in {launched()}: start it without torchrun")


def whose(figures: Mapping[str, Any]) -> str:
    """What is to be added to a figure: where what it was measured on was learned from."""
    return ", which were learned from: there is one recording only" if figures.get("learned_from_judged") else ""


def agreement(path: Path, use: str) -> tuple[dict[str, Any], list[str]]:
    """The figures of a file, and how much of the target's answers was right before a training and after it, and its `use`."""
    figures, lines = read_json(path), list[str]()
    for name in ("before", "calibration"):
        own = figures[name]
        leading = f", the first {own['leading']:.1f} of an answer" if "leading" in own else ""
        said = f"{own['tokens']:.1%} of tokens{leading}, {own['answers']:.1%} of {several(own['n_answers'], 'answer')}"
        lines.append(f"{name:<12} {said}{whose(figures)}")
    return figures, [*lines, use]
