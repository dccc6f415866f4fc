"""What the questions about one recording share: the keys and values of the prompt up to its last visual row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """What has been read of a prompt, in `cache`: so many `rows`, and what the layers that `outputs` names (from 1, 0 = the
    embedding) gave for each, in parts. capacity: rows of a cache for this prompt and its answer alone."""

    prompt: Prompt
    cache: KVCache
    capacity: int
    outputs: dict[int, list[Tensor]] = field(default_factory=dict)
    rows: int = 0

    def add(self, rows: int, outputs: Mapping[int, Tensor]) -> None:
        """So many more rows were read; the layers' outputs begin with theirs."""
        self.rows += rows
        for layer, parts in self.outputs.items():
            parts.append(outputs[layer][:rows])


class Prefix:
    """The latest reading's cache, cut to what does not depend on the question, for `language`. Several threads may ask."""

    def __init__(self, language: Llama) -> None:
        self.language = language
        self._latest: Reading | None = None
        self._lent: LentCache | None = None
        self._lock = ProcessLock()

    def begin(self, prompt: Prompt, capacity: int, layers: Collection[int] = ()) -> tuple[Reading, Loan]:
        """A reading of a prompt that keeps the outputs of `layers`, and has as much of it as was read before; `capacity` rows
        are for all that is to come. Its cache is the reader's until the loan is dropped."""
        capacity += -capacity % SPARE
        with self._lock:
            rows = self._known(prompt, layers)
            if self._lent is None or (not rows and self._lent.taken):
                self._lent = LentCache(self.language.new_cache(capacity))
            latest = self._latest
            kept = {layer: [_first(latest.outputs[layer], rows)] if rows and latest else [] for layer in layers}
            cache, loan = self._lent.lend(rows, capacity)
            reading = Reading(prompt, cache, capacity, kept, rows)
            if latest is not None and self._covers(latest, prompt, reading):
                latest.cache = self._lent.cache  # the same rows, in a larger cache maybe
            elif cache is self._lent.cache:
                self._latest = reading
        return reading, loan

    @staticmethod
    def _covers(latest: Reading, prompt: Prompt, reading: Reading) -> bool:
        """Whether the latest reading has all rows that a new one will leave, and outputs that the new one will not."""
        visual = reading.rows >= prompt.visual[1] == latest.prompt.visual[1]
        return visual and latest.outputs.keys() > reading.outputs.keys()

    def _known(self, prompt: Prompt, layers: Collection[int]) -> int:
        """How many rows the latest reading shares with a prompt; none where outputs of `layers` are wanted that it lacks."""
        latest = self._latest
        if latest is None or not latest.outputs.keys() >= set(layers):
            return 0
        rows = min(latest.prompt.visual[1], latest.rows, latest.cache.length, prompt.visual[1])
        return rows if rows and torch.equal(latest.prompt.rows[:rows], prompt.rows[:rows]) else 0


def _first(parts: list[Tensor], rows: int) -> Tensor:
    """The first rows of several parts; most often those of the first part."""
    return parts[0][:rows] if len(parts[0]) >= rows else torch.cat(parts)[:rows]
