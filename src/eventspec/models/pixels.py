"""Pictures as the towers want them: CLIP's resize, centre crop, mean and deviation, in two exact ways.

Frames go through torch's antialiased bicubic on uint8, which is Video-LLaVA's processor to float rounding; event images through
Pillow, which is EventGPT's bit for bit. The two differ by up to two grey levels, so neither can stand in for the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
Picture = np.ndarray[Any, np.dtype[np.uint8]]


def frame_pixels(frames: Picture, size: int) -> Tensor:
    """uint8 [K, H, W, 3] RGB -> float32 [K, 3, size, size]: shortest edge by antialiased bicubic, centre crop, CLIP's mean and
    deviation."""
    return normalised(fit(torch.from_numpy(frames).permute(0, 3, 1, 2), size))


def pillow_pixels(picture: Picture, size: int, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD) -> Tensor:
    """uint8 [H, W, 3] RGB -> float32 [3, size, size], bit for bit as transformers' CLIPImageProcessor on Pillow.

    What becomes of a grey level is looked up: there are 256, and working it out for every pixel takes six times as long.
    """
    height, width = picture.shape[:2]
    short = min(height, width)
    shape = [size if side == short else int(size * side / short) for side in (height, width)]
    resized = Image.fromarray(picture).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
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
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    short = min(height, width)
    shape = (int(size * height / short), int(size * width / short))
    resized = F.interpolate(images.contiguous(), shape, mode="bicubic", antialias=True)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return resized[..., top : top + size, left : left + size]


_SCALE = torch.tensor([1 / (255 * s) for s in CLIP_STD])[:, None, None]
_SHIFT = torch.tensor([-m / s for m, s in zip(CLIP_MEAN, CLIP_STD, strict=True)])[:, None, None]


def normalised(images: Tensor) -> Tensor:
    """uint8 or float [K, 3, H, W] in 0..255 -> float32, CLIP's mean and deviation."""
    return torch.addcmul(_SHIFT.to(images.device), images.float(), _SCALE.to(images.device))
