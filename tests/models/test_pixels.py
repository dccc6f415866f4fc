"""Pixels of the bundled pair: CLIP's resize, crop and scale, and the drafter's short cut through event classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eventspec.models.embedded import IMAGE_SIZE, PALETTE, pixels_from_classes, pixels_from_frames
from eventspec.models.pixels import CLIP_MEAN, CLIP_STD, fit, normalised, pillow_pixels


@pytest.mark.parametrize("size", [(112, 112), (64, 90), (260, 346), (480, 640), (346, 260)])
def test_pixels_of_classes_are_those_of_the_red_and_blue_picture(size: tuple[int, int]) -> None:
    classes = np.random.default_rng(0).integers(0, 3, (2, *size)).astype(np.uint8)
    picture = torch.from_numpy(PALETTE[classes]).permute(0, 3, 1, 2)
    assert torch.equal(pixels_from_classes(torch.from_numpy(classes)), normalised(fit(picture, IMAGE_SIZE)))


@pytest.mark.parametrize("size", [(112, 112), (112, 200), (480, 640), (113, 112), (1, 1), (30, 1000)])
def test_any_frame_becomes_a_square_of_the_towers_size(size: tuple[int, int]) -> None:
    pixels = pixels_from_frames(np.zeros((3, *size, 3), np.uint8))
    assert pixels.shape == (3, 3, IMAGE_SIZE, IMAGE_SIZE)
    assert pixels.dtype == torch.float32


def test_the_crop_is_from_the_middle() -> None:
    frame = np.zeros((1, 112, 336, 3), np.uint8)
    frame[:, :, 112:224] = 255
    assert (fit(torch.from_numpy(frame).permute(0, 3, 1, 2), IMAGE_SIZE) == 255).all()


def test_scaling_takes_clips_mean_and_deviation() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), dtype=np.uint8)
    expected = (frames[0] / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    np.testing.assert_allclose(pixels_from_frames(frames)[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 40), (2, 301), (300, 3), (112, 2000)])
def test_a_long_strip_is_cut_before_it_is_scaled_to_the_same_pixels(shape: tuple[int, int]) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, *shape, 3), np.uint8)
    short = min(shape)
    sides = (IMAGE_SIZE * shape[0] // short, IMAGE_SIZE * shape[1] // short)
    whole = F.interpolate(torch.from_numpy(frames).permute(0, 3, 1, 2), sides, mode="bicubic", antialias=True)
    top, left = ((side - IMAGE_SIZE) // 2 for side in sides)
    wanted = normalised(whole[..., top : top + IMAGE_SIZE, left : left + IMAGE_SIZE])
    assert torch.equal(pixels_from_frames(frames), wanted)
    frames.flags.writeable = False
    assert torch.equal(pixels_from_frames(iter(frames)), wanted)  # one by one, as large frames come


@pytest.mark.parametrize("shape", [(1, 1_000_000), (1_000_000, 1)])
def test_an_endless_strip_takes_no_more_memory_than_a_square(shape: tuple[int, int]) -> None:
    strip = np.full((*shape, 3), 7, np.uint8)
    assert torch.equal(pixels_from_frames(strip[None])[0], pixels_from_frames(strip[:1, :1][None])[0])
    assert torch.equal(pillow_pixels(strip, 112), pillow_pixels(strip[:1, :1], 112))
