"""EventGPT's event files and the DSEC sequences that they were cut from: in which window of a sequence a file's events lie, so
that questions about them can be asked about the sequence, frames included.

The files have times on the sequence's clock, or on one that begins anywhere (both were published). So it is the events that
decide: a window of the sequence must hold exactly those of the file. Names say which sequence it is, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.formats import read_events
from eventspec.events.stream import EventStream
from eventspec.recordings import dsec
from eventspec.recordings.layout import Part, QuestionSet, Report
from eventspec.video.clip import VideoClip

LOOKED_FOR = 16
"""Events at the beginning of a file that are looked for in the sequence; where they are found, all of them are compared."""
REASONS = {
    "no_sequence": "there is no sequence of this name",
    "several_sequences": "several sequences have this name",
    "incomplete": "its sequence lacks events, frames or their times",
    "unreadable": "cannot be used",
    "not_found": "no window of its sequence holds these events",
    "ambiguous": "several windows of its sequence hold these events",
    "no_frame": "no frame was taken in its window",
}
"""Why a file is not joined, as reports count it and as a line says it."""


class Match(NamedTuple):
    """An event file, and its sequence and window; or why there is none, a key of `REASONS`, and what else is to say."""

    file: Path
    sequence: Path | None = None
    window: Window | None = None
    why: str | None = None
    detail: str = ""

    def line(self) -> str:
        """Why it is not joined."""
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.file.parent.name}/{self.file.name}: {REASONS[self.why or 'not_found']}{more}"


def matches(files: Iterable[Path], folder: Path) -> dict[Path, Match]:
    """Where the events of each file lie in the sequence of a DSEC folder that its own folder is named after. Each sequence is
    read once at most. BadInput where there is no sequence at all."""
    known: dict[str, list[Path]] = {}
    for sequence in dsec.sequences(folder):
        known.setdefault(sequence.resolve().name, []).append(sequence)
    if not known:
        raise BadInput(f"{folder}: has no DSEC sequence: give the folder with train/ and test/, or one sequence")
    of: dict[str, list[Path]] = {}
    for file in files:
        of.setdefault(file.parent.name, []).append(file)
    return {match.file: match for name, own in of.items() for match in _of_name(known.get(name, []), own)}


def joined(found: QuestionSet, folder: Path) -> QuestionSet:
    """The questions about event files as questions about windows of DSEC sequences; those of files that are not joined are
    missing, with a line for each file."""
    matched = matches(dict.fromkeys(row.recording for row in found.rows), folder)
    rows = [
        replace(row, recording=match.sequence, window=match.window)
        for row in found.rows
        if (match := matched[row.recording]).sequence is not None and match.window is not None
    ]
    return QuestionSet(tuple(rows), (*found.missing, *lines_of(matched)), notes_of(matched))


def inspect(files: Sequence[Path], folder: Path, missing: Iterable[str]) -> Report:
    """How many event files are joined, by sequence; a line for each that is not."""
    matched = matches(files, folder)
    by_name: dict[str, list[Match]] = {}
    for match in matched.values():
        by_name.setdefault(match.file.parent.name, []).append(match)
    parts = []
    for name, own in by_name.items():
        facts: dict[str, int | None] = {"event_files": len(own), "joined": sum(match.why is None for match in own)}
        parts.append(Part(name, {**facts, **Counter(match.why for match in own if match.why is not None)}))
    return Report(tuple(parts), (*missing, *lines_of(matched)))


def lines_of(matched: Mapping[Path, Match]) -> list[str]:
    """A line for each file that is not joined."""
    return [match.line() for match in matched.values() if match.why is not None]


def notes_of(matched: Mapping[Path, Match]) -> tuple[str, ...]:
    """How many are joined, and why others are not."""
    counts = Counter(match.why for match in matched.values() if match.why is not None)
    reasons = "".join(f"; {count}: {REASONS[why]}" for why, count in counts.items())
    return (f"{len(matched) - counts.total()} of {len(matched)} event files are joined with their sequences{reasons}",)


def _of_name(sequences: Sequence[Path], files: Sequence[Path]) -> Iterator[Match]:
    """The files that belong to the sequence of one name, which may lie in several folders, one with all of it."""
    whole = [sequence for sequence in sequences if dsec.is_whole(sequence)]
    if len(whole) == 1:
        yield from _in_sequence(whole[0], files)
        return
    why = "no_sequence" if not sequences else "several_sequences" if whole else "incomplete"
    yield from (Match(file, why=why, detail=", ".join(map(str, whole))) for file in files)


def _in_sequence(sequence: Path, files: Sequence[Path]) -> Iterator[Match]:
    try:
        found = dsec.read_sequence(sequence)
    except BadInput as error:
        yield from (Match(file, why="unreadable", detail=str(error)) for file in files)
        return
    stream, clip = found.events, found.video
    assert stream is not None and clip is not None  # it is whole
    elsewhere: dict[Path, EventStream] = {}
    for file in files:
        try:
            events = read_events(file)
        except BadInput as error:
            yield Match(file, why="unreadable", detail=str(error))
            continue
        if not len(events):
            yield Match(file, why="unreadable", detail="it has no events")
        elif _holds(stream, events, 0):
            yield _match(file, sequence, _cut(stream, clip, events, 0), clip)
        else:
            elsewhere[file] = events.take(np.arange(min(LOOKED_FOR, len(events))))
    for file, shifts in _shifts(stream, elsewhere).items():
        events = read_events(file) if shifts else stream.empty_copy()
        fitting = [shift for shift in sorted(shifts) if _holds(stream, events, shift)]
        if len(fitting) == 1:
            yield _match(file, sequence, _cut(stream, clip, events, fitting[0]), clip)
        else:
            yield Match(file, why="ambiguous" if fitting else "not_found")


def _match(file: Path, sequence: Path, window: Window, clip: VideoClip) -> Match:
    return Match(file, sequence, window) if len(clip.slice(window)) else Match(file, why="no_frame")


def _holds(stream: EventStream, events: EventStream, shift_us: int) -> bool:
    """Whether the stream has exactly these events, so much later, from the first to the last of them."""
    span = events.span
    assert span is not None  # there are events
    part = stream.slice(Window(span.start_us + shift_us, span.end_us + shift_us))
    same = len(part) == len(events) and np.array_equal(part.t, events.t + np.int64(shift_us))
    return same and all(np.array_equal(getattr(part, name), getattr(events, name)) for name in ("x", "y", "p"))


def _shifts(stream: EventStream, beginnings: Mapping[Path, EventStream]) -> dict[Path, set[int]]:
    """By how much later the beginning of each file stands in the stream, wherever it does: one walk for all of them."""
    found: dict[Path, set[int]] = {file: set() for file in beginnings}
    places: dict[int, list[Path]] = {}
    for file, events in beginnings.items():
        if int(events.x.max()) < stream.width and int(events.y.max()) < stream.height:
            places.setdefault(int(_pixels(events, stream.width)[0]), []).append(file)
    if not places:
        return found
    wanted = np.zeros(2 * stream.width * stream.height, np.bool_)
    wanted[list(places)] = True
    before = stream.empty_copy()  # what a beginning that reaches into the next block begins with
    for block in stream.blocks():
        part = EventStream.joined((before, block), stream.width, stream.height)
        pixels = _pixels(part, stream.width)
        for at in np.flatnonzero(wanted[pixels]).tolist():
            for file in places[int(pixels[at])]:
                events = beginnings[file]
                shift = int(part.t[at] - events.t[0])
                if _begins(part, at, events, shift):
                    found[file].add(shift)
        before = part.take(slice(max(0, len(part) - LOOKED_FOR + 1), len(part)))
    return found


def _pixels(events: EventStream, width: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pixel and polarity of each event as one number."""
    found: np.ndarray[Any, np.dtype[np.int64]] = 2 * (events.y.astype(np.int64) * width + events.x) + events.p
    return found


def _begins(part: EventStream, at: int, events: EventStream, shift_us: int) -> bool:
    own = slice(at, at + len(events))
    return np.array_equal(part.t[own], events.t + np.int64(shift_us)) and all(
        np.array_equal(getattr(part, name)[own], getattr(events, name)) for name in ("x", "y", "p")
    )


def _cut(stream: EventStream, clip: VideoClip, events: EventStream, shift_us: int) -> Window:
    """The window that was cut: it begins and ends between two events, and at a frame's time where one lies there. Whatever was
    meant, no event tells it from this one, and of frames between two events nothing had changed."""
    span = events.span
    assert span is not None  # there are events
    first, end = span.start_us + shift_us, span.end_us + shift_us
    times = clip.times_us
    latest = int(np.searchsorted(times, first, side="right")) - 1
    following = int(np.searchsorted(times, end, side="left"))
    start = int(times[latest]) if latest >= 0 else first
    if start < first and stream.has(Window(start, first)):
        start = first
    if following < len(times) and end < int(times[following]) and not stream.has(Window(end, int(times[following]))):
        end = int(times[following])
    return Window(start, end)
