"""Recordings: events and frames on one clock, and the folder they are kept in."""

from eventspec.recordings.native import write_native
from eventspec.recordings.recording import Recording, sliding_windows

__all__ = ["Recording", "sliding_windows", "write_native"]
