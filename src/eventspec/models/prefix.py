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
    """What has been read of a prompt, in `cache`: the last layer's outputs and those of the layers `taps`, as they come.
    capacity: rows of a cache for this prompt and its answer alone."""

    prompt: Prompt
    cache: KVCache
    capacity: int
    taps: tuple[int, ...] = ()
    hidden: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows of the prompt were read."""
        return sum(map(len, self.hidden))


class Prefix:
    """The latest reading's cache, cut to what does not depend on the question, for `language`. Several threads may ask."""

    def __init__(self, language: Llama) -> None:
        self.language = language
        self._latest: Reading | None = None
        self._lent: LentCache | None = None
        self._lock = ProcessLock()

    def begin(self, prompt: Prompt, capacity: int, taps: tuple[int, ...] = ()) -> tuple[Reading, Loan]:
        """A reading of a prompt that has as much of it as was read before; `capacity` rows are for all that is to come. Its
        cache is the reader's until the loan is dropped."""
        capacity += -capacity % SPARE
        with self._lock:
            known = self._known(prompt, taps)
            if self._lent is None or (known is None and self._lent.taken):
                self._lent = LentCache(self.language.new_cache(capacity))
            hidden, features = known or ([], [])
            cache, loan = self._lent.lend(sum(map(len, hidden)), capacity)
            reading = Reading(prompt, cache, capacity, taps, hidden, features)
            if self._latest is not None and self._covers(self._latest, prompt, reading):
                self._latest.cache = self._lent.cache  # the same rows, in a larger cache maybe
            elif cache is self._lent.cache:
                self._latest = reading
        return reading, loan

    @staticmethod
    def _covers(latest: Reading, prompt: Prompt, reading: Reading) -> bool:
        """Whether the latest reading has all that a new one will leave behind, and features that the new one will not."""
        whole = reading.rows >= prompt.visual[1] == latest.prompt.visual[1]
        return whole and bool(latest.taps) and not reading.taps

    def _known(self, prompt: Prompt, taps: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]] | None:
        """Outputs and features of the rows that the latest reading shares with a prompt, where `taps` can be had."""
        latest = self._latest
        if latest is None:
            return None
        rows = min(latest.prompt.visual[1], latest.rows, latest.cache.length, prompt.visual[1])
        if not rows or not torch.equal(latest.prompt.rows[:rows], prompt.rows[:rows]):
            return None
        hidden = _first(latest.hidden, rows)
        if not taps:
            return [hidden], []
        if taps == latest.taps:
            return [hidden], [_first(latest.features, rows)]
        return ([hidden], [self.language.normed(hidden)]) if taps == (-1,) else None


def _first(parts: list[Tensor], rows: int) -> Tensor:
    """The first rows of several parts; most often those of the first part."""
    return parts[0][:rows] if len(parts[0]) >= rows else torch.cat(parts)[:rows]
