"""The peak memory of a process, for the tests that bound one (Linux)."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(reset: bool = False) -> int:
    """Largest resident memory of this process, in bytes, since it began or since the last reset.

    Not getrusage's figure: that one starts at the parent's peak.
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
