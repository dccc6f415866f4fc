"""Pictures as the towers want them: CLIP's resize, centre crop, mean and deviation, in two exact ways.

Frames go through torch's antialiased bicubic on uint8, which is Video-LLaVA's processor to float rounding; event images through
Pillow, which is EventGPT's bit for bit. The two differ by up to two grey levels, so neither can stand in for the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MIDDLE = 8
"""Squares of a long picture that are scaled at most, give or take one; its centre crop and bicubic's reach need five."""
Picture = np.ndarray[Any, np.dtype[np.uint8]]


def frame_pixels(frames: Iterable[Picture], size: int) -> Tensor:
    """Frames uint8 [H, W, 3] RGB -> float32 [K, 3, size, size]: shortest edge by antialiased bicubic, centre crop, CLIP's mean
    and deviation. Those of an array are scaled together, others one after the other: large ones are decoded in their turn."""
    if not isinstance(frames, np.ndarray):
        return torch.cat([frame_pixels(frame[None], size) for frame in frames])
    own = frames if frames.flags.writeable else frames.copy()  # torch warns of memory that it must not write to
    return normalised(fit(torch.from_numpy(own).permute(0, 3, 1, 2), size))


def pillow_pixels(picture: Picture, size: int, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD) -> Tensor:
    """uint8 [H, W, 3] RGB -> float32 [3, size, size], bit for bit as transformers' CLIPImageProcessor on Pillow.

    What becomes of a grey level is looked up: there are 256, and working it out for every pixel takes six times as long.
    """
    picture = picture[_middle(*picture.shape[:2])]
    height, width = picture.shape[:2]
    short = min(height, width)
    shape = [size if side == short else int(size * side / short) for side in (height, width)]
    resized = Image.fromarray(np.ascontiguousarray(picture)).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    cropped = np.asarray(resized)[top : top + size, left : left + size]
    done, levels = np.empty((3, size, size), np.float32), _levels(tuple(mean), tuple(std))
    for channel in range(3):
        done[channel] = levels[channel][cropped[..., channel]]
    return torch.from_numpy(done)


@functools.lru_cache(maxsize=8)
def _levels(mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 [3, 256]: what each grey level of each channel becomes. Scaling to 0..1 happens in float64 and is rounded to
    float32, then mean and deviation in float32: the order is the bits."""
    scaled = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
    found: np.ndarray[Any, np.dtype[np.float32]] = (scaled - np.array(mean, np.float32)[:, None]) / np.array(std, np.float32)[
        :, None
    ]
    return found


def fit(images: Tensor, size: int) -> Tensor:
    """uint8 [K, C, H, W] -> uint8 [K, C, size, size]; a no-op at the right size."""
    if images.shape[-2:] == (size, size):
        return images
    images = images[(..., *_middle(*images.shape[-2:]))]
    height, width = images.shape[-2:]
    short = min(height, width)
    shape = (int(size * height / short), int(size * width / short))
    resized = F.interpolate(images.contiguous(), shape, mode="bicubic", antialias=True)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return resized[..., top : top + size, left : left + size]


def _middle(height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of a picture that its centre crop can depend on: all, but of a long strip, which would be scaled to
    something far longer, the middle. As many whole squares go at one end as at the other, so the rest is scaled as before."""
    short = min(height, width)
    spare = [max(0, side // short - MIDDLE) // 2 * short for side in (height, width)]
    return slice(spare[0], height - spare[0]), slice(spare[1], width - spare[1])


_SCALE = torch.tensor([1 / (255 * s) for s in CLIP_STD])[:, None, None]
_SHIFT = torch.tensor([-m / s for m, s in zip(CLIP_MEAN, CLIP_STD, strict=True)])[:, None, None]


def normalised(images: Tensor) -> Tensor:
    """uint8 or float [K, 3, H, W] in 0..255 -> float32, CLIP's mean and deviation."""
    return torch.addcmul(_SHIFT.to(images.device), images.float(), _SCALE.to(images.device))
