"""How much of the machine other processes take: parallel work on a core that another process uses waits at every barrier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

STAT = Path("/proc/stat")
LATELY = 2.0
"""Seconds after which a mean says nothing about now."""
SHORTEST = 0.25
"""Seconds that a mean needs: the system counts in hundredths."""
LITTLE = 0.25
"""Share of a core that does not count: what any system does in the background."""


class Load:
    """What other processes have of some `cores`, as Linux counts it; elsewhere nothing is known and nothing assumed."""

    def __init__(self, cores: Sequence[int | None]) -> None:
        self._names = {f"cpu{core}" for core in cores}
        self._mean = 0.0
        self._since = self._look()

    def taken(self) -> int:
        """How many cores others keep busy: by the mean since this was asked before, if that was lately, else by how many
        threads are at work just now, but for the one that asks."""
        now, last = self._look(), self._since
        if now is None or last is None:
            return 0
        passed = now[0] - last[0]
        if passed >= SHORTEST:
            self._since = now
            self._mean = now[3] - 1.0 if passed > LATELY else max(0.0, (now[1] - last[1]) - (now[2] - last[2])) / passed
        return min(len(self._names), max(0, int(self._mean + 1.0 - LITTLE)))

    def _look(self) -> tuple[float, float, float, int] | None:
        """Now, seconds that the cores were busy, seconds that this process was, and threads that want to run there: where there
        are other cores too, those of the whole machine that would be too many for these."""
        with suppress(OSError, ValueError, LookupError):
            rows = {name: counts for name, *counts in map(str.split, STAT.read_text().splitlines())}
            # User, nice, system, idle, waiting; then interrupts, and what a host took.
            own = [list(map(int, rows[name][:8])) for name in self._names & rows.keys()]
            busy = sum(sum(counts[:3]) + sum(counts[5:]) for counts in own) / 100
            elsewhere = sum(name.startswith("cpu") for name in rows) - 1 - len(own)  # one line is of all cores together
            return time.monotonic(), busy, time.process_time(), max(1, int(rows["procs_running"][0]) - elsewhere)
        return None
