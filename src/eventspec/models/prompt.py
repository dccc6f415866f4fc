"""From a recording and a question to the rows that a language model reads: vision encoding, and the text around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from eventspec.core import BadInput, EventSlice, Media, Trace
from eventspec.events.representations import bounded
from eventspec.machine import arrived
from eventspec.models.features import FeatureCache
from eventspec.nn import Llama
from eventspec.trace import Lane
from eventspec.video.clip import uniform_indices
from eventspec.video.stored import is_short

Frames = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8 [K, H, W, 3] RGB, or one of them, [H, W, 3]."""
TextIds = Callable[[str], tuple[list[int], list[int]]]
"""A question -> the prompt's token ids before and after its visual rows."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as rows float [T, D], and where its visual rows lie, [begin, end)."""

    rows: Tensor
    visual: tuple[int, int]


Moment = float | torch.cuda.Event
"""A reading of `time.perf_counter`; on a GPU a place in its queue."""
_PROJECTING: ContextVar[list[tuple[Moment, Moment]] | None] = ContextVar("projecting", default=None)
"""Of the vision encoding that runs on this thread: when its projector began and ended. A trace would have to go through every
`see`, and those that nothing times have none."""


def projected(project: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """A tower's `features` as rows for a language model. Within `timed_vision` it is the stage `projector`: on a GPU two events
    in its queue, so that nothing waits for it."""
    if (laps := _PROJECTING.get()) is None:
        return project(features)
    began = _moment(features)
    rows = project(features)
    laps.append((began, _moment(features)))
    return rows


def _moment(like: Tensor) -> Moment:
    """Now, as where a tensor lies counts time."""
    if not like.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(like.device))
    return event


def timed_vision(trace: Trace, lane: Lane, encode: Callable[[], Tensor]) -> Tensor:
    """What vision encoding gives, with its span in the trace, and within it those of its projector."""
    began, laps = trace.now(), list[tuple[Moment, Moment]]()
    before = _PROJECTING.set(laps)
    try:
        visual = encode()
    finally:
        _PROJECTING.reset(before)
    last = _moment(visual)
    arrived(visual)
    end = trace.now()
    trace.span("vision", lane, began, end=end)

    def at(moment: Moment) -> float:
        if isinstance(moment, float):
            return moment - trace.began
        assert not isinstance(last, float)  # what was projected on a GPU lies there
        return end - float(moment.elapsed_time(last)) / 1e3

    for begin, done in laps:
        trace.span("projector", lane, at(begin), end=at(done))
    return visual


def crossing(rows: Tensor, like: Tensor, trace: Trace, lane: Lane) -> Tensor:
    """What one model computed as another reads it: where `like` lies, a weight of that one, and in its precision. Nothing else
    takes a tensor from model to model. Between devices the trace has it as a transfer with its bytes."""
    trace.crossed.append(rows.nbytes)
    if rows.device == like.device:
        return rows.to(like.dtype)
    arrived(rows)  # what computes them is no part of the transfer
    began = trace.now()
    moved = rows.to(like)
    arrived(moved)
    trace.span("transfer", lane, began, moved=rows.nbytes)
    return moved


@dataclass(eq=False)
class Look:
    """What the target has `seen` of a recording, its visual rows [T, D] where they are there, as another model reads them, of
    which `like` is a weight, and what that makes of them by `read`. That of the latest recording is kept."""

    seen: Callable[[Media], Tensor | None]
    like: Tensor
    read: Callable[[Tensor], Any]
    _latest: tuple[Tensor, Any] | None = None

    def rows(self, media: Media, trace: Trace) -> Any:
        """What was made of the rows, None where they are not there."""
        if (seen := self.seen(media)) is None:
            return None
        if self._latest is None or self._latest[0] is not seen:
            self._latest = seen, self.read(crossing(seen, self.like, trace, "drafter"))
        return self._latest[1]


class PromptEncoder(Protocol):
    """How a model sees a recording and reads a question about it."""

    language: Llama

    def encode(self, media: Media, trace: Trace, lane: Lane) -> Tensor:
        """Vision encoding: the visual rows float [T, D] of a recording. BadInput when it lacks what the model sees, unless that
        can come later."""

    def extend(self, visual: Tensor, frames: Frames) -> Tensor:
        """The visual rows followed by those of more frames; BadInput where the model takes no more."""

    def prompt(self, question: str, visual: Tensor) -> Prompt:
        """The whole prompt, visual rows in place. BadInput for a question or a recording that cannot be read."""


def splice(language: Llama, ids: tuple[list[int], list[int]], visual: Tensor) -> Prompt:
    """Text ids, visual rows [T, D], text ids, as one prompt."""
    before, after = ids
    text = language.embed(torch.tensor(before + after, device=visual.device)).to(visual.dtype)
    rows = torch.cat((text[: len(before)], visual, text[len(before) :]))
    return Prompt(rows, (len(before), len(before) + len(visual)))


@dataclass(frozen=True)
class Vision:
    """The whole model that a language model is a part of, and what its tower reads: `pixels` of pictures or of events are float
    [K, 3, S, S], on its device. Parts that are trained stand between them and the rows."""

    model: nn.Module
    pixels: Callable[[Any], Tensor]


@dataclass(eq=False)
class FrameEncoder:
    """`frames` pictures spread over the window, encoded by `see` (K times uint8 [H, W, 3] -> rows [K * T, D] in their order).

    No frame looks at another, so one that comes later has the rows it would have had at once: to the bit where frames are
    encoded `one_by_one` anyway, else as far as a kernel's sums do not depend on the batch. `kept`: rows of a frame that it has
    are not computed again. `name` of the model, for errors. `place`: the id that stands for a visual row where transformers'
    `generate` reads the prompt as ids, and so penalises them. `vision`: what `see` is made of, where that is known.
    """

    language: Llama
    text: TextIds
    see: Callable[[Iterable[Frames]], Tensor]
    frames: int
    name: str
    one_by_one: bool = True
    kept: FeatureCache | None = None
    place: int | None = None
    vision: Vision | None = None

    def keeping(self, kept: FeatureCache) -> FrameEncoder:
        """The same, but a frame that it has seen is not encoded again; so each is encoded on its own."""
        return replace(self, one_by_one=True, kept=kept)

    def of_one(self) -> FrameEncoder:
        """The same model on a single frame."""
        return replace(self, frames=1, one_by_one=True)

    def encode(self, media: Media, trace: Trace, lane: Lane) -> Tensor:
        if media.frames is None or len(media.frames.frames) == 0:
            return self.language.embed.weight[:0]  # they may come later
        chosen = self._chosen(media)
        visual = timed_vision(trace, lane, lambda: self._rows(chosen))
        for note in self.kept.notes if self.kept is not None else ():
            trace.note(note)
        return visual

    def pixels(self, media: Media) -> Tensor:
        """What its tower reads of a recording, float [K, 3, S, S]; BadInput without any frame."""
        assert self.vision is not None  # who calls this looked
        if media.frames is None or len(media.frames.frames) == 0:
            raise BadInput(f"the recording has no frames in this window: {self.name} needs RGB frames")
        return self.vision.pixels(self._chosen(media))

    def _chosen(self, media: Media) -> Iterable[Frames]:
        """The frames that are seen of a recording that has some."""
        assert media.frames is not None
        all, places = media.frames.frames, uniform_indices(len(media.frames.frames), self.frames)
        # Large ones are decoded when their turn comes: what a model sees of them is small.
        return all[places] if is_short(len(places), *all.shape[1:3]) else (all[place] for place in places)

    def extend(self, visual: Tensor, frames: Frames) -> Tensor:
        if not len(frames):
            return visual
        found = self._rows(frames)
        together = (len(visual) + len(found)) * len(frames) // len(found)
        if together > self.frames:
            raise BadInput(f"{together} frames are more than {self.name} takes ({self.frames}): begin another recording")
        return torch.cat((visual, found))

    def prompt(self, question: str, visual: Tensor) -> Prompt:
        """As `PromptEncoder.prompt`; BadInput without any frame."""
        if not len(visual):
            raise BadInput(f"the recording has no frames in this window: {self.name} needs RGB frames to answer")
        return splice(self.language, self.text(question), visual)

    def _rows(self, frames: Iterable[Frames]) -> Tensor:
        if not self.one_by_one:
            return self.see(frames)
        if self.kept is None:
            return torch.cat([self.see(frame[None]) for frame in frames])
        return torch.cat([self.kept.rows(frame, partial(self.see, frame[None])) for frame in frames])


@dataclass(eq=False)
class EventEncoder:
    """A window's events through `see` (-> rows [T, D]); a prompt of more than `most_rows` is cut there. `name` of the model,
    `vision` as for frames. `crosses`: what sees the events is another model than the language model; `projector`: what that
    one's own makes of it then. `look`: at the target's own visual rows; `see` is given them too."""

    language: Llama
    text: TextIds
    see: Callable[..., Tensor]
    name: str
    most_rows: int | None = None
    vision: Vision | None = None
    crosses: bool = False
    projector: Callable[[Tensor], Tensor] | None = None
    look: Look | None = None
    before: MutableMapping[Tensor, Tensor] = field(default_factory=WeakTensorKeyDictionary)
    """What the projector made rows of."""

    def encode(self, media: Media, trace: Trace, lane: Lane) -> Tensor:
        events, beside = self._seen(media), () if self.look is None else (self.look.rows(media, trace),)
        visual = timed_vision(trace, lane, lambda: self.see(events, *beside))
        visual = crossing(visual, self.language.embed.weight, trace, lane) if self.crosses else visual
        if self.projector is None:
            return visual
        rows = self.projector(visual)
        self.before[rows] = visual
        return rows

    def pixels(self, media: Media) -> Tensor:
        """What its tower reads of a recording, float [images, 3, S, S]; BadInput without events."""
        assert self.vision is not None  # who calls this looked
        return self.vision.pixels(self._seen(media))

    def _seen(self, media: Media) -> EventSlice:
        if media.events is None:
            raise BadInput(f"the recording has no events: {self.name} has nothing to see")
        return bounded(media.events)

    def extend(self, visual: Tensor, frames: Frames) -> Tensor:
        raise BadInput(f"{self.name} sees events, not frames: it cannot be given more frames")

    def prompt(self, question: str, visual: Tensor) -> Prompt:
        whole = splice(self.language, self.text(question), visual)
        return Prompt(whole.rows[: self.most_rows], whole.visual)


def looks_at_target(encoder: PromptEncoder, media: Media) -> bool:
    """Whether an encoder looks at the target's rows of a recording, and they are there."""
    return isinstance(encoder, EventEncoder) and encoder.look is not None and encoder.look.seen(media) is not None


@dataclass(eq=False)
class TextEncoder:
    """No recording at all: `make` turns a question into the prompt."""

    language: Llama
    make: Callable[[str], Prompt]

    def encode(self, media: Media, trace: Trace, lane: Lane) -> Tensor:
        """As `PromptEncoder.encode`: there is nothing to see."""
        return self.language.embed.weight[:0]

    def extend(self, visual: Tensor, frames: Frames) -> Tensor:
        raise BadInput("this model reads text only: it cannot be given frames")

    def prompt(self, question: str, visual: Tensor) -> Prompt:
        return self.make(question)
