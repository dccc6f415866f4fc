"""The bundled pair: a small Video-LLaVA and a small EventGPT that share one tokenizer. Sizes, prompts and pixels.

`nano` trains on two CPU cores in about two hours; `base` is four times larger and meant for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eventspec.core import EventSlice
from eventspec.events.representations import red_blue_classes
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.models.pixels import Picture, fit, frame_pixels, normalised
from eventspec.models.prompt import EventEncoder, FrameEncoder, Frames, TextIds, Vision
from eventspec.models.video_llava import PLACE, VideoLlava, VideoLlavaConfig, prompt
from eventspec.nn import ClipConfig, LlamaConfig

PAD, BOS, EOS, IMAGE, VIDEO, EVENT = range(6)
TOKENS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<event>")
VOCABULARY = 768
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


def pixels_from_frames(frames: Iterable[Picture]) -> Tensor:
    """Frames uint8 [H, W, 3] RGB -> float32 [K, 3, 112, 112]."""
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


def target_ids(encode: Callable[[str], list[int]]) -> TextIds:
    """The text of the prompt in ids; the drafter reads the same one around its event rows."""

    def ids(question: str) -> tuple[list[int], list[int]]:
        before, after = prompt(question).split(PLACE, 1)
        return [BOS, *encode(before)], encode(after)

    return ids


def target_encoder(model: VideoLlava, encode: Callable[[str], list[int]]) -> FrameEncoder:
    """Eight frames spread over the window, in the target's prompt."""

    def pixels(frames: Iterable[Frames]) -> Tensor:
        return pixels_from_frames(frames).to(model.projector.linear_1.weight)

    def rows(frames: Iterable[Frames]) -> Tensor:
        return model.encode(pixels(frames))

    text, vision = target_ids(encode), Vision(model, pixels)
    # All at once: eight frames of this tower one by one take 1.7 times as long.
    return FrameEncoder(model.language, text, rows, model.config.frames, "the target", one_by_one=False, vision=vision)


def drafter_encoder(model: EventGpt, encode: Callable[[str], list[int]]) -> EventEncoder:
    """The window's events as equal-count pictures, encoded and pooled, in the drafter's prompt."""

    def pixels(events: EventSlice) -> Tensor:
        classes = torch.from_numpy(red_blue_classes(events, model.config.images))
        return pixels_from_classes(classes).to(model.projector.linear_1.weight)

    def rows(events: EventSlice) -> Tensor:
        return model.encode_for_drafts(pixels(events))[0]

    return EventEncoder(model.language, target_ids(encode), rows, "the event drafter", vision=Vision(model, pixels))
