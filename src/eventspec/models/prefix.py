"""What the questions about one recording share: the keys and values of the prompt up to its last visual row."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eventspec.models.prompt import Prompt
from eventspec.nn import KVCache, Llama
from eventspec.nn.cache import LentCache, Loan
from eventspec.process_lock import ProcessLock

SPARE = 128
"""Rows by which caches grow: a prompt that is a few tokens longer than the last one needs no copy of what was read."""


@dataclass
class Reading:
    """What has been read of a prompt, in `cache`: so many `rows`, where `whole` with what the last layer gave for each.

    Then the features of the layers `taps` are kept too, if any; else the last layer need not give all that. capacity: rows of a
    cache for this prompt and its answer alone.
    """

    prompt: Prompt
    cache: KVCache
    capacity: int
    taps: tuple[int, ...] = ()
    whole: bool = False
    rows: int = 0
    hidden: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)

    def add(self, rows: int, hidden: Tensor, features: Tensor | None) -> None:
        """So many more rows were read; `hidden` and `features` begin with theirs where they are kept."""
        self.rows += rows
        if self.whole:
            self.hidden.append(hidden[:rows])
        if features is not None:
            self.features.append(features[:rows])


class Prefix:
    """The latest reading's cache, cut to what does not depend on the question, for `language`. Several threads may ask."""

    def __init__(self, language: Llama) -> None:
        self.language = language
        self._latest: Reading | None = None
        self._lent: LentCache | None = None
        self._lock = ProcessLock()

    def begin(self, prompt: Prompt, capacity: int, taps: tuple[int, ...] = (), whole: bool = False) -> tuple[Reading, Loan]:
        """A reading of a prompt that has as much of it as was read before; `capacity` rows are for all that is to come. Its
        cache is the reader's until the loan is dropped."""
        capacity += -capacity % SPARE
        with self._lock:
            rows, hidden, features = self._known(prompt, taps, whole)
            if self._lent is None or (not rows and self._lent.taken):
                self._lent = LentCache(self.language.new_cache(capacity))
            cache, loan = self._lent.lend(rows, capacity)
            reading = Reading(prompt, cache, capacity, taps, whole, rows, hidden, features)
            if self._latest is not None and self._covers(self._latest, prompt, reading):
                self._latest.cache = self._lent.cache  # the same rows, in a larger cache maybe
            elif cache is self._lent.cache:
                self._latest = reading
        return reading, loan

    @staticmethod
    def _covers(latest: Reading, prompt: Prompt, reading: Reading) -> bool:
        """Whether the latest reading has all that a new one will leave behind, and outputs that the new one will not."""
        visual = reading.rows >= prompt.visual[1] == latest.prompt.visual[1]
        return visual and ((bool(latest.taps) and not reading.taps) or (latest.whole and not reading.whole))

    def _known(self, prompt: Prompt, taps: tuple[int, ...], whole: bool) -> tuple[int, list[Tensor], list[Tensor]]:
        """How many rows the latest reading shares with a prompt, with their outputs and features; none where these are wanted
        and cannot be had."""
        latest, nothing = self._latest, (0, list[Tensor](), list[Tensor]())
        if latest is None or (whole and not latest.whole):
            return nothing
        rows = min(latest.prompt.visual[1], latest.rows, latest.cache.length, prompt.visual[1])
        if not rows or not torch.equal(latest.prompt.rows[:rows], prompt.rows[:rows]):
            return nothing
        hidden = [_first(latest.hidden, rows)] if whole else []
        if not taps:
            return rows, hidden, []
        if taps == latest.taps:
            return rows, hidden, [_first(latest.features, rows)]
        return (rows, hidden, [self.language.normed(hidden[0])]) if taps == (-1,) else nothing


def _first(parts: list[Tensor], rows: int) -> Tensor:
    """The first rows of several parts; most often those of the first part."""
    return parts[0][:rows] if len(parts[0]) >= rows else torch.cat(parts)[:rows]
