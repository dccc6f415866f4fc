"""The data sets whose layouts are known: which one a folder is, what it holds and lacks, and its questions as qa.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.files import check_writable, write_text
from eventspec.recordings import activitynet_qa, dsec, eventgpt_json, joining, llava_json, mvsec
from eventspec.recordings.cutting import asked, cut
from eventspec.recordings.examples import PREFIX
from eventspec.recordings.layout import Layout, QuestionSet, Report, Row, content_of, listed, opened
from eventspec.recordings.recording import Recording

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (dsec.LAYOUT, mvsec.LAYOUT, activitynet_qa.LAYOUT, eventgpt_json.LAYOUT, llava_json.LAYOUT)
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
    path: Path,
    kind: str | None = None,
    recordings: Path | None = None,
    split: str | None = None,
    dsec_folder: Path | None = None,
) -> tuple[Layout, QuestionSet]:
    """The questions of a data set whose recordings are there, or of event files as questions about the DSEC sequences that they
    were cut from; BadInput where there are none."""
    layout = layout_of(path, kind)
    _check_joins(layout, path, dsec_folder)
    found = _asked(layout, path, recordings, split)
    if dsec_folder is not None:
        found = joining.joined(found, dsec_folder)
    _check_some(path, found)
    return layout, found


def asked_of(
    path: Path,
    texts: Sequence[str],
    kind: str | None = None,
    recordings: Path | None = None,
    dsec_folder: Path | None = None,
    cutting: tuple[int, int] | None = None,
) -> tuple[str, QuestionSet]:
    """Questions without answers about a recording, or about all recordings of a data set; what it is, and the questions.
    `cutting`: about windows of so many microseconds, one every so many. BadInput where there is nothing to ask about."""
    layout = LAYOUTS.get(kind) if kind is not None else next((one for one in LAYOUTS.values() if one.matches(path)), None)
    if layout is None and kind is None:
        if recordings is not None or dsec_folder is not None:
            raise BadInput(f"{path}: is a recording, --recordings and --dsec are for data sets: leave them out")
        Recording.open(path)  # or it is none
        name, places, missing = "recording", [path], list[str]()
    else:
        layout = layout_of(path, kind)
        _check_joins(layout, path, dsec_folder)
        name, (places, missing) = layout.name, _recordings(layout, path, recordings)
    if dsec_folder is not None:
        matched = joining.matches(places, dsec_folder)
        about = [(match.sequence, match.window) for match in matched.values() if match.sequence is not None]
        found = asked(about, texts, (*missing, *joining.lines_of(matched)))
        found = replace(found, notes=joining.notes_of(matched))
    elif cutting is None:
        found = asked([(place, None) for place in places], texts, missing)
    else:
        found = cut(places, texts, *cutting, whole=places != [path], missing=missing)
    _check_some(path, found)
    return name, found


def _recordings(layout: Layout, path: Path, recordings: Path | None) -> tuple[list[Path], list[str]]:
    """The recordings of a data set, whatever it asks about them, and what is missing."""
    if layout.questions is None and recordings is not None:
        raise BadInput(f"{path}: {layout.title} has its own recordings: leave --recordings out")
    if layout.questions is None:
        return list(layout.contents(path)), []
    _check_folder(recordings)
    if layout.recordings is not None:
        return layout.recordings(path, recordings)
    found = layout.questions(path, recordings, None)
    return list(dict.fromkeys(row.recording for row in found.rows)), list(found.missing)


def _check_joins(layout: Layout, path: Path, dsec_folder: Path | None) -> None:
    if dsec_folder is None:
        return
    if layout is not eventgpt_json.LAYOUT:
        raise BadInput(f"{path}: is {layout.title}, --dsec is for event files of EventGPT's: leave it out")
    if not dsec_folder.is_dir():
        raise BadInput(f"{dsec_folder}: no such folder of DSEC sequences: check the path")


def _check_some(path: Path, found: QuestionSet) -> None:
    if found.rows:
        return
    gone = several(len(found.missing), "recording is", "recordings are")
    lacks = [f"{gone} missing, first {found.missing[0]}"] if found.missing else []
    lacks += [f"{several(found.left_out, 'window lacks', 'windows lack')} events or frames"] if found.left_out else []
    if found.notes and not lacks:
        raise BadInput(str(path.parent / found.notes[-1]))
    how = "see `eventspec dataset verify`, or name their folder with --recordings"
    raise BadInput(f"{path}: {', '.join(lacks) or 'no question'}: {how}")


def inspect_joined(layout: Layout, path: Path, recordings: Path | None, dsec_folder: Path) -> Report:
    """How many event files are joined with the DSEC sequences that they were cut from, by sequence."""
    _check_joins(layout, path, dsec_folder)
    files, missing = _recordings(layout, path, recordings)
    return joining.inspect(files, dsec_folder, missing)


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
    _check_folder(recordings)
    return layout.questions(path, recordings, split)


def _check_folder(recordings: Path | None) -> None:
    if recordings is not None and not recordings.is_dir():
        raise BadInput(f"{recordings}: no such folder of recordings: check the path")


def check_new(out: Path) -> None:
    """BadInput when the file is there already, or cannot be written."""
    if out.exists():
        raise BadInput(f"{out}: exists already: choose another name, or remove it first")
    check_writable(out)


def write_questions(out: Path, found: QuestionSet) -> None:
    """Write the rows as qa.jsonl, recordings relative to its folder; BadInput when the file is there already."""
    check_new(out)
    folder = out.resolve().parent
    places = {row.recording: _place(row.recording, folder) for row in found.rows}
    write_text(out, "".join(json.dumps(_line(row, places[row.recording])) + "\n" for row in found.rows))


def _place(recording: Path, folder: Path) -> str:
    """A recording as a line names it: relative to the file's folder, or bundled."""
    if str(recording).startswith(PREFIX):
        return str(recording)
    return Path(os.path.relpath(recording.parent.resolve() / recording.name, folder)).as_posix()


def _line(row: Row, recording: str) -> dict[str, Any]:
    window = None if row.window is None else [row.window.start_us, row.window.end_us]
    texts = {"kind": row.kind, "question": row.question, "answer": row.answer, "id": row.id}
    return {name: value for name, value in {"recording": recording, "window": window, **texts}.items() if value is not None}
