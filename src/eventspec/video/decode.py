"""Video files through PyAV: RGB frames with the times the file gives them, in memory when few, else in the file."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.files import check_file
from eventspec.video.clip import VideoClip, VideoFile
from eventspec.video.packets import MICROSECONDS, Packets, in_order, opened, other_streams, survey
from eventspec.video.seeking import SeekingReader
from eventspec.video.stored import LONG_NOTE, Frames, StoredFrames, check_frame, is_short
from eventspec.video.upright import orientation_note, orientation_of, upright, upright_size

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
    """All frames of the video stream that `survey` chooses, upright.

    A short video is decoded now; the frames of a long one stay in the file and a note says so. Times are pts * time_base,
    rounded to microseconds: of a long one as the packets give them, checked by decoding the first frames and the last; where
    they are wrong or the file is torn, by decoding everything once.
    A torn file keeps the frames before the tear and a note says so; damage inside a long one is met when it is decoded.
    """
    import av

    path = Path(path)
    check_file(path)
    try:
        return _opened_whole(path)
    except (av.FFmpegError, OverflowError) as error:  # times beyond 64 bits of microseconds
        with path.open("rb") as file:
            is_text = file.read(7).decode("latin-1").isprintable()
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:120]
        wrong = f"not a readable video ({reason}): copy or record it again"
        text = "is text, not a video: playlists are not followed, give the video itself"
        raise BadInput(f"{path}: {text if is_text else wrong}") from None


def _opened_whole(path: Path) -> VideoFile:
    """All frames of the file, held or stored, and notes."""
    with opened(path) as container:
        packets = survey(container)
        codec = container.streams.video[packets.track].codec_context
        if codec.width or codec.height:  # else the stream says so later
            check_frame(codec.height, codec.width, str(path))
        notes = list(other_streams(container, packets.track))
        times = packets.times_us
        lost = _lost(container, packets.track, len(times), times.tolist())
    if packets.reliable:
        frames = _stored(path, packets, notes)
        if frames is not None:
            notes += [f"{lost}, everything before is kept"] if lost else []
            return VideoFile(VideoClip.checked(frames, times, source=str(path)), (*notes, LONG_NOTE))
    return _counted(path, packets, notes)


def _stored(path: Path, packets: Packets, notes: list[str]) -> StoredFrames | None:
    """The frames that reliable packets promise, or None when they are few, or when decoding finds others."""
    import av

    try:
        with opened(path) as container:
            frames = list(islice(container.decode(container.streams.video[packets.track]), CHECKED))
    except av.FFmpegError:
        return None  # damaged within the first frames: count them
    if not frames:
        return None
    orientation = orientation_of(frames[0])
    size = upright_size(frames[0].height, frames[0].width, orientation)
    if is_short(len(packets.marks), *size) or [frame.pts for frame in frames] != packets.marks[: len(frames)].tolist():
        return None
    found = StoredFrames(SeekingReader(path, packets.marks, packets.keys, packets.track), len(packets.marks), *size)
    try:
        found[-1]  # what was copied or recorded to a sudden end is damaged here first
    except BadInput:
        return None
    notes += orientation_note("frames", orientation)
    return found


def _counted(path: Path, packets: Packets, notes: list[str]) -> VideoFile:
    """All frames that can be decoded, one after the other; no more of them are in memory than a short video has."""
    held: list[Frames] = []
    kept: list[tuple[int, int, int | None]] = []  # time (us), number and pts of every frame of the first one's size
    damage: list[str] = []
    size: tuple[int, int] | None = None
    seen = 0
    with opened(path) as container:
        stream = container.streams.video[packets.track]
        for number, (time_us, frame) in enumerate(_timed(container, stream, notes, damage)):
            seen = number + 1
            orientation = orientation_of(frame)
            if size is None:
                size = upright_size(frame.height, frame.width, orientation)
                notes += orientation_note("frames", orientation)
            if upright_size(frame.height, frame.width, orientation) != size:
                continue
            kept.append((time_us, number, frame.pts))
            if is_short(len(kept), *size):
                held.append(upright(frame.to_ndarray(format="rgb24"), orientation))
            else:
                held.clear()
        times = [time for time, *_ in kept]
        lost = _lost(container, packets.track, seen, times)
    if size is None:
        raise BadInput(f"{path}: no frame can be decoded: copy the file again")
    if lost or damage:
        notes.append(f"{lost or 'the video is damaged'}{''.join(damage)}, everything before is kept")
    if seen > len(times):
        notes.append(f"{several(seen - len(times), 'frame is', 'frames are')} left out, of another size than the first one")
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
        return SeekingReader(path, marks, packets.keys, packets.track)
    return SeekingReader(path, np.array([number for _, number, _ in kept], np.int64), packets.keys[:0], packets.track)


def _lost(container: Any, track: int, seen: int, times: list[int]) -> str:
    """What is missing when the file promises more frames, or a longer film, than there is; else nothing."""
    stream = container.streams.video[track]
    if seen < stream.frames:
        return f"of {several(stream.frames, 'frame')} {stream.frames - seen} cannot be read: the file is torn or damaged"
    frame_us = MICROSECONDS / float(stream.average_rate or DEFAULT_RATE)
    missing_us = (container.duration or 0) - (times[-1] - times[0]) - frame_us if times else 0.0
    if not stream.frames and missing_us > 2 * frame_us:
        return f"the last {missing_us / 1e6:.2f} s the file promises have no frames: it may be torn"
    return ""


def _timed(container: Any, stream: Any, notes: list[str], damage: list[str]) -> Iterator[tuple[int, Any]]:
    """(microseconds, frame) in order of presentation; ends at the first damaged packet, which is then described in `damage`."""
    import av

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
