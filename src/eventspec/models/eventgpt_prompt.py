"""What EventGPT sees and reads: event images, pixels, the prompt around them, and its tokenizer.

Source: XduSyL/EventGPT @4680549. `compat` repeats that code where it errs: an image ends at the last row and column that had an
event, windows of 100 ms and more and of fewer events than images are refused, and the prompt is cut at 2048 rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadInput, EventSlice
from eventspec.events.representations import red_blue
from eventspec.models import configuration as fields
from eventspec.models.eventgpt import EventGpt, clip_folder
from eventspec.models.pixels import CLIP_MEAN, CLIP_STD, Picture, pillow_pixels
from eventspec.models.prompt import EventEncoder
from eventspec.text import Vocabulary

PLACE = "<event>"
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
COMPAT_ROWS = 2048
COMPAT_SPAN_US = 100_000


def prompt(question: str) -> str:
    """The whole prompt (conversation eventgpt_v1); `<event>` stands for the event rows. No space at the end."""
    return f"{SYSTEM} USER: <ev_start>{PLACE}<ev_end>\n{question} ASSISTANT:"


def eventgpt_vocabulary(folder: Path) -> Vocabulary:
    """The checkpoint's tokenizer with the special event tokens that its config.json switches on, in upstream's order."""
    data = fields.read_json(folder / "config.json")
    tokens = ["<ev_patch>"] if data.get("mm_use_im_patch_token", True) else []
    if data.get("mm_use_im_start_end", False):
        tokens += ["<ev_start>", "<ev_end>"]
    return Vocabulary.of_folder(folder, first="tokenizer.model").with_special(tokens)


def prompt_ids(vocabulary: Vocabulary, question: str, bos: int) -> tuple[list[int], list[int]]:
    """Token ids before and after the event rows. Both parts are tokenised as texts of their own; BOS opens the first."""
    if PLACE in question:
        raise BadInput(f"the prompt contains {PLACE}, which stands for the recording: leave it out")
    before, after = prompt(question).split(PLACE)
    return [bos, *vocabulary.encode(before)], vocabulary.encode(after)


class EventPixels:
    """CLIP's processing of event images, with the settings of the tower's preprocessor_config.json."""

    def __init__(self, folder: Path, size: int) -> None:
        data = fields.read_json(folder / "config.json")
        place = clip_folder(folder, data)
        path = (place or folder) / "preprocessor_config.json"
        found = fields.read_json(path) if place is not None and path.is_file() else {}
        self.size, self.mean, self.std = size, found.get("image_mean", CLIP_MEAN), found.get("image_std", CLIP_STD)
        sides = {"size": ({"shortest_edge": size}, size), "crop_size": ({"height": size, "width": size}, size)}
        with fields.of_file(path):
            for name, fitting in sides.items():
                fields.require(found, name, found.get(name, size) in fitting, f"the tower's {size}")
            for name in ("image_mean", "image_std"):
                right = isinstance(found.get(name, []), list) and len(found.get(name, "rgb")) == 3
                fields.require(found, name, right, "three numbers")
            for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
                fields.require(found, name, found.get(name, True) is True, "true: nothing else is supported")
            fields.require(found, "resample", found.get("resample", 3) == 3, "3, bicubic")

    def __call__(self, images: list[Picture]) -> Tensor:
        """uint8 [H, W, 3] each -> float32 [images, 3, S, S], rounded to bfloat16 as upstream always does."""
        return torch.stack([self.exact(image) for image in images]).bfloat16().float()

    def exact(self, image: Picture) -> Tensor:
        """uint8 [H, W, 3] -> float32 [3, S, S] before the rounding."""
        return pillow_pixels(image, self.size, self.mean, self.std)


def event_images(events: EventSlice, images: int, compat: bool) -> list[Picture]:
    """White, blue (OFF) and red (ON) pictures uint8 [H, W, 3] of equal-count slices; H, W the sensor's unless `compat`."""
    if not compat:
        return list(red_blue(events, images))
    if len(events.t) < images:
        raise BadInput(f"{len(events.t)} events in the window: upstream needs {images}; leave out --compat or widen it")
    span = int(events.t.max()) - int(events.t.min())
    if span >= COMPAT_SPAN_US:
        raise BadInput(f"the events span {span} us: upstream takes less than {COMPAT_SPAN_US}; narrow the window")
    return red_blue(events, images, compat=True)


def eventgpt_encoder(
    model: EventGpt, vocabulary: Vocabulary, pixels: EventPixels, bos: int, compat: bool = False
) -> EventEncoder:
    """Event images, encoded and pooled, in the model's prompt."""

    def rows(events: EventSlice) -> Tensor:
        images = pixels(event_images(events, model.config.images, compat))
        visual: Tensor = model.encode(images.to(model.projector.linear_1.weight))[0]
        return visual

    text = partial(prompt_ids, vocabulary, bos=bos)
    return EventEncoder(model.language, text, rows, "EventGPT", COMPAT_ROWS if compat else None)


def widest(events: EventSlice) -> tuple[int, int]:
    """(width, height) that hold every event: (largest x + 1, largest y + 1)."""
    return int(np.max(events.x, initial=0)) + 1, int(np.max(events.y, initial=0)) + 1
