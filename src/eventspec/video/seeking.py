"""Single frames of a video file: decoding begins at the key frame before them, or goes on from where it stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

from eventspec.core import BadInput
from eventspec.video.packets import Marks, opened
from eventspec.video.stored import Frames
from eventspec.video.upright import orientation_of, upright

NEAR = 8  # frames: decoding so many more costs less than seeking, which empties the decoder


class SeekingReader:
    """The frame at a place, read from the file: a `ReadFrame`. Threads take turns: there is one decoder.

    marks int64 [K], ascending: the pts of the frames, with keys int64 [N] the pts where decoding can begin; without keys,
    their numbers in the order of decoding, which then begins with the file. track: which of the file's video streams.
    """

    def __init__(self, path: Path, marks: Marks, keys: Marks, track: int = 0) -> None:
        self._path, self._marks, self._keys, self._track = path, marks, keys.tolist(), track
        self._lock, self._open = Lock(), ExitStack()
        self._container: Any = None
        self._run: Iterator[tuple[int, Any]] | None = None
        self._at = -1  # the place `_run` gave last

    def __call__(self, place: int) -> Frames:
        """uint8 [H, W, 3] RGB; BadInput when it cannot be decoded."""
        import av

        with self._lock:
            try:
                frame = self._found(place)
            except (av.FFmpegError, OSError) as error:
                frame, reason = None, " ".join(str(error).split())[:100]
            else:
                reason = "no frame at its time"
            if frame is None:
                self._run = None
                raise BadInput(
                    f"{self._path}: frame {place} cannot be decoded ({reason}): the file is damaged there or has changed; "
                    "choose a window without it, or copy the file again"
                )
            self._at = place
            return upright(frame.to_ndarray(format="rgb24"), orientation_of(frame))

    def _found(self, place: int) -> Any:
        """The decoded frame, or None when the file has none with this mark."""
        wanted = int(self._marks[place])
        last_key = bisect_right(self._keys, wanted) - 1
        if self._run is not None and self._at < place and self._skipped(place, last_key) <= NEAR:
            frame = self._forward(wanted)
            if frame is not None:
                return frame
        step = 0
        while last_key - step >= 0:  # an index may be wrong or coarse: then from further and further back
            self._run = self._from_key(self._keys[last_key - step])
            frame = self._forward(wanted)
            if frame is not None:
                return frame
            step = 2 * step + 1
        self._run = self._from_start()
        return self._forward(wanted)

    def _skipped(self, place: int, last_key: int) -> int:
        """Frames that seeking would save on the way to a place; never any without keys."""
        if last_key < 0:
            return 0
        return int(self._marks.searchsorted(self._keys[last_key])) - self._at

    def _forward(self, wanted: int) -> Any:
        assert self._run is not None
        for mark, frame in self._run:
            if mark >= wanted:
                return frame if mark == wanted else None
        return None

    def _from_start(self) -> Iterator[tuple[int, Any]]:
        self._open.close()
        self._container = self._open.enter_context(opened(self._path))
        for number, frame in enumerate(self._container.decode(self._container.streams.video[self._track])):
            if not self._keys:
                yield number, frame
            elif frame.pts is not None:
                yield frame.pts, frame

    def _from_key(self, key: int) -> Iterator[tuple[int, Any]]:
        """(pts, frame) from a key frame on; nothing where seeking ends after it, or at what is no key frame."""
        import av

        if self._container is None:
            self._container = self._open.enter_context(opened(self._path))
        stream = self._container.streams.video[self._track]
        try:
            self._container.seek(key, stream=stream)
        except av.FFmpegError:  # a container without seeking
            return
        first, begun = None, False
        for packet in self._container.demux(stream):
            if first is None:
                if not packet.is_keyframe or packet.pts is None:
                    continue
                if packet.pts > key:
                    return
                first = packet.pts
            for frame in packet.decode():
                # Frames shown before the key frame lean on what came before it in the file.
                if frame.pts is None or frame.pts < first:
                    continue
                if not begun and not frame.key_frame:
                    return
                begun = True
                yield frame.pts, frame
