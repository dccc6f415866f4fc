"""Tiny random checkpoints of both architectures, written once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eventspec.models.embedded import BOS, EOS, IMAGE, PAD, VIDEO
from eventspec.models.eventgpt import EventGpt, EventGptConfig, save_eventgpt
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig, save_video_llava
from eventspec.nn import ClipConfig, LlamaConfig

IDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
CLIP = ClipConfig(32, 64, 3, 2, 112, 14)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def randomised(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.requires_grad_(False).eval().named_parameters():
        parameter.normal_(0.0, 0.3 if "language" in name else 0.15, generator=generator)
        if "norm" in name and not name.endswith("bias"):
            parameter.add_(1.0)


def video_llava(tied: bool, layer: int = -1) -> VideoLlava:
    language = LlamaConfig(60, 48, 64, 2, 4, 2, max_position_embeddings=256, tie_word_embeddings=tied)
    model = VideoLlava(VideoLlavaConfig(CLIP, language, frames=2, vision_layer=layer, video_token=VIDEO, image_token=IMAGE))
    randomised(model, 1)
    return model


def event_gpt(tied: bool) -> EventGpt:
    language = LlamaConfig(60, 48, 64, 2, 3, 3, max_position_embeddings=256, tie_word_embeddings=tied)
    model = EventGpt(EventGptConfig(CLIP, language, images=3))
    randomised(model, 2)
    return model


@pytest.fixture(scope="session", params=[(True, -1), (False, -2)], ids=["tied, last layer", "untied, layer before"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[VideoLlava, Path]:
    """A target and the folder it was saved to."""
    model, folder = video_llava(*request.param), tmp_path_factory.mktemp("target")
    save_video_llava(model, folder, {**IDS, "image_token_id": IMAGE, "video_token_id": VIDEO})
    return model, folder


@pytest.fixture(scope="session", params=[True, False], ids=["tied", "untied"])
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[EventGpt, Path]:
    """A drafter and the folder it was saved to."""
    model, folder = event_gpt(request.param), tmp_path_factory.mktemp("drafter")
    save_eventgpt(model, folder, IDS)
    return model, folder
