"""Questions about recordings as lines of JSON, a qa.jsonl: what `scenes make` and `dataset questions` write and experiments
read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eventspec.core import BadInput
from eventspec.files import parsed
from eventspec.recordings.examples import PREFIX, place


@dataclass(frozen=True)
class Question:
    """One line of a qa.jsonl; line: where it stands in its file, from 1 on; kind: of question, where its file says so."""

    id: str
    recording: Path
    question: str
    answer: str
    line: int = 0
    kind: str | None = None


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


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Questions of a qa.jsonl, recordings relative to its folder or "example:NAME"; at most `limit`, spread over the
    recordings. BadInput names file and line of what is wrong, a recording that is not there too."""
    if not path.is_file():
        wrong = "is no file" if path.exists() else "does not exist"
        raise BadInput(f"{path} {wrong}: give a qa.jsonl, `eventspec scenes make` writes one")
    found: dict[Path, list[Question]] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # with or without a byte order mark
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no text: give a qa.jsonl, `eventspec scenes make` writes one") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
            texts = [row[name] for name in ("recording", "question", "answer")]
        except (ValueError, KeyError, TypeError, IndexError):
            texts = []
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise BadInput(f"{path}, line {number}: wanted one JSON object with the texts recording, question and answer")
        kind = row.get("kind") if isinstance(row.get("kind"), str) else None
        recording = Path(texts[0]) if texts[0].startswith(PREFIX) else path.parent / texts[0]
        question = Question(f"{number:06d}", recording, texts[1], texts[2], number, kind)
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
    return asked
