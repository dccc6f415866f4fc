"""EventGPT's instruction JSON: conversations about event files, each of which is a recording of its own without frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventspec.core import BadInput
from eventspec.recordings import layout
from eventspec.recordings.layout import listed, records, shown, text_of
from eventspec.recordings.parts import inside

NAME = "eventgpt"
EVENT_TOKEN = "<event>"
KINDS = ("instruction", "follow-up")
FOLDERS = (".", "event_npy", "event_data", "events")
SNIFFED_BYTES = 1 << 16
NO_FRAMES = "the event files have no frames: a video model, and with it `bench compare`, cannot answer about them"

TREE = """\
EventGPT/
  <name>.json                        a list of {"id", "event_data": "<sequence>/000069.npy", "conversations":
                                     [{"from": "human", "value": "<event>\\n..."}, {"from": "gpt", "value": "..."}, ...]}
  <sequence>/000069.npy              the events, or in event_npy/, event_data/, events/. Elsewhere: --recordings FOLDER"""


def files(path: Path) -> list[Path]:
    """The instruction files in a folder, or the file itself; known by their first bytes."""
    if path.is_dir():
        return [child for child in listed(path) if child.suffix.lower() == ".json" and child.is_file() and _is_one(child)]
    return [path] if path.is_file() and _is_one(path) else []


def questions(path: Path, recordings: Path | None = None, split: str | None = None) -> layout.QuestionSet:
    """The questions whose event files are there: one for each turn of a conversation, asked on its own."""
    if split is not None:
        raise BadInput(f"{path}: EventGPT's data has no splits: leave --split out, or give one of its JSON files")
    rows: list[layout.Row] = []
    missing: list[str] = []
    for file in files(path):
        absent: dict[str, None] = {}
        for index, record in enumerate(records(file)):
            place = f"{file}: record {index}"
            name = text_of(record, "event_data", place)
            found = _event_file(file.parent if recordings is None else recordings, name, place)
            turns = _turns(record, place)
            if found is None:
                absent[name] = None
                continue
            id = record.get("id", index)
            if not isinstance(id, str | int):
                raise BadInput(f"{place}: id is {shown(id)}: it must be text or a number")
            rows += [
                layout.Row(found, KINDS[min(turn, 1)], question, answer, f"{id}" if len(turns) == 1 else f"{id}/{turn}")
                for turn, (question, answer) in enumerate(turns)
            ]
        missing += [f"{name}: no event file of this name ({file.name})" for name in absent]
    return layout.QuestionSet(tuple(rows), tuple(missing), (NO_FRAMES,) if rows else ())


def inspect(path: Path) -> layout.Report:
    """Every instruction file: its questions and how many event files are there; those are not opened."""

    def one(file: Path) -> layout.Report:
        try:
            found = questions(file)
        except BadInput as error:
            return layout.Report((), (), (str(error),))
        there = len({row.recording for row in found.rows})
        facts: dict[str, int | None] = {"questions": len(found.rows), "event_files": there, "of": there + len(found.missing)}
        return layout.Report((layout.Part(file.name, facts),), found.missing)

    return layout.merged(map(one, files(path)), "<name>.json")


def _turns(record: dict[str, Any], place: str) -> list[tuple[str, str]]:
    """(question, answer) of every turn; the mark of the events is taken out of the question."""
    said = record.get("conversations")
    if not isinstance(said, list) or not said or len(said) % 2:
        raise BadInput(f"{place}: conversations is {shown(said)}: it must be a list of pairs, human and gpt in turns")
    texts = []
    for index, one in enumerate(said):
        speaker = ("human", "gpt")[index % 2]
        if not isinstance(one, dict) or one.get("from") != speaker:
            raise BadInput(f"{place}: conversations[{index}] is {shown(one)}: it must be an object with from = {speaker!r}")
        text = text_of(one, "value", f"{place}: conversations[{index}]").replace(EVENT_TOKEN, "").strip()
        if not text:
            raise BadInput(f"{place}: conversations[{index}]: value has nothing but {EVENT_TOKEN}: it must be text")
        texts.append(text)
    return list(zip(texts[::2], texts[1::2], strict=True))


def _event_file(folder: Path, name: str, place: str) -> Path | None:
    path = inside(folder, name)
    if path is None:
        raise BadInput(f"{place}: event_data is {shown(name)}, which leaves the folder: name a file inside it")
    found = (folder / below / name for below in FOLDERS)
    return next((path for path in found if path.is_file()), None)


def _is_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
    except OSError:  # not readable, so not known to be one
        return False
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") and b'"event_data"' in head


LAYOUT = layout.Layout(NAME, "EventGPT instructions", TREE, files, inspect, questions)
