"""``eventspec dataset`` and ``scenes``: recordings with questions, downloaded or rendered, for `bench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventspec.cli import options
from eventspec.cli.bars import counted
from eventspec.cli.help import App
from eventspec.errors import BadInput, several
from eventspec.files import check_empty, check_outputs, check_writable

if TYPE_CHECKING:
    from eventspec.recordings.layout import Layout, Report

SHOWN = 10  # lines of a long list that are printed for people

app = App(help="Data sets on disk: DSEC, MVSEC, ActivityNet-QA, EventGPT instructions.", no_args_is_help=True)
scenes = App(help="The seeded synthetic street: frames, events, questions and answers.", no_args_is_help=True)

Place = Annotated[Path, options.path_argument("The data set's folder, or one file of it.")]
Kind = Annotated[str | None, typer.Option(help="dsec, mvsec, activitynet-qa or eventgpt (default: seen from the content).")]
Recordings = Annotated[
    Path | None, options.path("Folder of the videos, recordings or event files, if not in the data set's own.")
]


@app.command()
def verify(path: Place, kind: Kind = None, recordings: Recordings = None, as_json: options.AsJson = False) -> None:
    """Say what is there, what is missing and the expected tree; nothing is downloaded.

    With --recordings: open each recording that the questions are about, and say which are missing or lack events or frames.
    """
    from eventspec.recordings.datasets import inspect_recordings, layout_of

    layout = layout_of(path, kind)
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
    split: Annotated[str | None, typer.Option(help="ActivityNet-QA: train, val or test (default: all that are there).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the questions whose recordings are there, one JSON line each, for `bench compare --questions`."""
    from eventspec.recordings.datasets import questions_of, write_questions

    check_writable(out)
    layout, found = questions_of(path, kind, recordings, split)
    check_outputs({"--out": out}, {row.recording for row in found.rows})
    write_questions(out, found)
    recorded = len({row.recording for row in found.rows})
    if found.missing:
        options.print_notes(
            [several(len(found.missing), "recording is", "recordings are") + " missing: their questions are left out"]
        )
    options.print_notes(found.notes)
    counts = {"questions": len(found.rows), "recordings": recorded, "missing": list(found.missing)}
    about = {"kind": layout.name, "out": str(out), **counts}
    options.print_found(about, as_json, f"{out}: {several(len(found.rows), 'question')} about {several(recorded, 'recording')}")


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
