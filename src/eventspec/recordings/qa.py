"""Questions about recordings as lines of JSON, a qa.jsonl: what `scenes make` and `dataset questions` write and experiments
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventspec.core import BadInput, Window
from eventspec.files import parsed
from eventspec.recordings.examples import PREFIX, place
from eventspec.recordings.parts import words
from eventspec.recordings.recording import Recording, whole_of

Ends = tuple[int | None, int | None]
"""[start_us, end_us) on a recording's clock; None for an end that is the recording's own."""
Opening = Callable[[Path], Recording]
Check = Callable[[Recording, Window | None], None]
JUDGED = 8
"""One recording in so many is kept back to measure on, at least one where there are two."""


@dataclass(frozen=True)
class Question:
    """One line of a qa.jsonl; answer: "" where its file has none; line: where it stands in its file, from 1 on; kind: of
    question, where its file says so; window: the part of the recording that is asked about, None for the whole."""

    id: str
    recording: Path
    question: str
    answer: str
    line: int = 0
    kind: str | None = None
    window: Ends | None = None

    @property
    def seen(self) -> tuple[Path, Ends | None]:
        """What is asked about: the same for questions that can share what was read of it."""
        return self.recording, self.window

    @property
    def resolved(self) -> Path:
        """Where its recording lies, whatever it is called."""
        return whole_of(self.recording).resolve()

    def __str__(self) -> str:
        return str(self.recording) if self.window is None else f"{self.recording}, window {list(self.window)}"

    def open(self, opening: Opening = Recording.open) -> Recording:
        """The recording, or its window."""
        return self.cut(opening(self.recording))

    def cut(self, recording: Recording) -> Recording:
        """The window of the recording, as views; BadInput for one that is outside it."""
        return recording if self.window is None else recording.slice(recording.window(*self.window))


def held_out(asked: Iterable[Question]) -> frozenset[Path]:
    """The recordings, as `Question.resolved`, that every training on these questions, or on the first of them, keeps back to
    measure on; none where there is one only."""
    recordings = list(dict.fromkeys(question.resolved for question in asked))
    return frozenset(recordings[:: max(2, min(JUDGED, len(recordings)))] if len(recordings) > 1 else ())


def another(own: tuple[str | Path, Ends | None], others: Sequence[tuple[str | Path, Ends | None]]) -> int | None:
    """The first of other recordings, or windows of some, that may stand for `own` as a control: of another recording, else a
    part of the same one that shares no moment with it. None where there is none."""
    whole = Path(own[0]).resolve()
    found = next((place for place, (other, _) in enumerate(others) if other != own[0] and Path(other).resolve() != whole), None)
    if found is not None:
        return found
    return next((place for place, (_, window) in enumerate(others) if _apart(own[1], window)), None)


def _apart(one: Ends | None, other: Ends | None) -> bool:
    """Whether two windows of a recording share no moment; an end that is the recording's is as far away as can be."""

    def before(first: Ends, then: Ends) -> bool:
        return first[1] is not None and then[0] is not None and first[1] <= then[0]

    return one is not None and other is not None and (before(one, other) or before(other, one))


def check_question(question: str) -> None:
    """BadInput for what cannot be asked."""
    if not isinstance(question, str):
        raise BadInput(f"the question is a {type(question).__name__}: it must be a text")
    if not question.strip():
        raise BadInput("the prompt is empty: ask something, such as 'What is ahead?'")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise BadInput("the prompt is not valid UTF-8: type it again") from None


def read_questions(
    path: Path, limit: int | None = None, opening: Opening = Recording.open, check: Check | None = None
) -> list[Question]:
    """Questions of a qa.jsonl, recordings relative to its folder or "example:NAME"; at most `limit`, spread over the
    recordings. Recordings of which windows are asked about are opened, as they will be, to see what they span. BadInput names
    file and line of what is wrong, a recording that is not there and a window that is outside its recording too. `check`: opens
    all, and raises BadInput for a recording, or a window of it, that does not suit the caller."""
    if not path.is_file():
        wrong = "is no file" if path.exists() else "does not exist"
        raise BadInput(f"{path} {wrong}: give a qa.jsonl, `eventspec scenes make` writes one")
    found: dict[Path, list[Question]] = {}
    spelled: dict[Path, Path] = {}  # a recording is named as it is spelled first: others group by that
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # with or without a byte order mark
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no text: give a qa.jsonl, `eventspec scenes make` writes one") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
            texts = [row[name] for name in ("recording", "question")]
            texts += [row["answer"]] if "answer" in row else []
        except (ValueError, KeyError, TypeError, IndexError):
            texts = []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            wanted = "recording and question, and answer where it is known"
            raise BadInput(f"{path}, line {number}: wanted one JSON object with the texts {wanted}")
        kind = row.get("kind") if isinstance(row.get("kind"), str) else None
        recording = Path(texts[0]) if texts[0].startswith(PREFIX) else path.parent / texts[0]
        if recording not in found:
            with suppress(BadInput, OSError, RuntimeError, ValueError):  # what no recording can be called is told below
                recording = spelled.setdefault(whole_of(recording).resolve(), recording)
        answer, window = "".join(texts[2:]), _window(row.get("window"), f"{path}, line {number}")
        question = Question(f"{number:06d}", recording, texts[1], answer, number, kind, window)
        found.setdefault(question.recording, []).append(question)
    if not found:
        raise BadInput(f"{path} holds no questions: `eventspec scenes make` writes some")
    # Turn by turn through the recordings: questions about one recording have much in common.
    turns = max(map(len, found.values()))
    spread = [questions[turn] for turn in range(turns) for questions in found.values() if turn < len(questions)]
    asked = spread[: limit or None]
    for question in asked:
        try:
            there = place(question.recording).exists()
        except BadInput as error:  # no such example
            raise BadInput(f"{path}, line {question.line}: {error}") from None
        if not there:
            raise BadInput(f"{path}, line {question.line}: the recording {question.recording} does not exist: check its place")
    _check_windows(path, [question for question in asked if question.window is not None or check is not None], opening, check)
    return asked


def _window(given: Any, where: str) -> Ends | None:
    """A window as it stands in a line; None for none, and for one without ends."""
    if given is None or given == [None, None]:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(_is_time(end) for end in given):
        wanted = "[start, end], whole microseconds on the recording's clock, null for an end that is the recording's"
        raise BadInput(f"{where}: window is {str(given)[:60]}: wanted {wanted}")
    start, end = given
    if None not in given and start >= end:
        wrong = "is empty" if start == end else "ends before it begins"
        raise BadInput(f"{where}: the window [{start}, {end}) us {wrong}: give its start first")
    return start, end


def _is_time(value: Any) -> bool:
    return value is None or (type(value) is int and abs(value) < 1 << 63)


def _check_windows(path: Path, asked: Sequence[Question], opening: Opening, check: Check | None) -> None:
    """BadInput for a window that is outside its recording, or in which nothing was recorded, and where `check` says so; one is
    open at a time."""
    of: dict[Path, list[Question]] = {}
    for question in asked:
        of.setdefault(question.recording, []).append(question)
    for whole, questions in of.items():
        question = questions[0]
        try:
            recording = opening(whole)
            for question in questions:
                window = recording.window(*(question.window or (None, None)))
                if window is not None and not recording.senses_in(window):
                    raise BadInput(f"{recording.name}: nothing was recorded in the window {words(window)}: choose another")
                if check is not None:
                    check(recording, window)
        except BadInput as error:
            raise BadInput(f"{path}, line {question.line}: {error}") from None
