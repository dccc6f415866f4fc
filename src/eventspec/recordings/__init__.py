"""Recordings: events, frames and inertial samples on one clock, and the folder they are kept in."""

from eventspec.recordings.native import write_native
from eventspec.recordings.offset import EventOffset, estimate_event_offset
from eventspec.recordings.recording import Recording, sliding_windows

__all__ = ["EventOffset", "Recording", "estimate_event_offset", "sliding_windows", "write_native"]
