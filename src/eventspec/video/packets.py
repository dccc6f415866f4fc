"""What is known of a video file from its packets, without decoding: when each frame is shown, and where decoding can begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

MICROSECONDS = 1_000_000
MIXED = 16  # frames H.264 may hold back to put them in order

Marks = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Packets:
    """marks int64 [K]: the pts of the frames, ascending, and times_us, rounded exactly; keys int64 [N]: pts of the key frames.

    reliable: whether the packets look as if every one gives one frame at its own time; only decoding shows that they do.
    """

    marks: Marks
    times_us: Marks
    keys: Marks
    reliable: bool


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The PyAV container. Only the file itself is read: containers can name other files and addresses to fetch."""
    import av

    with av.open(str(path), options={"protocol_whitelist": "file"}) as container:
        for stream in container.streams.video[:1]:
            stream.thread_type = "AUTO"
        yield container


def survey(container: Any) -> Packets:
    """Walk through all packets of the first video stream; a file that breaks off in between is not reliable."""
    import av

    stream = container.streams.video[0]
    shown: list[int] = []
    keys: list[int] = []
    reliable = stream.codec_context.name != "vp8"  # its packets may be frames that are never shown
    stored_us: int | None = None
    try:
        for packet in container.demux(stream):
            if not packet.size:
                reliable &= packet.dts is None  # only the last, which is not in the file: an empty one gives no frame
                continue
            backwards = stored_us is not None and packet.dts is not None and packet.dts <= stored_us
            stored_us = packet.dts if packet.dts is not None else stored_us
            reliable &= not (packet.is_corrupt or packet.pts is None or backwards)
            if packet.pts is None:
                continue
            if packet.is_keyframe:
                keys.append(packet.pts)
            if not packet.is_discard:  # what an edit list cuts away is decoded but not shown
                shown.append(packet.pts)
    except av.FFmpegError:
        reliable = False
    marks = np.array(sorted(shown), np.int64)
    reliable &= bool(len(marks)) and bool((np.diff(marks) > 0).all())
    base = Fraction(stream.time_base or Fraction(1, MICROSECONDS))
    times_us = np.array([round(mark * base * MICROSECONDS) for mark in marks.tolist()], np.int64)
    return Packets(marks, times_us, np.array(sorted(set(keys)), np.int64), reliable)


def in_order(times_us: list[int]) -> tuple[list[int], bool]:
    """Times of frames in order of presentation, and whether they had to be sorted for that.

    AVI numbers the packets as they are stored, so the times of H.264 with B-frames are the right ones in the wrong places.
    A clock that goes back by more than that is left as it is: it was set again.
    """
    places = np.argsort(times_us, kind="stable")
    moved = int(np.abs(places - np.arange(len(places))).max(initial=0))
    return (sorted(times_us), True) if 0 < moved <= MIXED else (times_us, False)
