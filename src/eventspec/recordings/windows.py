"""Windows that slide over a recording."""

from __future__ import annotations

from collections.abc import Iterator

from eventspec.core import BadInput, Window
from eventspec.recordings.recording import Recording


def sliding_windows(
    recording: Recording, length_us: int, step_us: int | None = None, *, partial: bool = False
) -> Iterator[Recording]:
    """The recording in windows of `length_us` microseconds, one every `step_us` (default: `length_us`, end to end).

    The first begins with the recording; windows are half-open, and a part's `span` is what it holds. Only whole windows are
    given, unless `partial`: then the shorter ones at the end too. Nothing is copied, and of long files only the window is
    read. BadInput for a length or step that is no whole number from 1 on, and for a recording of nothing.
    """
    step_us = length_us if step_us is None else step_us
    for name, value in (("length_us", length_us), ("step_us", step_us)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} is {value!r}: give whole microseconds from 1 on")
    span = recording.span
    starts = (start for start in range(span.start_us, span.end_us, step_us) if partial or start + length_us <= span.end_us)
    return (recording.slice(Window(start, min(start + length_us, span.end_us))) for start in starts)
