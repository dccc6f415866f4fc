"""Which drafters hung lately: a circuit breaker, so that a request does not wait for what the last ones waited for in vain."""

from __future__ import annotations

import threading
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
    hangs: int = 0
    until: float = 0.0


class Breaker:
    """Drafters by identity (one may define equality as it likes); shared by the requests of one set of lanes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._records, self._lock = clock, list[_Record](), threading.Lock()

    def hung(self, drafter: object) -> None:
        """A call of the drafter missed its deadline."""
        with self._lock:
            if (record := self._of(drafter)) is None:
                record = _Record(drafter)
                self._records = [*self._records[1 - _REMEMBERED :], record]
            record.hangs += 1
            if record.hangs >= ENOUGH:
                record.until = self._clock() + min(LONGEST, REST * 2.0 ** (record.hangs - ENOUGH))

    def came_back(self, drafter: object) -> None:
        """A call of the drafter ended in time."""
        if self._records:
            with self._lock:
                self._records = [record for record in self._records if record.drafter is not drafter]

    def deadline(self, drafter: object, usual: float) -> float:
        """Seconds to wait for a call: a drafter that hung the last time is waited for a quarter as long."""
        with self._lock:
            return usual if self._of(drafter) is None else usual / 4

    def resting(self, drafter: object) -> float:
        """Seconds for which the drafter is still to be left alone."""
        with self._lock:
            record = self._of(drafter)
            return 0.0 if record is None else max(0.0, record.until - self._clock())

    def _of(self, drafter: object) -> _Record | None:
        return next((record for record in self._records if record.drafter is drafter), None)
