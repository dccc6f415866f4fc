"""Files that are decoded from front to back, block by block: what every such family shares.

A family gives one step: file, position and decoder state in, the block's columns and the next position and state out. The
state before each block is remembered, so that a later slice decodes only the blocks it needs. Nothing is ever decoded in
larger pieces, so memory is bounded whatever the file's size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.formats.family import EventFile, SensorSize, file_of
from eventspec.events.stored import Columns, Source, StoredStream, held, hull, overlap
from eventspec.events.stream import EventStream, Named, Policy

State = TypeVar("State")


class Step(NamedTuple, Generic[State]):
    """One decoded block, where the next one begins, and the decoder's state there."""

    columns: Columns
    position: int
    state: State


Decode = Callable[[BinaryIO, int, State], Step[State]]


class _Mark(NamedTuple, Generic[State]):
    """The beginning of a block: its byte, the decoder's state, its first event's index and the latest time before it."""

    position: int
    state: State
    first: int
    latest: int


class Sequential(Source, Generic[State]):
    """A file of `end` bytes whose events begin at byte `start`."""

    def __init__(
        self,
        path: Path,
        size: SensorSize,
        policy: Policy,
        decode: Decode[State],
        start: int,
        end: int,
        state: State,
        named: Named | None = None,
    ) -> None:
        super().__init__(path, size, policy, named)
        self._decode, self._end = decode, end
        self._marks = [_Mark(start, state, 0, 0)]  # of every block seen so far, and of the next one
        self._spans: list[Window | None] = []  # of every block seen so far
        self._growing = threading.Lock()

    @property
    def state(self) -> State:
        """The decoder's state after everything read so far."""
        return self._marks[-1].state

    def _read(self, window: Window | None) -> Iterator[EventStream]:
        """Blocks that are known to lie outside the window are not decoded again."""
        with opened(self._path) as file:
            index = 0
            while index < len(self._spans) or self._marks[-1].position < self._end:
                block = self._block(file, index, window)
                index += 1
                if block is None:
                    continue
                if window is not None and self.ordered and block.t[0] >= window.end_us:
                    return  # everything after it is later still
                yield block

    def span(self) -> Window | None:
        self._finish()
        return hull(self._spans)

    def count(self) -> int:
        self._finish()
        return self._marks[-1].first - self.outside

    def _finish(self) -> None:
        if self._marks[-1].position < self._end:
            with opened(self._path) as file:
                while self._marks[-1].position < self._end:
                    self._block(file, len(self._spans), None)

    def _block(self, file: BinaryIO, index: int, window: Window | None) -> EventStream | None:
        """Block `index`, decoded and checked; None when it is empty or certainly outside the window."""
        if index >= len(self._spans):
            with self._growing:  # two threads may slice at once
                if index == len(self._spans):
                    return self._next(file) if self._marks[-1].position < self._end else None
        span = self._spans[index]
        if span is None or not overlap(span, window):
            return None
        mark = self._marks[index]
        columns = self._decode(file, mark.position, mark.state).columns
        return self._checked(columns, mark.first, mark.latest, whole=False)

    def _next(self, file: BinaryIO) -> EventStream | None:
        """The first block that was never read; it is remembered where the one after it begins."""
        mark = self._marks[-1]
        columns, position, state = self._decode(file, mark.position, mark.state)
        if position <= mark.position:  # a walk must come to an end, also through a file that shrinks meanwhile
            raise BadInput(f"{self._path}: cannot be read on at byte {position}: was it changed meanwhile?")
        block = self._checked(columns, mark.first, mark.latest, whole=True)
        span = block.span
        latest = mark.latest if span is None else max(mark.latest, span.end_us - 1)
        # In this order: a thread that sees that the end is reached must find the last block known.
        self._spans.append(span)
        self._marks.append(_Mark(position, state, mark.first + len(columns.t), latest))
        return block if len(block) else None


def event_file(
    name: str, source: Sequential[Any], notes: list[str], notes_of: Callable[[Any], list[str]] = lambda _: []
) -> EventFile:
    """The file as a whole: in memory when it is short. ``notes_of(state)`` says what the decoder had to leave out.

    The rule for files without an event, which all formats keep: a container that says how many events it has may say none
    (npz, npy, HDF5; AEDAT4 unless it is torn). A file that is nothing but a row of events never says so, and one in which
    not one event is complete cannot be told from one that was cut: BadInput.
    """
    stream = held(source, source._end)
    found = file_of(name, source, stream, [*notes, *notes_of(source.state)])
    if not isinstance(stream, StoredStream) and not len(stream):  # a stored one is long
        why = f" ({'; '.join(found.notes)})" if found.notes else ""
        raise BadInput(f"{source}: ends at byte {source._end}, before its first event{why}: copy or record it again")
    return found


def opened(path: Path) -> BinaryIO:
    """The file, open for reading; BadInput when it is gone."""
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}): was it moved meanwhile?") from None


def words(file: BinaryIO, position: int, dtype: str, count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """At most `count` whole words of `dtype` from byte `position` on."""
    file.seek(position)
    return np.fromfile(file, dtype, count)


def whole_words(path: Path, start: int, size: int, notes: list[str]) -> int:
    """The byte after the last whole word of `size` bytes; a note says what is cut off. BadInput when there is no word."""
    end = path.stat().st_size
    rest = (end - start) % size
    if end - start < size:
        raise BadInput(f"{path}: ends at byte {end}, before its first event: copy or record it again")
    if rest:
        notes.append(f"the file is cut inside a word: its last {rest} of {end - start} bytes of events are lost")
    return end - rest
