"""The data sets whose layouts are known: which one a folder is, what it holds and lacks, and its questions as qa.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path

from eventspec.core import BadInput, write_text
from eventspec.recordings import activitynet_qa, dsec, eventgpt_json, mvsec
from eventspec.recordings.layout import Layout, Questions

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (dsec.LAYOUT, mvsec.LAYOUT, activitynet_qa.LAYOUT, eventgpt_json.LAYOUT)
}


def layout_of(path: Path, kind: str | None = None) -> Layout:
    """The layout named, or the one that the path is; BadInput for a missing path, an unknown name, and where none fits."""
    if kind is not None and kind not in LAYOUTS:
        raise BadInput(f"kind {kind!r} is unknown: choose one of {', '.join(LAYOUTS)}")
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder: check the path")
    if kind is not None:
        return LAYOUTS[kind]
    found = next((layout for layout in LAYOUTS.values() if layout.matches(path)), None)
    if found is None:
        known = ", ".join(f"{layout.title} ({layout.name})" for layout in LAYOUTS.values())
        raise BadInput(f"{path}: is none of {known}: name the one it should be with --kind, to see the expected tree")
    return found


def questions_of(
    path: Path, kind: str | None = None, recordings: Path | None = None, split: str | None = None
) -> tuple[Layout, Questions]:
    """The questions of a data set whose recordings are there; BadInput where there are none."""
    layout = layout_of(path, kind)
    if layout.questions is None:
        asking = ", ".join(known.name for known in LAYOUTS.values() if known.questions is not None)
        raise BadInput(f"{path}: {layout.title} has no questions: those with questions are {asking}")
    if recordings is not None and not recordings.is_dir():
        raise BadInput(f"{recordings}: no such folder of recordings: check the path")
    found = layout.questions(path, recordings, split)
    if not found.rows:
        lacks = f"{len(found.missing)} recordings are missing, first {found.missing[0]}" if found.missing else "no question"
        raise BadInput(f"{path}: {lacks}: see `eventspec dataset verify`, or name their folder with --recordings")
    return layout, found


def write_questions(out: Path, found: Questions) -> None:
    """Write the rows as qa.jsonl, recordings relative to its folder; BadInput when the file is there already."""
    if out.exists():
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")
    folder = out.resolve().parent
    lines = (
        {
            "recording": Path(os.path.relpath(row.recording.parent.resolve() / row.recording.name, folder)).as_posix(),
            "kind": row.kind,
            "question": row.question,
            "answer": row.answer,
            "id": row.id,
        }
        for row in found.rows
    )
    write_text(out, "".join(json.dumps(line) + "\n" for line in lines))
