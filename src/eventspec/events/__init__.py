"""Event streams: the record, its file formats, its pictures and its controls. It knows nothing about video."""

from eventspec.events.stream import EventStream, Monotonic

__all__ = ["EventStream", "Monotonic"]
