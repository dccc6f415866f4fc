"""Video files through PyAV: RGB frames with the times the file gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.video.clip import VideoClip
from eventspec.video.stored import LARGEST_BYTES, Frames

MICROSECONDS = 1_000_000
VIDEO_STARTS = (b"\x1a\x45\xdf\xa3", b"RIFF", b"OggS", b"FLV\x01", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")
VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mpg", ".mpeg", ".ogv", ".flv", ".wmv"})


@dataclass(frozen=True, eq=False)
class VideoFile:
    """What one file or folder held, and what the reader assumed or lost."""

    clip: VideoClip
    notes: tuple[str, ...] = ()


def looks_like_video(path: Path) -> bool:
    """Whether the first bytes are those of a video container, or the name says so (MPEG streams have no clear start)."""
    with path.open("rb") as file:
        head = file.read(64)
    return head[4:8] in (b"ftyp", b"moov", b"mdat") or head.startswith(VIDEO_STARTS) or path.suffix.lower() in VIDEO_SUFFIXES


def decode_frames(
    path: Path | str, window: Window | None = None, *, stride: int = 1, max_bytes: int = LARGEST_BYTES
) -> VideoClip:
    """The frames of a video file as a clip; see `open_video`, which also gives the notes."""
    return open_video(path, window, stride=stride, max_bytes=max_bytes).clip


def open_video(path: Path | str, window: Window | None = None, *, stride: int = 1, max_bytes: int = LARGEST_BYTES) -> VideoFile:
    """Decode the frames whose time lies in `window` (file clock, default all), every `stride`-th of them.

    Times are pts * time_base, rounded to microseconds. A torn file keeps the frames before the tear and a note says so.
    Raises BadInput for a missing or unreadable file, one without video, no frame in the window, or more than `max_bytes` of
    decoded frames (the remedy is a window or a stride).
    """
    import av

    path = Path(path)
    if stride < 1:
        raise BadInput(f"stride is {stride}: it must be at least 1")
    if not path.is_file():
        raise BadInput(f"{path}: no such video file: check the path")
    _refuse_playlist(path)
    try:
        try:
            found = _decoded(path, window, stride, max_bytes, seek=window is not None and window.start_us > 0)
        except _Overshot:
            found = _decoded(path, window, stride, max_bytes, seek=False)
    except av.FFmpegError as error:
        raise BadInput(
            f"{path}: not a readable video ({' '.join(str(error).split())[:120]}): copy or record it again"
        ) from None
    frames, times, notes = found
    if not frames:
        where = f" in [{window.start_us}, {window.end_us}) us" if window else ""
        raise BadInput(f"{path}: no frame can be decoded{where}: choose another window, or copy the file again")
    kept = _same_size(frames, times, notes)
    return VideoFile(VideoClip.checked(np.stack(kept[0]), np.array(kept[1], np.int64), source=str(path)), tuple(notes))


def _refuse_playlist(path: Path) -> None:
    """BadInput for text: FFmpeg would take it for a playlist and read what it names."""
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise BadInput(f"{path}: the file is empty (0 bytes): copy or record it again")
    if all(byte >= 32 or byte in b"\t\r\n" for byte in head) and not head.startswith((b"RIFF", b"OggS")):
        raise BadInput(f"{path}: is text, not a video: playlists are not followed, give the video itself")


class _Overshot(Exception):
    """Seeking landed after the start of the window (files without an index): decode from the beginning instead."""


def _decoded(
    path: Path, window: Window | None, stride: int, max_bytes: int, *, seek: bool
) -> tuple[list[Frames], list[int], list[str]]:
    """Every `stride`-th frame of the window as RGB, the times, and notes."""
    import av

    frames: list[Frames] = []
    times: list[int] = []
    notes: list[str] = []
    used = 0
    # Only the file itself: containers can name other files and addresses to fetch.
    with av.open(str(path), options={"protocol_whitelist": "file"}) as container:
        if not container.streams.video:
            raise BadInput(f"{path}: the file has no video stream: give a video")
        seen = 0
        for seen, (time_us, frame) in enumerate(_timed(container, window, notes, seek=seek), start=1):
            if (seen - 1) % stride:
                continue
            frames.append(frame.to_ndarray(format="rgb24"))
            times.append(time_us)
            used += frames[-1].nbytes
            if used > max_bytes:
                most = f"more than {max_bytes >> 20} MiB of decoded frames"
                remedy = "choose a window or a stride, or give its frames as a folder of images, which stay in their files"
                raise BadInput(f"{path}: {most} after {len(frames)} of them: {remedy}")
        if window is None and times:
            notes.extend(_missing(container, seen, times))
    return frames, times, notes


def _missing(container: Any, seen: int, times: list[int]) -> list[str]:
    """A note when the file promises more frames, or a longer film, than could be decoded."""
    stream = container.streams.video[0]
    if seen < stream.frames:
        lost = f"{stream.frames - seen} of {stream.frames} frames are lost"
        return [f"{lost}: the file is torn or damaged, everything before is kept"]
    frame_us = MICROSECONDS / float(stream.average_rate or 20)
    missing_us = (container.duration or 0) - (times[-1] - times[0]) - frame_us
    if not stream.frames and missing_us > 2 * frame_us:
        return [
            f"the last {missing_us / 1e6:.2f} s the file promises have no frames: it may be torn, everything before is kept"
        ]
    return []


def _timed(container: Any, window: Window | None, notes: list[str], *, seek: bool) -> Iterator[tuple[int, Any]]:
    """(microseconds, frame) in order of presentation, inside the window only; ends at the first damaged packet."""
    import av

    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    base = Fraction(stream.time_base or Fraction(1, MICROSECONDS))
    rate = Fraction(stream.average_rate or 20)
    start_us, end_us = (window.start_us, window.end_us) if window else (None, None)
    if seek and start_us is not None:
        container.seek(int(Fraction(start_us, MICROSECONDS) / base), stream=stream, backward=True)
    decoded = container.decode(stream)
    count = 0
    while True:
        try:
            frame = next(decoded, None)
        except av.FFmpegError as error:
            if not count:
                raise
            notes.append(f"the video is damaged after frame {count} ({error.strerror}): everything before is kept")
            return
        if seek and not count and (frame is None or frame.pts is None or frame.pts * base * MICROSECONDS > (start_us or 0)):
            raise _Overshot
        if frame is None:
            return
        if frame.pts is None:
            note = f"the file gives no frame times: {float(rate):g} frames a second are assumed"
            notes.extend([note] if note not in notes else [])
        exact = Fraction(count) / rate if frame.pts is None else frame.pts * base
        time_us = round(exact * MICROSECONDS)
        count += 1
        if end_us is not None and time_us >= end_us:
            return
        if start_us is None or time_us >= start_us:
            yield time_us, frame


def _same_size(frames: list[Frames], times: list[int], notes: list[str]) -> tuple[list[Frames], list[int]]:
    """The frames of the first frame's size (a stream may change its size midway)."""
    kept = [index for index, frame in enumerate(frames) if frame.shape == frames[0].shape]
    if len(kept) < len(frames):
        notes.append(f"{len(frames) - len(kept)} frames are left out: their size is not that of the first frame")
    return [frames[index] for index in kept], [times[index] for index in kept]
