"""What every reader of a recording gives back, and whether its two halves belong together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from eventspec.core import BadInput, Window
from eventspec.events.formats.family import Inertial
from eventspec.events.stream import EventStream
from eventspec.files import check_name
from eventspec.imu import ImuStream
from eventspec.video.clip import VideoClip

LEAST_OVERLAP = 0.9
LEAST_COVERED = 0.5  # of the frames' time, by the events: a quiet scene has fewer of them, but not for half of it


class Contents(NamedTuple):
    """A recording's name, events and frames on one clock, notes (one sentence on each thing assumed or lost), where it comes
    from, as far as it says so, and what its IMU recorded."""

    name: str
    events: EventStream | None
    video: VideoClip | None
    notes: tuple[str, ...]
    source: str = ""
    imu: ImuStream | None = None


def together(path: Path, events: EventStream | None, video: VideoClip | None, notes: Iterable[str]) -> Contents:
    """The contents of a file or folder whose events and frames must meet."""
    name = path.resolve().name if path.is_dir() else path.stem
    return Contents(name, events, video, (*notes, *meeting_notes(events, video, str(path))))


def imu_of(found: Inertial | None, source: str) -> tuple[ImuStream | None, tuple[str, ...]]:
    """A file's inertial samples as a stream, and notes."""
    return (None, ()) if found is None else ImuStream.checked(*found, source=source)


def meeting_notes(events: EventStream | None, video: VideoClip | None, source: str) -> tuple[str, ...]:
    """A note when events and frames on one clock share little of it; BadInput when they do not meet at all."""
    first, second = (None if part is None else part.span for part in (events, video))
    if first is None or second is None:
        return ()
    overlap = min(first.end_us, second.end_us) - max(first.start_us, second.start_us)
    if overlap <= 0:
        both = f"events {words(first)} and frames {words(second)} do not overlap"
        raise BadInput(f"{source}: {both}: give files of one recording, or write both on one clock")
    share = overlap / min(first.duration_us, second.duration_us)
    return (f"events and frames share only {share:.0%} of the shorter of the two",) if share < LEAST_OVERLAP else ()


def covering_notes(events: EventStream | None, video: VideoClip | None) -> tuple[str, ...]:
    """A note when events cover little of the frames' time, from the first of them to the last."""
    seen = None if video is None else video.span
    if events is None or video is None or seen is None or len(video) < 2:
        return ()
    span = events.span
    if span is None:
        return ("there are frames, and not one event",)
    share = max(0, min(span.end_us, seen.end_us) - max(span.start_us, seen.start_us)) / seen.duration_us
    both = f"the events are from {words(span)}, the frames from {words(seen)}"
    return (f"events cover only {share:.1%} of the frames' time: {both}",) if share < LEAST_COVERED else ()


def words(window: Window) -> str:
    return f"[{window.start_us}, {window.end_us}) us"


def inside(folder: Path, value: str) -> Path | None:
    """The path that a file names, or None when it leaves the folder: a data set must not reach for other files."""
    posix, windows = PurePosixPath(value), PureWindowsPath(value)
    leaves = posix.is_absolute() or bool(windows.drive or windows.root) or ".." in (*posix.parts, *windows.parts)
    try:
        stays = not leaves and check_name(folder / value).resolve().is_relative_to(folder.resolve())
    except ValueError:  # a name with a zero byte, or with half a letter
        return None
    return folder / value if stays else None
