"""The bundled pair: a small Video-LLaVA and a small EventGPT that share one tokenizer. Sizes, prompts and pixels.

`nano` trains on two CPU cores in about two hours; `base` is four times larger and meant for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadInput, Request, Trace
from eventspec.events.representations import red_blue_classes
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.models.pixels import fit, frame_pixels, normalised
from eventspec.models.session import Rows, Spliced, splice
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig
from eventspec.nn import ClipConfig, LlamaConfig
from eventspec.video.sampling import uniform_indices

PAD, BOS, EOS, IMAGE, VIDEO, EVENT = range(6)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<event>")
VOCABULARY = 576
FINE_VOCABULARY = 400
"""Of the second drafter: 138 merges, so words are spelled in pieces that the target's tokenizer does not have."""
IMAGE_SIZE = 112


@dataclass(frozen=True)
class Size:
    """One size of the pair."""

    target: VideoLlavaConfig
    drafter: EventGptConfig

    def finer(self) -> Size:
        """With a drafter for the finer tokenizer."""
        language = replace(self.drafter.language, vocab_size=FINE_VOCABULARY)
        return replace(self, drafter=replace(self.drafter, language=language))


def _clip(width: int, layers: int, heads: int) -> ClipConfig:
    return ClipConfig(width, 4 * width, layers, heads, IMAGE_SIZE, 14)


def _llama(width: int, inner: int, layers: int, heads: int) -> LlamaConfig:
    return LlamaConfig(VOCABULARY, width, inner, layers, heads, heads, max_position_embeddings=1024, tie_word_embeddings=True)


SIZES = {
    "nano": Size(
        VideoLlavaConfig(_clip(160, 4, 4), _llama(192, 448, 8, 4), vision_layer=-1, video_token=VIDEO, image_token=IMAGE),
        EventGptConfig(_clip(128, 4, 4), _llama(192, 512, 3, 3)),
    ),
    "base": Size(
        VideoLlavaConfig(_clip(256, 6, 4), _llama(384, 1024, 8, 6), vision_layer=-1, video_token=VIDEO, image_token=IMAGE),
        EventGptConfig(_clip(256, 4, 4), _llama(320, 864, 3, 5)),
    ),
}


def pixels_from_frames(frames: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """uint8 [K, H, W, 3] RGB -> float32 [K, 3, 112, 112]."""
    return frame_pixels(frames, IMAGE_SIZE)


# Event classes 0 none, 1 OFF, 2 ON as white, blue, red (EventGPT's picture), normalised once: the drafter's hot path is
# one gather.
PALETTE = np.array([[255, 255, 255], [0, 0, 255], [255, 0, 0]], np.uint8)
_PALETTE = normalised(torch.from_numpy(PALETTE.T.copy())[None, :, :, None])[0, :, :, 0]


def pixels_from_classes(classes: Tensor) -> Tensor:
    """uint8 [K, H, W] event classes -> float32 [K, 3, 112, 112], exactly `normalised(fit(red/blue picture))`."""
    if classes.shape[-2:] == (IMAGE_SIZE, IMAGE_SIZE):
        flat = _PALETTE.to(classes.device).index_select(1, classes.flatten().int())
        return flat.view(3, *classes.shape).transpose(0, 1)
    picture = torch.from_numpy(PALETTE)[classes.long()].permute(0, 3, 1, 2)
    return normalised(fit(picture, IMAGE_SIZE))


def target_prompt(question: str) -> str:
    """The target's prompt; `<video>` stands for its visual rows."""
    return f"USER: <video>\n{question} ASSISTANT:"


def drafter_prompt(question: str) -> str:
    """The drafter's prompt; `<event>` stands for its event rows."""
    return f"USER: <event>\n{question} ASSISTANT:"


Ids = Callable[[str], tuple[list[int], list[int]]]
"""A question -> the target's text before and behind its visual rows."""


def target_ids(encode: Callable[[str], list[int]]) -> Ids:
    """The text of the target's prompt in ids."""

    def ids(question: str) -> tuple[list[int], list[int]]:
        before, after = target_prompt(question).split("<video>", 1)
        return [BOS, *encode(before)], encode(after)

    return ids


# ------------------------------------------------------------------------------------------------------------- prompt rows
def target_rows(model: VideoLlava, encode: Callable[[str], list[int]], see: Callable[[Tensor], Tensor] | None = None) -> Rows:
    """Eight frames spread over the window, encoded and spliced into the target's prompt; `see` makes their visual rows [T, D]
    of the frames' pixels where it is not the target's own way."""
    ids, seen = target_ids(encode), see or model.encode

    def rows(request: Request, trace: Trace, lane: str) -> Spliced:
        if request.video is None or len(request.video.frames) == 0:
            raise BadInput("the recording has no frames in this window: the target needs RGB frames to answer")
        began = trace.now()
        chosen = request.video.frames[uniform_indices(len(request.video.frames), model.config.frames)]
        visual = seen(pixels_from_frames(chosen).to(model.projector.linear_1.weight))
        trace.span("vision", lane, began)
        trace.sizes["visual"] = len(visual)
        before, after = ids(request.prompt)
        return splice(model.language, before, visual, after)

    return rows


def drafter_rows(model: EventGpt, encode: Callable[[str], list[int]]) -> Rows:
    """The window's events as equal-count pictures, encoded, pooled and spliced into the drafter's prompt."""

    def rows(request: Request, trace: Trace, lane: str) -> Spliced:
        if request.events is None:
            raise BadInput("the recording has no events: the event drafter has nothing to see")
        began = trace.now()
        classes = torch.from_numpy(red_blue_classes(request.events, model.config.images))
        visual = model.encode(pixels_from_classes(classes).to(model.projector.linear_1.weight))[0]
        trace.span("vision", lane, began)
        before, after = drafter_prompt(request.prompt).split("<event>", 1)
        return splice(model.language, [BOS, *encode(before)], visual, encode(after))

    return rows
