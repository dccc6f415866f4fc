"""What is known of a video file from its packets, without decoding: when each frame is shown, and where decoding can begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.video.stored import LARGEST_FRAME

DEMUXERS = "mov,matroska,avi,mpegts,mpeg,mpegvideo,m4v,flv,ogg,asf"
"""FFmpeg's names of the containers that are read. None of them opens another file."""
MICROSECONDS = 1_000_000
MIXED = 16  # frames H.264 may hold back to put them in order

Marks = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Packets:
    """marks int64 [K]: the pts of the frames, ascending, and times_us, rounded exactly; keys int64 [N]: pts of the key frames.

    reliable: whether the packets look as if every one gives one frame at its own time; only decoding shows that they do.
    track: which of the file's video streams they are of.
    """

    marks: Marks
    times_us: Marks
    keys: Marks
    reliable: bool
    track: int = 0


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The PyAV container. Only the file itself is read: what names other files and addresses is not among `DEMUXERS`."""
    import av

    options = {"protocol_whitelist": "file", "format_whitelist": DEMUXERS}
    with av.open(f"file:{path}", options=options, metadata_errors="replace") as container:
        for stream in container.streams.video:
            if stream.codec_context is not None:
                stream.thread_type = "AUTO"
                stream.codec_context.options = {"max_pixels": str(LARGEST_FRAME)}
        yield container


def survey(container: Any) -> Packets:
    """Walk through all packets of the video streams, and choose one; a file that breaks off in between is not reliable.

    Pictures that are attached to the file, such as a cover, are never chosen, nor is a stream of less than half the packets of
    another. The file's own choice comes before the largest. BadInput where no stream can be decoded.
    """
    import av
    from av.stream import Disposition

    films = [
        stream
        for stream in container.streams.video
        if stream.codec_context is not None and not stream.disposition & Disposition.attached_pic
    ]
    if not films:
        raise BadInput(f"{container.name.removeprefix('file:')}: has no video stream that can be decoded: give a video")
    walks = {stream.index: _Walk(stream) for stream in films}
    torn = False
    try:
        for packet in container.demux(films):
            walks[packet.stream.index].take(packet)
    except av.FFmpegError:
        torn = True
    longest = max(len(walk.shown) for walk in walks.values())

    def rank(stream: Any) -> tuple[bool, bool, int]:
        whole = 2 * len(walks[stream.index].shown) >= longest
        return whole, bool(stream.disposition & Disposition.default), stream.codec_context.width * stream.codec_context.height

    return walks[max(films, key=rank).index].packets(torn)


class _Walk:
    """The packets of one stream, as they lie in the file."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.shown: list[int] = []
        self.keys: list[int] = []
        self.reliable = stream.codec_context.name != "vp8"  # its packets may be frames that are never shown
        self.stored_at: int | None = None

    def take(self, packet: Any) -> None:
        if not packet.size:
            self.reliable &= packet.dts is None  # only the last, which is not in the file: an empty one gives no frame
            return
        backwards = self.stored_at is not None and packet.dts is not None and packet.dts <= self.stored_at
        self.stored_at = packet.dts if packet.dts is not None else self.stored_at
        self.reliable &= not (packet.is_corrupt or packet.pts is None or backwards)
        if packet.pts is None:
            return
        if packet.is_keyframe:
            self.keys.append(packet.pts)
        if not packet.is_discard:  # what an edit list cuts away is decoded but not shown
            self.shown.append(packet.pts)

    def packets(self, torn: bool) -> Packets:
        marks = np.array(sorted(self.shown), np.int64)
        reliable = self.reliable and not torn and bool(len(marks)) and bool((np.diff(marks) > 0).all())
        base = Fraction(self.stream.time_base or Fraction(1, MICROSECONDS))
        times_us = np.array([round(mark * base * MICROSECONDS) for mark in marks.tolist()], np.int64)
        track = [stream.index for stream in self.stream.container.streams.video].index(self.stream.index)
        return Packets(marks, times_us, np.array(sorted(set(self.keys)), np.int64), reliable, track)


def other_streams(container: Any, chosen: int) -> tuple[str, ...]:
    """A note that names the video streams of a file that are not read, where there are some."""
    from av.stream import Disposition

    others = []
    for track, stream in enumerate(container.streams.video):
        codec = stream.codec_context
        what = "unknown to the decoder" if codec is None else f"{codec.name} {codec.width}x{codec.height}"
        attached = ", an attached picture" if stream.disposition & Disposition.attached_pic else ""
        others += [f"{track} ({what}{attached})"] if track != chosen else []
    return (f"video stream {chosen} of the file is read, not {', '.join(others)}",) if others else ()


def in_order(times_us: list[int]) -> tuple[list[int], bool]:
    """Times of frames in order of presentation, and whether they had to be sorted for that.

    AVI numbers the packets as they are stored, so the times of H.264 with B-frames are the right ones in the wrong places.
    A clock that goes back by more than that is left as it is: it was set again.
    """
    places = np.argsort(times_us, kind="stable")
    moved = int(np.abs(places - np.arange(len(places))).max(initial=0))
    return (sorted(times_us), True) if 0 < moved <= MIXED else (times_us, False)
