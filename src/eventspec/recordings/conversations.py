"""Instruction data as LLaVA's JSON has it, and its relatives': a list of conversations between human and gpt, each about a file
that a field names and for which a mark stands in the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eventspec.core import BadInput
from eventspec.recordings.layout import Part, QuestionSet, Report, Row, listed, merged, records, shown, text_of
from eventspec.recordings.parts import inside

KINDS = ("instruction", "follow-up")
SNIFFED_BYTES = 1 << 16


class About(NamedTuple):
    """A record, how messages call it, and the file that it is about: None where that is not there."""

    record: dict[str, Any]
    number: int
    place: str
    file: Path | None


@dataclass(frozen=True)
class Instructions:
    """A kind of instruction data. fields: of a record, which name a file; a file is called `what`, and `counted` in a report;
    folders: where it may lie beside the JSON; marks: what stands for it in the text; needed: whether every record must name
    one."""

    owner: str
    fields: tuple[str, ...]
    what: str
    counted: str
    folders: tuple[str, ...]
    marks: tuple[str, ...]
    needed: bool
    note: str
    """What to know of all the recordings."""

    def files(self, path: Path) -> list[Path]:
        """The instruction files in a folder, or the file itself; known by their first bytes."""
        if path.is_dir():
            return [child for child in listed(path) if child.suffix.lower() == ".json" and self._is_one(child)]
        return [path] if self._is_one(path) else []

    def questions(self, path: Path, recordings: Path | None = None, split: str | None = None) -> QuestionSet:
        """The questions whose files are there: one for each turn of a conversation, asked on its own, without what was said
        before."""
        if split is not None:
            raise BadInput(f"{path}: {self.owner}'s data has no splits: leave --split out, or give one of its JSON files")
        rows: list[Row] = []
        missing, passed = dict[str, None](), Counter[str]()
        for about in self._about(path, recordings, missing, passed):
            said = _turns(about.record, about.place, self.marks)
            if about.file is None:
                continue
            id = about.record.get("id", about.number)
            if not isinstance(id, str | int):
                raise BadInput(f"{about.place}: id is {shown(id)}: it must be text or a number")
            rows += [
                Row(about.file, KINDS[min(turn, 1)], question, answer, f"{id}" if len(said) == 1 else f"{id}/{turn}")
                for turn, (question, answer) in enumerate(said)
            ]
        notes = [f"{count} records {why}: they are left out" for why, count in sorted(passed.items())]
        return QuestionSet(tuple(rows), tuple(missing), (*notes, *([self.note] if rows else [])))

    def recordings(self, path: Path, recordings: Path | None = None) -> tuple[list[Path], list[str]]:
        """The files that are there, and a line for each that is not; what is said about them is not read."""
        missing, passed = dict[str, None](), Counter[str]()
        found = [about.file for about in self._about(path, recordings, missing, passed)]
        return list(dict.fromkeys(file for file in found if file is not None)), list(missing)

    def inspect(self, path: Path) -> Report:
        """Every instruction file: its questions and how many of what they are about are there; those are not opened."""

        def one(file: Path) -> Report:
            try:
                found = self.questions(file)
            except BadInput as error:
                return Report((), (), (str(error),))
            there = len({row.recording for row in found.rows})
            of = there + len(found.missing)
            facts: dict[str, int | None] = {"questions": len(found.rows), self.counted: there, "of": of}
            return Report((Part(file.name, facts),), found.missing)

        return merged(map(one, self.files(path)), "<name>.json")

    def _about(self, path: Path, recordings: Path | None, missing: dict[str, None], passed: Counter[str]) -> Iterator[About]:
        """Every record about one file. A line goes into `missing` for a file that is not there; records about none or several
        are counted in `passed`."""
        for file in self.files(path):
            folder = file.parent if recordings is None else recordings
            for index, record in enumerate(records(file)):
                place = f"{file}: record {index}"
                named = self._named(record, place)
                if len(named) != 1:
                    passed["are about several files" if named else "are text alone"] += 1
                    continue
                field, name = named[0]
                if inside(folder, name) is None:
                    raise BadInput(f"{place}: {field} is {shown(name)}, which leaves the folder: name a file inside it")
                found = next((one for below in self.folders if (one := folder / below / name).is_file()), None)
                if found is None:
                    missing[f"{name}: no {self.what} of this name ({file.name})"] = None
                yield About(record, index, place, found)

    def _named(self, record: dict[str, Any], place: str) -> list[tuple[str, str]]:
        """Field and name of every file that a record is about."""
        if self.needed:
            return [(field, text_of(record, field, place)) for field in self.fields]
        named = []
        for field in self.fields:
            value = record.get(field)
            for name in value if isinstance(value, list) else [] if value is None else [value]:
                if not isinstance(name, str) or not name.strip():
                    raise BadInput(f"{place}: {field} is {shown(value)}: it must be the name of a file, or a list of names")
                named.append((field, name))
        return named

    def _is_one(self, path: Path) -> bool:
        """Whether a file begins as a JSON list of such records; event files are EventGPT's whatever else is said."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                head = file.read(SNIFFED_BYTES)
        except OSError:  # not readable, so not known to be one
            return False
        mine = b'"event_data"' in head if self.needed else b'"conversations"' in head and b'"event_data"' not in head
        return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") and mine


def _turns(record: dict[str, Any], place: str, marks: tuple[str, ...]) -> list[tuple[str, str]]:
    """(question, answer) of every turn; the marks are taken out."""
    said = record.get("conversations")
    if not isinstance(said, list) or not said or len(said) % 2:
        raise BadInput(f"{place}: conversations is {shown(said)}: it must be a list of pairs, human and gpt in turns")
    texts = []
    for index, one in enumerate(said):
        speaker = ("human", "gpt")[index % 2]
        if not isinstance(one, dict) or one.get("from") != speaker:
            raise BadInput(f"{place}: conversations[{index}] is {shown(one)}: it must be an object with from = {speaker!r}")
        text = text_of(one, "value", f"{place}: conversations[{index}]")
        for mark in marks:
            text = text.replace(mark, "")
        if not text.strip():
            raise BadInput(f"{place}: conversations[{index}]: value has nothing but {' or '.join(marks)}: it must be text")
        texts.append(text.strip())
    return list(zip(texts[::2], texts[1::2], strict=True))
