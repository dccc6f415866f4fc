"""An event stream that stays in its file: a slice reads its own part only. It knows no file format, only a `Source`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import Window
from eventspec.events.stream import Array, Block, EventStream, Named, Policy, lags

HELD_EVENTS = 1 << 23
"""Streams of at most this many events (109 MB) are held in memory; longer ones stay in their file."""
LEAST_HELD = 1 << 20  # events that are held however small the file is


class Columns(NamedTuple):
    """Events of one block as they stand in the file, unchecked: [E] each, t in microseconds."""

    x: Array
    y: Array
    t: Array
    p: Array


class Source(ABC):
    """A file of events of the sensor `size` (width, height) that is read in parts; `named` as for `stream.Block`.

    What it yields is checked; BadInput where a part cannot be used. late, largest_lag_us, outside: how many times were before
    the latest one so far, and by how much at most, and how many events were dropped, in what was read as a whole.
    """

    def __init__(self, path: Path, size: tuple[int, int], policy: Policy, named: Named | None = None) -> None:
        self.width, self.height = size
        self.policy, self.ordered = policy, policy.monotonic != "keep"
        self.late, self.largest_lag_us, self.outside = 0, 0, 0
        self._path, self._named = path, named
        self._counted = 0  # events of the file that were looked at for these three
        self._off: int | None = None  # as for `stream.Block`

    def __str__(self) -> str:
        return str(self._path)

    def blocks(self, window: Window | None = None) -> Iterator[EventStream]:
        """The events in order, or those of one window, in pieces of bounded size, none of them empty."""
        for block in self._read(window):
            part = block if window is None else block.slice(window)
            if len(part):
                yield part

    @abstractmethod
    def _read(self, window: Window | None) -> Iterator[EventStream]:
        """Checked blocks, in order, that hold all events, or all of one window; what else they hold is left out by `blocks`."""

    @abstractmethod
    def span(self) -> Window | None:
        """The smallest window that holds every event; it may need a walk through the file the first time."""

    @abstractmethod
    def count(self) -> int:
        """How many events there are, without those that are dropped; it may need a walk through the file the first time."""

    def _checked(self, columns: Columns, first: int, latest: int, whole: bool) -> EventStream:
        """A block that begins with event `first` of the file; `latest`: the latest time before it. In walks through the `whole`
        file, late and dropped events are counted where the block is read for the first time."""
        place = Block(str(self._path), first, latest, self._named, self._off)
        block = EventStream.checked_block(columns, self.width, self.height, place, self.policy)
        self._off = place.off
        if whole and first == self._counted:
            self._counted += len(columns.t)
            self.outside += len(columns.t) - len(block)
            if self.policy.monotonic != "raise":
                t = columns.t if place.kept is None else columns.t[place.kept]
                late, lag = lags(t.astype(np.int64), latest)
                self.late, self.largest_lag_us = self.late + late, max(self.largest_lag_us, lag)
        return block


class StoredStream(EventStream):
    """An `EventStream` whose events stay in the file until they are used.

    `slice` reads its part and gives a plain stream, `blocks` walks through everything in bounded memory. The columns x, y,
    t, p load the whole file, once: ask for a slice instead where you can. Events are checked when they are read.
    """

    _source: Source
    _shift_us: int

    def __init__(self, source: Source, shift_us: int = 0) -> None:
        # The record is frozen, and has no columns of its own here, so its few values go in directly.
        vars(self).update(_source=source, _shift_us=shift_us, width=source.width, height=source.height, ordered=source.ordered)

    def __len__(self) -> int:
        return self._source.count()

    def __repr__(self) -> str:
        return f"StoredStream({self.width}x{self.height}, in {self._source})"

    def __getattr__(self, name: str) -> Any:
        if name in ("x", "y", "t", "p"):  # fields without a value of this instance's own
            return getattr(self._whole, name)
        raise AttributeError(name)

    @property
    def span(self) -> Window | None:
        found = self._source.span()
        return None if found is None else Window(found.start_us + self._shift_us, found.end_us + self._shift_us)

    def read_only(self) -> EventStream:
        """This stream itself: what it reads is its own copy, and its columns are read-only already."""
        return self

    def slice(self, window: Window) -> EventStream:
        part = EventStream.joined(self._source.blocks(self._own(window)), self.width, self.height)
        return part.shifted(self._shift_us) if self._shift_us else part

    def has(self, window: Window) -> bool:
        """Whether any event lies in the window; it is read up to the first one."""
        return next(self._source.blocks(self._own(window)), None) is not None

    def _own(self, window: Window) -> Window:
        """A window on the clock of the file."""
        return Window(window.start_us - self._shift_us, window.end_us - self._shift_us)

    def blocks(self) -> Iterator[EventStream]:
        """The whole stream, block by block, never more than one of them in memory."""
        for block in self._source.blocks():
            yield block.shifted(self._shift_us) if self._shift_us else block

    def shifted(self, delta_us: int) -> EventStream:
        return StoredStream(self._source, self._shift_us + delta_us)

    @cached_property
    def _whole(self) -> EventStream:
        return EventStream.joined(self.blocks(), self.width, self.height).read_only()


def held(source: Source, file_bytes: int) -> EventStream:
    """The stream in memory when it is short, and in its file when it is long; the number of events is not known before."""
    parts: list[EventStream] = []
    count = 0
    for block in source.blocks():
        parts.append(block)
        count += len(block)
        if not is_short(count, file_bytes):
            return StoredStream(source)
    return EventStream.joined(parts, source.width, source.height)


def is_short(count: int, file_bytes: int) -> bool:
    """At most `HELD_EVENTS`, and at most one event a byte of the file (beyond a million of them): a small file that unpacks
    into much more than it stores is read in parts too."""
    return count <= min(HELD_EVENTS, max(LEAST_HELD, file_bytes))


def hull(spans: Iterable[Window | None]) -> Window | None:
    """The smallest window that holds all of these, None without any."""
    known = [span for span in spans if span is not None]
    return Window(min(span.start_us for span in known), max(span.end_us for span in known)) if known else None


def overlap(span: Window, window: Window | None) -> bool:
    """Whether two windows share a moment; None is all time."""
    return window is None or (span.start_us < window.end_us and window.start_us < span.end_us)
