"""The data sets whose layouts are known: which one a folder is, what it holds and lacks, and its questions as qa.jsonl."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.files import write_text
from eventspec.recordings import activitynet_qa, dsec, eventgpt_json, mvsec
from eventspec.recordings.layout import Layout, QuestionSet, Report, content_of, listed, opened
from eventspec.recordings.recording import Recording

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (dsec.LAYOUT, mvsec.LAYOUT, activitynet_qa.LAYOUT, eventgpt_json.LAYOUT)
}


def layout_of(path: Path, kind: str | None = None) -> Layout:
    """The layout named, or the one that the path is; BadInput for a missing path, an unknown name, and where none fits."""
    if kind is not None and kind not in LAYOUTS:
        raise BadInput(f"kind {kind!r} is unknown: choose one of {', '.join(LAYOUTS)}")
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder: check the path")
    found = LAYOUTS.get(kind or "") or next((layout for layout in LAYOUTS.values() if layout.matches(path)), None)
    if found is None or not found.matches(path):  # a damaged file may be why
        for file in [path] if path.is_file() else listed(path):
            if file.suffix.lower() == ".json" and file.is_file():
                content_of(file)
    if found is None:
        known = ", ".join(f"{layout.title} ({layout.name})" for layout in LAYOUTS.values())
        raise BadInput(f"{path}: is none of {known}: name the one it should be with --kind, to see the expected tree")
    return found


def questions_of(
    path: Path, kind: str | None = None, recordings: Path | None = None, split: str | None = None
) -> tuple[Layout, QuestionSet]:
    """The questions of a data set whose recordings are there; BadInput where there are none."""
    layout = layout_of(path, kind)
    found = _asked(layout, path, recordings, split)
    if not found.rows:
        lacks = (
            several(len(found.missing), "recording is", "recordings are") + f" missing, first {found.missing[0]}"
            if found.missing
            else "no question"
        )
        raise BadInput(f"{path}: {lacks}: see `eventspec dataset verify`, or name their folder with --recordings")
    return layout, found


def inspect_recordings(layout: Layout, path: Path, recordings: Path) -> Report:
    """Every recording that the data set's questions are about, opened in the folder given: what it holds.

    missing: one line for each that is not there, and for each thing that one lacks: an event drafter needs events, a video
    model frames.
    """
    found = _asked(layout, path, recordings, None)
    paths = dict.fromkeys(row.recording for row in found.rows)
    report = opened(paths, recordings, Recording.open, lambda _: [], f"any recording in {recordings}")
    readable = [part for part in report.parts if part.facts]
    lacks = [f"{part.name}: has no {what}" for part in readable for what in ("events", "frames") if not part.facts[what]]
    return replace(report, missing=(*found.missing, *lacks) if report.parts or found.missing else report.missing)


def _asked(layout: Layout, path: Path, recordings: Path | None, split: str | None) -> QuestionSet:
    if layout.questions is None:
        asking = ", ".join(known.name for known in LAYOUTS.values() if known.questions is not None)
        raise BadInput(f"{path}: {layout.title} has no questions: those with questions are {asking}")
    if recordings is not None and not recordings.is_dir():
        raise BadInput(f"{recordings}: no such folder of recordings: check the path")
    return layout.questions(path, recordings, split)


def write_questions(out: Path, found: QuestionSet) -> None:
    """Write the rows as qa.jsonl, recordings relative to its folder; BadInput when the file is there already."""
    if out.exists():
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")
    folder = out.resolve().parent
    rows = [
        {
            **asdict(row),
            "recording": Path(os.path.relpath(row.recording.parent.resolve() / row.recording.name, folder)).as_posix(),
        }
        for row in found.rows
    ]
    write_text(out, "".join(json.dumps(line) + "\n" for line in rows))
