"""Which drafters hung lately: a circuit breaker, so that a request does not wait for what the last ones waited for in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

ENOUGH = 2
"""A drafter that hung so often in a row is left alone,"""
REST = 60.0
"""for so many seconds; then it gets one try, and after every further hang it is left alone twice as long,"""
LONGEST = 3600.0
"""up to this. A call that hangs keeps its thread for good: this bounds how many there are."""
_REMEMBERED = 64


@dataclass
class _Record:
    drafter: object
    """Kept, so that its id stays its own."""
    hangs: int = 0
    until: float = 0.0


class Breaker:
    """Drafters by identity (one may define equality as it likes); for the requests of one set of lanes, on the target's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._records = clock, dict[int, _Record]()

    def hung(self, drafter: object) -> None:
        """A call of the drafter missed its deadline."""
        record = self._records.setdefault(id(drafter), _Record(drafter))
        record.hangs += 1
        if record.hangs >= ENOUGH:
            record.until = self._clock() + min(LONGEST, REST * 2.0 ** (record.hangs - ENOUGH))
        if len(self._records) > _REMEMBERED:
            del self._records[next(iter(self._records))]

    def came_back(self, drafter: object) -> None:
        """The calls of a whole request ended in time."""
        self._records.pop(id(drafter), None)

    def deadline(self, drafter: object, usual: float) -> float:
        """Seconds to wait for a call: a drafter that hung the last time is waited for a quarter as long."""
        return usual / 4 if id(drafter) in self._records else usual

    def resting(self, drafter: object) -> float:
        """Seconds for which the drafter is still to be left alone."""
        record = self._records.get(id(drafter))
        return 0.0 if record is None else max(0.0, record.until - self._clock())
