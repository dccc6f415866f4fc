"""``eventspec dataset`` and ``scenes``: recordings with questions, downloaded or rendered, for `bench compare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventspec.cli import options
from eventspec.cli.bars import counted
from eventspec.cli.help import App
from eventspec.errors import BadInput, several
from eventspec.files import check_empty, check_outputs

if TYPE_CHECKING:
    from eventspec.recordings.layout import Layout, Report

UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
SHOWN = 10  # lines of a long list that are printed for people

app = App(help="Data sets on disk: DSEC, MVSEC, ActivityNet-QA, EventGPT and LLaVA instructions.", no_args_is_help=True)
scenes = App(help="The seeded synthetic street: frames, events, questions and answers.", no_args_is_help=True)

Place = Annotated[Path, options.path_argument("The data set's folder, or one file of it.")]
Kind = Annotated[
    str | None, typer.Option(help="dsec, mvsec, activitynet-qa, eventgpt or llava (default: seen from the content).")
]
Recordings = Annotated[
    Path | None, options.path("Folder of the videos, images, recordings or event files, if not in the data set's own.")
]
Dsec = Annotated[
    Path | None,
    options.path("EventGPT: folder of the DSEC sequences that its event files were cut from, whose frames are seen then."),
]


@app.command()
def verify(
    path: Place, kind: Kind = None, recordings: Recordings = None, dsec: Dsec = None, as_json: options.AsJson = False
) -> None:
    """Say what is there, what is missing and the expected tree; nothing is downloaded.

    With --recordings: open each recording that the questions are about, and say which are missing or lack events or frames.
    With --dsec: say how many event files are joined with their sequences, and why others are not.
    """
    from eventspec.recordings.datasets import inspect_joined, inspect_recordings, layout_of

    layout = layout_of(path, kind)
    if dsec is not None:
        report = inspect_joined(layout, path, recordings, dsec)
    else:
        report = layout.inspect(path) if recordings is None else inspect_recordings(layout, path, recordings)
    most_missing = SHOWN if recordings is None else len(report.missing)
    found = {
        "kind": layout.name,
        "path": str(path),
        "complete": bool(report.parts) and not report.missing and not report.wrong,
        "parts": [{"name": part.name, **part.facts} for part in report.parts],
        "missing": list(report.missing),
        "wrong": list(report.wrong),
        "expected": layout.tree,
    }
    options.print_found(found, as_json, *_lines(path, layout, report, most_missing))
    if not report.parts and not report.wrong:
        raise BadInput(f"{path}: nothing of {layout.title} is there, which starts with {report.missing[0]}")


@app.command()
def questions(
    path: Place,
    out: Annotated[Path, options.path("The qa.jsonl to write.", show_default=False)],
    kind: Kind = None,
    recordings: Recordings = None,
    dsec: Dsec = None,
    ask: Annotated[
        Path | None, options.path("Ask these about a recording or a data set's recordings: a text file, one question a line.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="With --ask: about windows so long each, such as 1s, 500ms.")] = None,
    stride: Annotated[str | None, typer.Option(help="From one window's start to the next (default: end to end).")] = None,
    split: Annotated[str | None, typer.Option(help="ActivityNet-QA: train, val or test (default: all that are there).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the questions whose recordings are there, one JSON line each, for `bench compare --questions` and trainings.

    With --ask they have no answers: the target gives them in a training.
    """
    from eventspec.recordings.datasets import asked_of, check_new, questions_of, write_questions

    cutting = _cutting(ask, window, stride, dsec, split)
    check_new(out)
    if ask is None:
        layout, found = questions_of(path, kind, recordings, split, dsec)
        name = layout.name
    else:
        from eventspec.recordings.cutting import texts_of

        name, found = asked_of(path, texts_of(ask), kind, recordings, dsec, cutting)
    check_outputs({"--out": out}, {row.recording for row in found.rows})
    write_questions(out, found)
    recorded = len({row.recording for row in found.rows})
    windows = len({(row.recording, row.window) for row in found.rows if row.window is not None})
    if found.missing:
        joins = " or not joined" if dsec is not None else ""
        gone = several(len(found.missing), "recording is", "recordings are")
        options.print_notes([f"{gone} missing{joins}: their questions are left out"])
    if found.left_out:
        lacking = several(found.left_out, "window is", "windows are")
        options.print_notes([f"{lacking} left out: events or frames are missing there"])
    options.print_notes(found.notes)
    counts = {"questions": len(found.rows), "recordings": recorded, "missing": list(found.missing)}
    about = {"kind": name, "out": str(out), **counts, "windows": windows, "left_out": found.left_out}
    whole = several(recorded, "recording")
    what = f"{several(windows, 'window')} of {whole}" if windows else whole
    options.print_found(about, as_json, f"{out}: {several(len(found.rows), 'question')} about {what}")


def _cutting(
    ask: Path | None, window: str | None, stride: str | None, dsec: Path | None, split: str | None
) -> tuple[int, int] | None:
    """Length and stride of the windows in microseconds, None without --window; BadInput for options that do not go together."""
    if ask is None and (window is not None or stride is not None):
        raise BadInput("--window and --stride cut recordings that --ask asks about: give --ask QUESTIONS.txt as well")
    if ask is not None and split is not None:
        raise BadInput("--split chooses the questions of a data set, --ask brings its own: give one of them")
    if window is not None and dsec is not None:
        raise BadInput("--dsec finds the windows that event files are, --window cuts others: give one of them")
    if window is None:
        if stride is not None:
            raise BadInput("--stride is from one window to the next: give --window as well")
        return None
    length = _microseconds("--window", window)
    return length, length if stride is None else _microseconds("--stride", stride)


def _microseconds(option: str, text: str) -> int:
    """A length of time: 1s, 500ms, 50000us, or microseconds without a unit."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)(us|ms|s)?", text, flags=re.ASCII)
    length = 0 if found is None else round(UNITS[found[2] or "us"] * float(found[1]))
    if not 1 <= length < 1 << 62:
        raise BadInput(f"{option} {text} is no length of time: give one such as 1s, 500ms or 50000us")
    return length


@scenes.command()
def make(
    out: Annotated[Path, options.path("A folder that does not exist yet.")],
    clips: Annotated[int, typer.Option(max=1_000_000, help="How many one-second clips.")] = 20,
    split: Annotated[str, typer.Option(help="train, calibration or test: disjoint seeds.")] = "test",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Render clips with events, facts and questions: clip_000000/..., qa.jsonl."""
    check_empty(out)  # before numba is imported
    from eventspec.scenes.writer import write_scenes

    with counted("rendering") as show:
        write_scenes(out, clips, split, seed, lambda done: show(done, clips))
    questions = out / "qa.jsonl"
    made = {"clips": clips, "split": split, "seed": seed, "folder": str(out), "questions": str(questions)}
    options.print_found(made, as_json, f"{several(clips, 'clip')} in {out}, questions in {questions}")


def _lines(path: Path, layout: Layout, report: Report, most_missing: int) -> list[str]:
    width = max((len(part.name) for part in report.parts), default=0)
    there = []
    for part in report.parts:
        facts = (f"{name} {'-' if value is None else value}" for name, value in part.facts.items())
        there.append("   ".join([f"{part.name:{width}}", *facts]).rstrip())
    return [
        f"{path}: {layout.title} ({layout.name})",
        *_section("there", there, SHOWN),
        *_section("missing", report.missing, most_missing),
        *_section("wrong", report.wrong, SHOWN),
        *["expected:", *(f"  {line}" for line in layout.tree.splitlines())],
    ]


def _section(title: str, lines: Sequence[str], most: int) -> list[str]:
    more = [f"  ... and {len(lines) - most} more (--json lists all)"] if len(lines) > most else []
    return [f"{title}:", *(f"  {line}" for line in lines[:most]), *more] if lines else []
