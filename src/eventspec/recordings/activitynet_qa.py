"""ActivityNet-QA: questions and answers in JSON files of their own, joined by question_id, about videos of YouTube ids.

It has no events. For methods that need them, `eventspec events simulate` makes a recording of a video.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from eventspec.core import BadInput
from eventspec.recordings import layout
from eventspec.recordings.layout import listed, records, shown, text_of
from eventspec.recordings.native import TOML_NAME
from eventspec.video.decode import VIDEO_SUFFIXES

NAME = "activitynet-qa"
SPLITS = ("train", "val", "test")
KINDS = ("motion", "spatial", "temporal", "yes-no", "colour", "object", "location", "number", "other")
"""By the answer's `type`."""
NO_EVENTS = (
    "videos have no events: for methods that need them, `eventspec events simulate` each, and name the folder: --recordings"
)

TREE = """\
Activitynet_QA/
  test_q.json, test_a.json           also train, val; or in dataset/. Questions {video_name, question, question_id},
                                     answers {question_id, answer, type}
  all_test/v_<video_name>.mp4        or videos/, test/, or beside the JSON; .mkv, .webm and others too, and recordings
                                     v_<video_name>/ with simulated events. Elsewhere: --recordings FOLDER"""


class Tables(NamedTuple):
    split: str
    questions: Path
    answers: Path


Asked = tuple[str, Path | None, str, str, str, str]
"""Of one question the video's name, the video where it is there, kind, question, answer and id."""


def tables(path: Path) -> list[Tables]:
    """The splits of which a folder, or its folder dataset/, has the questions or the answers."""
    found = []
    for split in SPLITS:
        for folder in (path, path / "dataset"):
            pair = Tables(split, folder / f"{split}_q.json", folder / f"{split}_a.json")
            if pair.questions.is_file() or pair.answers.is_file():
                found.append(pair)
                break
    return found


def questions(path: Path, recordings: Path | None = None, split: str | None = None) -> layout.QuestionSet:
    """The questions of one split, or of all that are there, whose videos are there."""
    found = tables(path)
    if split is not None:
        found = [pair for pair in found if pair.split == split]
        if not found:
            raise BadInput(f"{path}: has no {split}_q.json: choose one of {', '.join(SPLITS)}, or download it")
    rows: list[layout.Row] = []
    missing: list[str] = []
    for pair in found:
        asked = _joined(pair, _videos(path, pair.split, recordings))
        missing += _missing(asked, pair.split)
        rows += [
            layout.Row(video, kind, question, answer, id) for _, video, kind, question, answer, id in asked if video is not None
        ]
    videos_only = any(row.recording.is_file() for row in rows)
    return layout.QuestionSet(tuple(rows), tuple(missing), (NO_EVENTS,) if videos_only else ())


def inspect(path: Path) -> layout.Report:
    """Every split: questions, by kind, and videos; videos are not opened."""

    def split(pair: Tables) -> layout.Report:
        absent = tuple(file.name for file in pair[1:] if not file.is_file())
        try:
            for file in pair[1:] if absent else ():
                if file.is_file():
                    records(file)
            if absent:
                return layout.Report((), absent)
            asked = _joined(pair, _videos(path, pair.split, None))
        except BadInput as error:
            return layout.Report((), absent, (str(error),))
        missing = _missing(asked, pair.split)
        names = {name for name, *_ in asked}
        kinds = Counter(kind for _, _, kind, *_ in asked)
        facts: dict[str, int | None] = {"questions": len(asked), "videos": len(names) - len(missing), "of": len(names)}
        part = layout.Part(pair.split, {**facts, **{kind: kinds[kind] for kind in KINDS if kinds[kind]}})
        return layout.Report((part,), missing)

    return layout.merged(map(split, tables(path)), "test_q.json", "test_a.json")


def _missing(asked: list[Asked], split: str) -> tuple[str, ...]:
    """A line for each video that is not there."""
    absent = dict.fromkeys(name for name, video, *_ in asked if video is None)
    return tuple(f"v_{name}: no video of this name ({split})" for name in absent)


def _joined(pair: Tables, videos: dict[str, Path]) -> list[Asked]:
    """Every question, in order; the files are joined by id, never by place."""
    for file in pair[1:]:
        if not file.is_file():
            raise BadInput(f"{file}: is not there: questions and answers are two files, {pair.split}_q.json and _a.json")
    answers: dict[str, tuple[str, str]] = {}
    for index, record in enumerate(records(pair.answers)):
        place = f"{pair.answers}: record {index}"
        id = text_of(record, "question_id", place)
        if id in answers:
            raise BadInput(f"{place}: question_id {shown(id)} is there twice: download the file again")
        answers[id] = (_kind(record, place), text_of(record, "answer", place))
    joined: list[Asked] = []
    for index, record in enumerate(records(pair.questions)):
        place = f"{pair.questions}: record {index}"
        id, name, question = (text_of(record, field, place) for field in ("question_id", "video_name", "question"))
        if id not in answers:
            raise BadInput(f"{place}: question_id {shown(id)} has no answer in {pair.answers.name}: take both of one release")
        kind, answer = answers[id]
        joined.append((name, videos.get(f"v_{name}") or videos.get(name), kind, question, answer, id))
    return joined


def _kind(record: dict[str, Any], place: str) -> str:
    value = record.get("type")
    if type(value) is not int or not 0 <= value < len(KINDS):
        raise BadInput(f"{place}: type is {shown(value)}: it must be a number from 0 to {len(KINDS) - 1}")
    return KINDS[value]


def _videos(path: Path, split: str, recordings: Path | None) -> dict[str, Path]:
    """Videos and native recordings by name without suffix, in the folder given or in the data set's own."""
    own = (path / f"all_{split}", path / "videos" / split, path / "videos", path / split, path)
    found: dict[str, Path] = {}
    for folder in own if recordings is None else (recordings,):
        if recordings is None and not folder.is_dir():
            continue
        for child in listed(folder):
            if child.suffix.lower() in VIDEO_SUFFIXES and child.is_file():
                found.setdefault(child.stem, child)
            elif (child / TOML_NAME).is_file():
                found.setdefault(child.name, child)
    return found


LAYOUT = layout.Layout(NAME, "ActivityNet-QA", TREE, tables, inspect, questions)
