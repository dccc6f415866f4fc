"""Video files through PyAV: RGB frames with the times the file gives them, in memory when few, else in the file."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.video.clip import VideoClip, VideoFile
from eventspec.video.packets import MICROSECONDS, Packets, in_order, opened, survey
from eventspec.video.seeking import SeekingReader
from eventspec.video.stored import LONG_NOTE, Frames, StoredFrames, is_short

DEFAULT_RATE = 20  # frames a second of a stream that states none, as for images
CHECKED = 8  # frames at the beginning whose times are decoded to see whether the packets tell the truth
VIDEO_STARTS = (b"\x1a\x45\xdf\xa3", b"RIFF", b"OggS", b"FLV\x01", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")
VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mpg", ".mpeg", ".ogv", ".flv", ".wmv"})


def looks_like_video(path: Path) -> bool:
    """Whether the first bytes are those of a video container, or the name says so (MPEG streams have no clear start)."""
    with path.open("rb") as file:
        head = file.read(64)
    return head[4:8] in (b"ftyp", b"moov", b"mdat") or head.startswith(VIDEO_STARTS) or path.suffix.lower() in VIDEO_SUFFIXES


def open_video(path: Path | str) -> VideoFile:
    """All frames of the first video stream.

    A short video is decoded now; the frames of a long one stay in the file and a note says so. Times are pts * time_base,
    rounded to microseconds: of a long one as the packets give them, checked by decoding the first frames and the last; where
    they are wrong or the file is torn, by decoding everything once.
    A torn file keeps the frames before the tear and a note says so; damage inside a long one is met when it is decoded.
    """
    import av

    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path}: no such video file: check the path")
    _refuse_playlist(path)
    try:
        return _opened_whole(path)
    except av.FFmpegError as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: not a readable video ({reason}): copy or record it again") from None


def _refuse_playlist(path: Path) -> None:
    """BadInput for text: FFmpeg would take it for a playlist and read what it names."""
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise BadInput(f"{path}: the file is empty (0 bytes): copy or record it again")
    if all(byte >= 32 or byte in b"\t\r\n" for byte in head) and not head.startswith((b"RIFF", b"OggS")):
        raise BadInput(f"{path}: is text, not a video: playlists are not followed, give the video itself")


def _opened_whole(path: Path) -> VideoFile:
    """All frames of the file, held or stored, and notes."""
    with opened(path) as container:
        if not container.streams.video:
            raise BadInput(f"{path}: the file has no video stream: give a video")
        packets = survey(container)
        times = packets.times_us
        lost = _lost(container, len(times), times.tolist())
    if packets.reliable:
        frames = _stored(path, packets)
        if frames is not None:
            notes = (f"{lost}, everything before is kept", LONG_NOTE) if lost else (LONG_NOTE,)
            return VideoFile(VideoClip.checked(frames, times, source=str(path)), notes)
    return _counted(path, packets)


def _stored(path: Path, packets: Packets) -> StoredFrames | None:
    """The frames that reliable packets promise, or None when they are few, or when decoding finds others."""
    import av

    try:
        with opened(path) as container:
            frames = list(islice(container.decode(video=0), CHECKED))
    except av.FFmpegError:
        return None  # damaged within the first frames: count them
    if not frames:
        return None
    size = frames[0].height, frames[0].width
    if is_short(len(packets.marks), *size) or [frame.pts for frame in frames] != packets.marks[: len(frames)].tolist():
        return None
    found = StoredFrames(SeekingReader(path, packets.marks, packets.keys), len(packets.marks), *size)
    try:
        found[-1]  # what was copied or recorded to a sudden end is damaged here first
    except BadInput:
        return None
    return found


def _counted(path: Path, packets: Packets) -> VideoFile:
    """All frames that can be decoded, one after the other; no more of them are in memory than a short video has."""
    held: list[Frames] = []
    kept: list[tuple[int, int, int | None]] = []  # time (us), number and pts of every frame of the first one's size
    notes: list[str] = []
    damage: list[str] = []
    size: tuple[int, int] | None = None
    seen = 0
    with opened(path) as container:
        for number, (time_us, frame) in enumerate(_timed(container, notes, damage)):
            seen = number + 1
            size = size or (frame.height, frame.width)
            if (frame.height, frame.width) != size:
                continue
            kept.append((time_us, number, frame.pts))
            if is_short(len(kept), *size):
                held.append(frame.to_ndarray(format="rgb24"))
            else:
                held.clear()
        times = [time for time, *_ in kept]
        lost = _lost(container, seen, times)
    if size is None:
        raise BadInput(f"{path}: no frame can be decoded: copy the file again")
    if lost or damage:
        notes.append(f"{lost or 'the video is damaged'}{''.join(damage)}, everything before is kept")
    if seen > len(times):
        notes.append(f"{seen - len(times)} frames are left out: their size is not that of the first frame")
    times, was_sorted = in_order(times)
    if was_sorted:
        notes.append("the file numbers its frames in the order they are stored in: their times are sorted")
    frames = np.stack(held) if held else StoredFrames(_reader(path, packets, kept), len(times), *size)
    notes += [] if held else [LONG_NOTE]
    return VideoFile(VideoClip.checked(frames, np.array(times, np.int64), source=str(path)), tuple(notes))


def _reader(path: Path, packets: Packets, kept: list[tuple[int, int, int | None]]) -> SeekingReader:
    """A reader by the frames' own times where each has one that is found among the packets, else by their numbers."""
    marks = np.array([pts for *_, pts in kept if pts is not None], np.int64)
    if len(marks) == len(kept) and (np.diff(marks) > 0).all() and np.isin(marks, packets.marks).all():
        return SeekingReader(path, marks, packets.keys)
    return SeekingReader(path, np.array([number for _, number, _ in kept], np.int64), packets.keys[:0])


def _lost(container: Any, seen: int, times: list[int]) -> str:
    """What is missing when the file promises more frames, or a longer film, than there is; else nothing."""
    stream = container.streams.video[0]
    if seen < stream.frames:
        return f"{stream.frames - seen} of {stream.frames} frames are lost: the file is torn or damaged"
    frame_us = MICROSECONDS / float(stream.average_rate or DEFAULT_RATE)
    missing_us = (container.duration or 0) - (times[-1] - times[0]) - frame_us if times else 0.0
    if not stream.frames and missing_us > 2 * frame_us:
        return f"the last {missing_us / 1e6:.2f} s the file promises have no frames: it may be torn"
    return ""


def _timed(container: Any, notes: list[str], damage: list[str]) -> Iterator[tuple[int, Any]]:
    """(microseconds, frame) in order of presentation; ends at the first damaged packet, which is then described in `damage`."""
    import av

    stream = container.streams.video[0]
    base = Fraction(stream.time_base or Fraction(1, MICROSECONDS))
    rate = Fraction(stream.average_rate or DEFAULT_RATE)
    decoded = container.decode(stream)
    count = 0
    while True:
        try:
            frame = next(decoded, None)
        except av.FFmpegError as error:
            if not count:
                raise
            damage.append(f" after frame {count} ({error.strerror})")
            return
        if frame is None:
            return
        if frame.pts is None:
            note = f"the file gives no frame times: {float(rate):g} frames a second are assumed"
            notes.extend([note] if note not in notes else [])
        exact = Fraction(count) / rate if frame.pts is None else frame.pts * base
        count += 1
        yield round(exact * MICROSECONDS), frame
