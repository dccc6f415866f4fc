"""The trace of one request: what happened when, as a record, a file for Perfetto and a picture. `core` hands its names on."""

from eventspec.trace.record import Lane, Round, Span, Stage, Trace

__all__ = ["Lane", "Round", "Span", "Stage", "Trace"]
