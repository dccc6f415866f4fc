"""What every reader of a recording gives back, and whether its two halves belong together."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream
from eventspec.video.clip import VideoClip

LEAST_OVERLAP = 0.9


class Parts(NamedTuple):
    """A recording's name, events and frames on one clock, notes (one sentence on each thing assumed or lost), and where it
    comes from, as far as it says so."""

    name: str
    events: EventStream | None
    video: VideoClip | None
    notes: tuple[str, ...]
    source: str = ""


def meeting_notes(events: EventStream | None, video: VideoClip | None, source: str) -> tuple[str, ...]:
    """A note when events and frames on one clock share little of it; BadInput when they do not meet at all."""
    spans = [part.span for part in (events, video) if part is not None]
    if len(spans) < 2 or spans[0] is None or spans[1] is None:
        return ()
    heard, seen = spans[0], spans[1]
    overlap = min(heard.end_us, seen.end_us) - max(heard.start_us, seen.start_us)
    if overlap <= 0:
        raise BadInput(
            f"{source}: events {words(heard)} and frames {words(seen)} do not overlap: give files of one recording, "
            "or write both on one clock"
        )
    share = overlap / min(heard.duration_us, seen.duration_us)
    return (f"events and frames share only {share:.0%} of the shorter of the two",) if share < LEAST_OVERLAP else ()


def words(window: Window) -> str:
    """The window as messages show it."""
    return f"[{window.start_us}, {window.end_us}) us"


def inside(folder: Path, value: str) -> Path | None:
    """The path that a file names, or None when it leaves the folder: a data set must not reach for other files."""
    posix, windows = PurePosixPath(value), PureWindowsPath(value)
    leaves = posix.is_absolute() or bool(windows.drive or windows.root) or ".." in (*posix.parts, *windows.parts)
    if leaves or "\0" in value or not (folder / value).resolve().is_relative_to(folder.resolve()):
        return None
    return folder / value
