"""Recordings cut into windows, with the questions of a file about each of them; whoever learns from them asks the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from eventspec.core import BadInput, Window
from eventspec.files import check_file
from eventspec.recordings.layout import QuestionSet, Row
from eventspec.recordings.qa import check_question
from eventspec.recordings.recording import Recording, whole_windows

MOST = 1_000_000
"""Questions of one file: more are a window or a stride in the wrong unit."""
SENSES = ("events", "frames")


def texts_of(path: Path) -> list[str]:
    """The questions of a text file, one a line; empty lines are passed over."""
    check_file(path)
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise BadInput(f"{path}: is no text in UTF-8 ({reason}): write one question a line") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise BadInput(f"{path}: has no question: write one a line")
    for text in texts:
        check_question(text)
    return list(dict.fromkeys(texts))


def asked(about: Iterable[tuple[Path, Window | None]], texts: Sequence[str], missing: Sequence[str] = ()) -> QuestionSet:
    """Every question about every recording, or window of it. No answer is known."""
    rows: list[Row] = []
    for recording, window in about:
        name = recording.name if window is None else f"{recording.name}/{window.start_us}"
        rows += [Row(recording, None, text, None, f"{name}/{number}", window) for number, text in enumerate(texts)]
        _check_count(len(rows))
    return QuestionSet(tuple(rows), tuple(missing))


def cut(
    recordings: Iterable[Path], texts: Sequence[str], length_us: int, stride_us: int, whole: bool, missing: Sequence[str] = ()
) -> QuestionSet:
    """Every question about every window of the recordings, as `sliding_windows` cuts them, but for windows in which something
    is missing that the recording has. `whole`: a recording without events or without frames is left out, as one that is
    missing; else it is cut by what it has, and a note says so."""
    about: list[tuple[Path, Window | None]] = []
    lacking, notes, left_out = list(missing), list[str](), 0
    for path in recordings:
        recording = Recording.open(path)
        lacks = [sense for sense in SENSES if sense not in recording.senses_in(recording.span)]
        if lacks:
            line = f"{path.name}: has no {' and no '.join(lacks)}"
            if whole:
                lacking.append(line)
                continue
            notes.append(f"{line}: windows are cut by what it has")
        _check_count(max(0, recording.span.duration_us - length_us) // stride_us * len(texts))
        windows = list(whole_windows(recording.span, length_us, stride_us))
        kept = [window for window in windows if len(recording.senses_in(window)) == len(SENSES) - len(lacks)]
        left_out += len(windows) - len(kept)
        about += [(path, window) for window in kept]
        if not windows:
            lasts = f"it lasts {recording.span.duration_us} us, less than one window of {length_us}"
            notes.append(f"{path.name}: {lasts}: nothing is asked about it")
    found = asked(about, texts, lacking)
    return QuestionSet(found.rows, found.missing, tuple(notes), left_out)


def _check_count(questions: int) -> None:
    if questions > MOST:
        raise BadInput(f"more than {MOST} questions: choose longer windows, a longer stride or fewer questions")
