"""Slices 50 ms out of a long DSEC-layout file and prints peak memory and time as JSON.

python benchmarks/long_file.py --events 500000000 --file long.h5    # writes the file first unless it is there (about 2 minutes)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from memory import peak_bytes

from eventspec.core import Window
from eventspec.events.formats import dsec_h5
from eventspec.events.stored import StoredStream
from eventspec.events.stream import EventStream

RATE_PER_US = 5  # events; DSEC's drives have 2 to 6
BLOCK = 1 << 20


class Street:
    """A `Source` of random events at a steady rate, never more than a block of it in memory."""

    width, height, ordered = 640, 480, True

    def __init__(self, events: int) -> None:
        self._events = events

    def blocks(self, window: Window | None = None) -> Iterator[EventStream]:
        rng = np.random.default_rng(7)
        x, y = rng.integers(0, 640, BLOCK, np.uint16), rng.integers(0, 480, BLOCK, np.uint16)
        p = rng.integers(0, 2, BLOCK, np.uint8)
        for start in range(0, self._events, BLOCK):
            count = min(BLOCK, self._events - start)
            t = (start + np.arange(count)) // RATE_PER_US + 51_836_949_776
            yield EventStream(x[:count], y[:count], t, p[:count], 640, 480)

    def span(self) -> Window:
        return Window(51_836_949_776, 51_836_949_776 + (self._events - 1) // RATE_PER_US + 1)

    def count(self) -> int:
        return self._events


def measure(path: Path, windows: int) -> dict[str, float | int]:
    """In this fresh process: open, slice `windows` times at random places, and once more what was sliced last."""
    from eventspec.recordings import Recording

    imported = peak_bytes()
    began = time.perf_counter()
    recording = Recording.open(path)
    opened = time.perf_counter() - began
    span = recording.span
    rng = np.random.default_rng(1)
    seconds, counts = [], []
    for _ in range(windows):
        start = int(rng.integers(span.start_us, span.end_us - 50_000))
        for _ in range(2):  # cold, then warm
            began = time.perf_counter()
            part = recording.slice(Window(start, start + 50_000))
            seconds.append(time.perf_counter() - began)
        counts.append(len(part.events or ()))
    warm = sorted(seconds[1::2])
    return {
        "events": len(recording.events or ()),
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "open_ms": round(opened * 1e3, 2),
        "slices": windows,
        "events_a_slice": int(np.median(counts)),
        "warm_ms_median": round(warm[len(warm) // 2] * 1e3, 2),
        "warm_ms_worst": round(warm[-1] * 1e3, 2),
        "first_ms_worst": round(max(seconds[::2]) * 1e3, 2),
        "peak_mb": round(peak_bytes() / 2**20, 1),
        "imports_mb": round(imported / 2**20, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=500_000_000)
    options.add_argument("--file", type=Path, required=True)
    options.add_argument("--windows", type=int, default=20)
    options.add_argument("--measure", action="store_true", help="only measure, in this process")
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.file, given.windows)))
        return
    if not given.file.exists():
        dsec_h5.write(given.file, StoredStream(Street(given.events)))
    # A process of its own: the writer's memory must not count.
    words = [sys.executable, __file__, "--file", str(given.file), "--windows", str(given.windows), "--measure"]
    sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
