"""The rows of a comparison on the disk, one JSON line each, written as soon as they are measured; how a cut-off run goes on.

They know what makes rows comparable, and nothing of how they are measured.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.core import BadInput
from eventspec.experiments.figures import Row
from eventspec.files import append_line, check_writable, parsed, write_text
from eventspec.recordings.qa import Question

if TYPE_CHECKING:
    from eventspec.experiments.arms import Arm

Key = tuple[str, str]
"""Arm and question id: a sample."""
_OTHER = "name another file for the rows"
_BEGINS = (b'{"text": ', b'{"question_id": ')
"""How a row begins, and what is found out about it afterwards."""
LOOK = frozenset({"question_id", "method", "vision", "note"})
"""Fields of what is found out afterwards."""


def check_place(path: Path, resume: bool = False) -> None:
    """BadInput where rows cannot be written, in a file of something else, and where there are some and no `resume`."""
    check_writable(path)
    if path.exists() and path.stat().st_size:
        RowFile(path, resume=True)  # refuses what holds none
        if resume:
            return
        raise BadInput(f"{path} holds rows already: go on with them by --resume, or {_OTHER}")


def check_same(path: Path, settings: Mapping[str, Any]) -> None:
    """BadInput for rows that were measured with others than these settings, as far as they are known without a model."""
    about = json.loads(json.dumps(settings))
    for row in RowFile(path, resume=True).rows.values():
        theirs = row.get("settings")
        _check_settings(path, {name: theirs.get(name) for name in about} if isinstance(theirs, dict) else theirs, about)


def beside(path: Path) -> Path:
    """The file of what is found out afterwards: NAME.vision.jsonl. BadInput where something else is there."""
    found = path.with_name(f"{path.name.removesuffix('.jsonl')}.vision.jsonl")
    check_writable(found)
    if any(row.keys() != LOOK for row in RowFile(found, resume=True).rows.values()):
        raise BadInput(f"{found} would be overwritten and holds something else: {_OTHER}")
    return found


class RowFile:
    """A file of rows and what is in it, by arm and question. It is made with the first row: a comparison that is refused leaves
    nothing. From then on it is locked against other processes."""

    def __init__(self, path: Path, resume: bool = False) -> None:
        """`resume`: with the rows that are there, but for a last line that was cut off; without, they are overwritten. BadInput
        for a file of something else."""
        self.path, self.rows = path, dict[Key, Row]()
        self._bytes = 0  # of the rows that are there
        self._size = path.stat().st_size if path.exists() else 0
        self._file: io.FileIO | None = None
        if resume and path.exists():
            self._read()

    def _read(self) -> None:
        data = self.path.read_bytes()
        self._size = len(data)
        lines = data.split(b"\n")[:-1]  # after the last line's end: nothing, or a line that was cut off
        for number, line in enumerate(lines, 1):
            try:
                row = parsed(line)
                key = row["method"], row["question_id"]
            except (ValueError, KeyError, TypeError):
                if number == len(lines):
                    break  # cut off by something that ended the line
                raise BadInput(f"{self.path}, line {number} is no row of a comparison: name another file") from None
            if key in self.rows:
                raise BadInput(f"{self.path}, line {number} repeats question {key[1]} of {key[0]}: name another file")
            self.rows[key] = row
            self._bytes += len(line) + 1
        cut = data[self._bytes :]
        if not self.rows and not any(cut.startswith(begin[: len(cut)]) for begin in _BEGINS):
            raise BadInput(f"{self.path} holds no rows of a comparison: name another file")

    def get(self, question: Question, arm: Arm) -> Row | None:
        """The row of a question in an arm, if there is one."""
        return self.rows.get((arm.name, question.id))

    def add(self, row: Row) -> None:
        """Keep a row: it is the system's when this returns, and outlives this process. BadInput where another process writes
        the file."""
        if self._file is None:
            self._file = self._begin()
        append_line(self._file, json.dumps(row))
        self.rows[row["method"], row["question_id"]] = row

    def _begin(self) -> io.FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = io.FileIO(self.path, "a")
        at = os.fstat(file.fileno())
        if not _locked(file) or at.st_size != self._size or at.st_ino != self.path.stat().st_ino:
            file.close()
            raise BadInput(f"{self.path} is written by another process: {_OTHER}")
        file.truncate(self._bytes)
        return file

    def discard(self) -> None:
        """Remove the file, and what is known of it."""
        self.path.unlink(missing_ok=True)
        self.rows, self._bytes, self._size = {}, 0, 0

    def close(self) -> None:
        """No more rows for now."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rewrite(self, rows: Iterable[Row]) -> None:
        """These rows in place of all, in their order: all or none of it."""
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.close()

    def check(self, arms: Mapping[str, Mapping[str, Any]], questions: Sequence[Question], settings: Mapping[str, Any]) -> None:
        """BadInput unless every row is one that a comparison of these arms (what their rows say, by name), questions and
        settings would have measured."""
        wanted, about = {q.id: q for q in questions}, json.loads(json.dumps(settings))
        for (arm, number), row in self.rows.items():
            _check_settings(self.path, row.get("settings"), about)
            if arm not in arms:
                raise BadInput(f"{self.path} holds rows of '{arm}', which is none of the methods: give the same, or {_OTHER}")
            _check_settings(self.path, {name: row.get(name) for name in arms[arm]}, arms[arm])
            question = wanted.get(number)
            asked = None if question is None else (question.recording.name, question.question, question.answer, question.window)
            if (row.get("recording"), row["question"], row["answer"], _ends(row.get("window"))) != asked:
                raise BadInput(f"{self.path} holds question {number}, which is not asked: give the same questions, or {_OTHER}")
        # All arms answer a question before the next one is asked: a run that was cut off leaves one unfinished at most.
        counts = Counter(number for _, number in self.rows)
        if sum(count < len(arms) for count in counts.values()) > 1:
            short = next(arm for arm in arms if sum(name == arm for name, _ in self.rows) < len(counts))
            raise BadInput(f"{self.path} was measured without '{short}': give the same methods, or {_OTHER}")


def _ends(window: Any) -> Any:
    """A row's window as a question has it."""
    return tuple(window) if isinstance(window, list) else window


def _check_settings(path: Path, theirs: Any, ours: Mapping[str, Any]) -> None:
    if not isinstance(theirs, dict):
        raise BadInput(f"{path} does not say how its rows were measured: {_OTHER}")
    for name in [*ours, *theirs]:
        if (was := theirs.get(name)) != (wanted := ours.get(name)):
            said = f"{name} {_spelled(was, wanted)}, not {_spelled(wanted, was)}"
            raise BadInput(f"{path} was measured with {said}: give the same, or {_OTHER}")


def _spelled(value: Any, other: Any) -> str:
    """A setting as people say it: on or off where one of both is."""
    if value is True:
        return "on"
    return "off" if other is True and (value is None or value is False) else str(value)


def _locked(file: io.FileIO) -> bool:
    """Whether this process alone may write a file from now on, as far as the system can keep others from it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except ImportError:  # there are no such locks on Windows
        pass
    return True
