"""Recordings: events and frames on one clock, and the folder they are kept in."""

from eventspec.recordings.native import write_native
from eventspec.recordings.recording import Recording

__all__ = ["Recording", "write_native"]
