"""What the sources of events share, whatever their file: events are checked block by block, and times that go back counted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import Window
from eventspec.events.formats.family import LONG_NOTE, EventFile, SensorSize, order_notes
from eventspec.events.stored import StoredStream
from eventspec.events.stream import Block, EventStream, Monotonic, Named, OffValue, lags


class Columns(NamedTuple):
    """Events of one block as they stand in the file, unchecked: [E] each, t in microseconds."""

    x: np.ndarray[Any, np.dtype[Any]]
    y: np.ndarray[Any, np.dtype[Any]]
    t: np.ndarray[Any, np.dtype[Any]]
    p: np.ndarray[Any, np.dtype[Any]]


class CheckedSource:
    """The common part of every `stored.Source`; `named` as for `stream.Block`."""

    def __init__(self, path: Path, size: SensorSize, monotonic: Monotonic, named: Named | None = None) -> None:
        self.width, self.height = size
        self.ordered = monotonic != "keep"
        self._path, self._monotonic, self._named, self._off = path, monotonic, named, OffValue()
        self._late, self._largest_lag_us = 0, 0

    def __str__(self) -> str:
        return str(self._path)

    def _checked(self, columns: Columns, first: int, latest: int, count_late: bool) -> EventStream:
        """A block that begins with event `first` of the file; `latest`: the latest time before it. Times that go back are
        counted for the notes where the block is read for the first time."""
        place = Block(str(self._path), first, latest, self._named, self._off)
        block = EventStream.checked_block(columns, self.width, self.height, place, self._monotonic)
        if count_late and self._monotonic != "raise":
            late, lag = lags(columns.t.astype(np.int64), latest)
            self._late, self._largest_lag_us = self._late + late, max(self._largest_lag_us, lag)
        return block

    def file(self, name: str, stream: EventStream, notes: Iterable[str]) -> EventFile:
        """The file as a whole, of the family `name`, once `stream` was read from this source or left in it."""
        found = [*notes, *order_notes(self._late, self._largest_lag_us, self.ordered)]
        return EventFile(name, stream, (*found, LONG_NOTE) if isinstance(stream, StoredStream) else tuple(found))


def hull(spans: Iterable[Window | None]) -> Window | None:
    """The smallest window that holds all of these, None without any."""
    known = [span for span in spans if span is not None]
    return Window(min(span.start_us for span in known), max(span.end_us for span in known)) if known else None


def overlap(span: Window, window: Window | None) -> bool:
    """Whether two windows share a moment; None is all time."""
    return window is None or (span.start_us < window.end_us and window.start_us < span.end_us)
