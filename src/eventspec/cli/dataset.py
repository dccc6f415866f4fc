"""``eventspec dataset``: what a downloaded data set holds and lacks, and its questions for `bench compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli.help import App
from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.recordings.layout import Layout, Part, Report

SHOWN = 10  # lines of a long list that are printed for people

app = App(help="Data sets on disk: DSEC, MVSEC, ActivityNet-QA, EventGPT instructions.", no_args_is_help=True)

Place = Annotated[Path, typer.Argument(parser=given_path, help="The data set's folder, or one file of it.", show_default=False)]
Kind = Annotated[str | None, typer.Option(help="dsec, mvsec, activitynet-qa or eventgpt (default: seen from the content).")]
Recordings = Annotated[
    Path | None,
    typer.Option(parser=given_path, help="Folder of the videos, recordings or event files, if not in the data set's own."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def verify(path: Place, kind: Kind = None, recordings: Recordings = None, as_json: AsJson = False) -> None:
    """Say what is there, what is missing and the expected tree; nothing is downloaded.

    With --recordings: open each recording that the questions are about, and say which are missing or lack events or frames.
    """
    from eventspec.core import BadInput
    from eventspec.recordings.datasets import inspect_recordings, layout_of

    layout = layout_of(path, kind)
    report = layout.inspect(path) if recordings is None else inspect_recordings(layout, path, recordings)
    if as_json:
        typer.echo(json.dumps(_told(path, layout, report)))
    else:
        _print(path, layout, report, SHOWN if recordings is None else len(report.missing))
    if not report.parts and not report.wrong:
        raise BadInput(f"{path}: nothing of {layout.title} is there, which starts with {report.missing[0]}")


@app.command()
def questions(
    path: Place,
    out: Annotated[Path, typer.Option(parser=given_path, help="The qa.jsonl to write.", show_default=False)],
    kind: Kind = None,
    recordings: Recordings = None,
    split: Annotated[str | None, typer.Option(help="ActivityNet-QA: train, val or test (default: all that are there).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the questions whose recordings are there, one JSON line each, for `bench compare --questions`."""
    from eventspec.recordings.datasets import questions_of, write_questions

    layout, found = questions_of(path, kind, recordings, split)
    write_questions(out, found)
    recorded = len({row.recording for row in found.rows})
    left_out = f"{len(found.missing)} recordings are missing: their questions are left out"
    for note in (*((left_out,) if found.missing else ()), *found.notes):
        typer.echo(f"note: {note}", err=True)
    if as_json:
        counts = {"questions": len(found.rows), "recordings": recorded, "missing": list(found.missing)}
        typer.echo(json.dumps({"kind": layout.name, "out": str(out), **counts}))
        return
    typer.echo(f"{out}: {len(found.rows)} questions about {recorded} recordings")


def _told(path: Path, layout: Layout, report: Report) -> dict[str, Any]:
    return {
        "kind": layout.name,
        "path": str(path),
        "complete": bool(report.parts) and not report.missing and not report.wrong,
        "parts": [{"name": part.name, **part.facts} for part in report.parts],
        "missing": list(report.missing),
        "wrong": list(report.wrong),
        "expected": layout.tree,
    }


def _print(path: Path, layout: Layout, report: Report, most_missing: int) -> None:
    typer.echo(f"{path}: {layout.title} ({layout.name})")
    width = max((len(part.name) for part in report.parts), default=0)
    _list("there", [f"{part.name:{width}}   {_facts(part)}".rstrip() for part in report.parts])
    _list("missing", list(report.missing), most_missing)
    _list("wrong", list(report.wrong))
    typer.echo("expected:")
    for line in layout.tree.splitlines():
        typer.echo(f"  {line}")


def _facts(part: Part) -> str:
    return "   ".join(f"{name} {'-' if fact is None else fact}" for name, fact in part.facts.items())


def _list(title: str, lines: list[str], most: int = SHOWN) -> None:
    if not lines:
        return
    typer.echo(f"{title}:")
    for line in lines[:most]:
        typer.echo(f"  {line}")
    if len(lines) > most:
        typer.echo(f"  ... and {len(lines) - most} more (--json lists all)")
