"""What a user's own target said of recordings, in a folder that all trainings share: its answers, each with the likeliest
tokens at every place, one JSON object a line. What is there is not asked again."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.ask import RecordingContext
from eventspec.core import BadInput
from eventspec.files import append_line, parsed
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair
from eventspec.pairs.names import BASELINE
from eventspec.pairs.pair_file import PairFile, fingerprint_of
from eventspec.recordings import Recording
from eventspec.recordings.qa import Ends, Question, held_out
from eventspec.recordings.recording import files_of, whole_of
from eventspec.train.loop import Report, append_row
from eventspec.train.processes import ALONE, Processes

TOP = 8
"""Tokens of every place that are kept."""


@dataclass(frozen=True)
class Example:
    """A question about a recording, and the target's own answer in ids, its end included, with the likeliest tokens at every
    place: int64 [A, TOP] and log-probabilities float32 [A, TOP]."""

    question: Question
    answer: tuple[int, ...]
    top_ids: np.ndarray[Any, Any] | None = None
    top_logs: np.ndarray[Any, Any] | None = None


Key = tuple[str, str, str, Ends | None]
"""Of an answer: recording, digest of its files, question and window."""
Said = tuple[list[int], list[list[int]], list[list[float]]]
"""An answer, the likeliest tokens at every place of it, and their log-probabilities."""


def loading_of(file: PairFile) -> LoadOptions:
    """How a pair of checkpoints opens its target."""
    return LoadOptions.named(**{name: value for name, value in (file.load or {}).items() if name != "vocabulary"})


def who_answers(folder: Path, how: LoadOptions) -> str:
    """16 hex digits of all that a target's answers depend on: its folder, and how that is opened, but for where it runs."""
    opened = asdict(replace(how, device="cpu", drafter_device=None, feature_bytes=0))
    return _digest([fingerprint_of(folder), {name: str(value) for name, value in opened.items()}])


class Answers:
    """Answers of a target (see `who_answers`), of up to `longest` tokens, in a folder's answers*.jsonl, one JSON object a line:
    process `rank` writes a file of its own, and all are read. Several trainings may write at once. Those of another target or
    length stay there, and are not used. `known`: by recording, its window and question."""

    def __init__(self, folder: Path, target: str, longest: int, rank: int = 0) -> None:
        self.folder, self.longest = folder, longest
        self.path = folder / (f"answers-{rank}.jsonl" if rank else "answers.jsonl")
        self.of = {"target": target, "max_new_tokens": longest}
        self.known: dict[Key, Said] = {}
        self._files: dict[Path, str] = {}
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):  # of a run that was cut off
            with io.FileIO(self.path, "a") as file:  # nothing is rewritten: another training may write there now
                append_line(file, "")
        self.read()

    def read(self) -> None:
        """What all processes wrote by now."""
        for path in sorted(self.folder.glob("answers*.jsonl")):
            for line in path.read_text(errors="replace").splitlines():
                if (found := _read(line)) is not None and all(found[2].get(name) == value for name, value in self.of.items()):
                    self.known[found[0]] = found[1]

    def add(self, question: Question, said: Said) -> None:
        """On disk at once."""
        key = recording, files, text, window = self.key_of(question)
        self.known[key] = said
        about = {"recording": recording, "files": files, "question": text, **({} if window is None else {"window": window})}
        answer, ids, logs = said
        append_row(self.path, {**about, "answer": answer, "top_ids": ids, "top_logs": logs, **self.of})

    def example(self, question: Question) -> Example:
        """What is known of a question."""
        answer, ids, logs = self.known[self.key_of(question)]
        return Example(question, tuple(answer), np.array(ids, np.int64), np.array(logs, np.float32))

    def count(self, questions: Sequence[Question]) -> int:
        """How many of them need not be asked."""
        return sum(self.key_of(question) in self.known for question in questions)

    def settings(self, asked: Sequence[Question]) -> dict[str, object]:
        """What a run that learns from these questions may not change when it goes on."""
        return {**self.of, "questions": _digest([self.key_of(question) for question in asked])}

    def key_of(self, question: Question) -> Key:
        """Recordings are known by their resolved paths, and by what lies there."""
        place = whole_of(question.recording).resolve()
        if place not in self._files:
            self._files[place] = _digest(files_of(place))
        return str(place), self._files[place], question.question, question.window


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _read(line: str) -> tuple[Key, Said, dict[str, Any]] | None:
    """A line's key, what was said, and the whole row; None for one that is not whole."""
    try:
        row = parsed(line)
        texts, window = (row["recording"], row["files"], row["question"]), row.get("window")
        answer, ids, logs = (row[name] for name in ("answer", "top_ids", "top_logs"))
        key: Key = (*texts, None if window is None else tuple(window))
        hash(key)
        tables = np.array(ids, np.int64).shape == np.array(logs, np.float32).shape == (len(answer), len(ids[0]))
        whole = tables and all(isinstance(text, str) for text in texts) and all(type(token) is int for token in answer)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return None
    return (key, (answer, ids, logs), row) if whole else None


def target_answers(
    pair: Pair,
    source: Path,
    questions: Sequence[Question],
    out: Answers,
    report: Report,
    processes: Processes = ALONE,
) -> list[Example]:
    """The target's greedy answers to the questions of the file `source`, as long as `out` says; what `out` holds is not
    asked again. Several processes share the recordings out. BadInput names the line of a question that cannot be asked; where
    all answers are empty."""
    asked: dict[Path, dict[Ends | None, list[Question]]] = {}
    for question in questions:
        known = asked.setdefault(question.recording, {})  # all recordings: what is lacking now, another process may find there
        if out.key_of(question) not in out.known:
            known.setdefault(question.window, []).append(question)
    done = out.count(questions)
    for path, windows in list(asked.items())[processes.rank :: processes.count]:
        if not windows:
            continue
        question = next(iter(windows.values()))[0]
        try:
            recording = Recording.open(path)
            for several in windows.values():
                question = several[0]
                context = pair.open(question.cut(recording))  # its pictures are encoded once
                for question in several:
                    out.add(question, _said(context, question.question, out.longest))
                    done += 1
                    report("answer", done / len(questions), {})
        except BadInput as error:
            raise BadInput(f"{source}, line {question.line}: {error}") from None
    pair.workers.drain()
    processes.wait()
    out.read()
    answers = [out.example(question) for question in questions]
    if all(len(example.answer) < 2 for example in answers):
        raise BadInput(f"the target's {len(answers)} answers are empty: there is nothing to learn")
    return answers


def _said(context: RecordingContext, question: str, longest: int) -> Said:
    answer = context.ask(question, BASELINE, max_new_tokens=longest).token_ids
    logs, ids = context.reread(question, answer, BASELINE).logits.float().log_softmax(-1).topk(TOP)
    return answer, ids.tolist(), [[round(log, 4) for log in row] for row in logs.tolist()]


def apart(answers: list[Example], asked: Iterable[Question], shortest: int = 1) -> tuple[list[Example], list[Example]]:
    """Of the answers to the questions that were `asked`, those to learn from, and those about recordings that are `held_out`;
    the same where one of both is empty. Of so many tokens at least: which recordings are kept back does not go by that."""
    kept, usable = held_out(asked), [one for one in answers if len(one.answer) >= shortest]
    learned, judged = ([one for one in usable if (one.question.resolved in kept) == part] for part in (False, True))
    return (learned, judged) if learned and judged else (usable, usable)
