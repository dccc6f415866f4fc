"""A user's recordings as trainings see them: what the towers of both models read of each, kept on disk in half precision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Media
from eventspec.files import write_whole
from eventspec.models.prompt import EventEncoder, FrameEncoder
from eventspec.recordings.qa import Question
from eventspec.recordings.recording import files_of, whole_of
from eventspec.train.data import Index

FOLDER = "pixels"
"""In a workspace."""
FRAMES, EVENTS = "frames", "events"
"""What the names of files there begin with, by the model that sees them."""
MOST_BYTES = 64 << 30
"""Of pixels on disk; beyond, they are made again every time."""


class Recorded:
    """As `data.PixelSource`, of the recordings, or windows of them, that questions are about. `folder` holds what was read of
    them, by what they are and which model sees them: float16 is finer than the eight bits that it comes from."""

    def __init__(
        self, folder: Path, asked: Sequence[Question], frames: FrameEncoder | None, events: EventEncoder | None
    ) -> None:
        self.folder, self._frames, self._events = folder, frames, events
        self.asked = list({question.seen: question for question in asked}.values())
        self.number = {question.seen: number for number, question in enumerate(self.asked)}
        self._paths: dict[tuple[int, str], Path] = {}
        self._files: dict[Path, list[tuple[str, int, int]]] = {}
        self._room = MOST_BYTES - sum(path.stat().st_size for path in folder.glob("*.npy"))

    def frames(self, index: Index) -> Tensor:
        return torch.cat([self._read(int(number), self._frames, "the target") for number in index])

    def pictures(self, index: Index) -> Tensor:
        return torch.cat([self._read(int(number), self._events, "the event model") for number in index])

    def media(self, number: int) -> Media:
        """What a recording holds."""
        return media_of(self.asked[number].open())

    def _read(self, number: int, encoder: FrameEncoder | EventEncoder | None, whose: str) -> Tensor:
        if encoder is None or encoder.vision is None:
            raise BadInput(f"{whose} is no model of ours: what its tower reads is not known")
        if (number, whose) not in self._paths:  # to look at 1,200 files takes 60 ms
            kind = FRAMES if isinstance(encoder, FrameEncoder) else EVENTS
            self._paths[number, whose] = self.folder / f"{kind}-{self._key(number, encoder)}.npy"
        path = self._paths[number, whose]
        if path.is_file():
            return torch.from_numpy(np.load(path, allow_pickle=False)).float()
        pixels = encoder.pixels(self.media(number)).float().cpu()
        if pixels.nbytes // 2 <= self._room:
            self._room -= pixels.nbytes // 2
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = pixels.half().numpy()
            write_whole(path, lambda part: _save(part, kept))
            return torch.from_numpy(kept).float()  # the same now as when it is read again
        return pixels.half().float()

    def _key(self, number: int, encoder: FrameEncoder | EventEncoder) -> str:
        """Other files, another window, another model of seeing: another key."""
        question = self.asked[number]
        place, taken = whole_of(question.recording).resolve(), encoder.frames if isinstance(encoder, FrameEncoder) else 0
        if place not in self._files:
            self._files[place] = files_of(place)
        assert encoder.vision is not None  # `_read` looked; its config decides how pictures are scaled
        what = [str(place), question.window, self._files[place], encoder.name, taken, [str(encoder.vision.model.config)]]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _save(path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.float16]]) -> None:
    with path.open("wb") as file:  # by its name numpy would add a suffix
        np.save(file, array, allow_pickle=False)
