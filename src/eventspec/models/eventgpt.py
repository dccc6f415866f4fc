"""The EventGPT architecture: event images through one CLIP tower, a projector and an adaptor, pooled over space and time,
then a Llama.

Source: XduSyL/EventGPT; facts in its released code: last tower layer, CLS kept, no final norm, temporal rows before
spatial ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from eventspec.core import BadCheckpoint
from eventspec.models import weights
from eventspec.nn import ClipConfig, ClipViT, Llama, LlamaConfig, Projector
from eventspec.nn.linear import Linear


@dataclass(frozen=True)
class EventGptConfig:
    """Sizes; `images` is the number of equal-count slices of a window."""

    vision: ClipConfig
    language: LlamaConfig
    images: int = 5

    @property
    def event_tokens(self) -> int:
        """Rows of one window: one per image and one per tower row."""
        return self.images + self.vision.tokens


class EventGpt(nn.Module):
    """Tower, projector, adaptor, spatio-temporal pooling and language model."""

    def __init__(self, config: EventGptConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipViT(config.vision)
        self.projector = Projector(config.vision.hidden_size, config.language.hidden_size)
        self.adaptor = Linear(config.language.hidden_size, config.language.hidden_size)
        self.language = Llama(config.language)

    def encode(self, pixels: Tensor) -> Tensor:
        """Event images float [B * images, 3, S, S] -> event rows [B, event_tokens, D], temporal means first."""
        features = self.adaptor(self.projector(self.tower(pixels)))
        features = features.unflatten(0, (-1, self.config.images))
        return torch.cat((features.mean(2), features.mean(1)), 1)


def sources(config: EventGptConfig) -> weights.Sources:
    """Tensor names of the released checkpoints."""
    return {
        **weights.clip_sources(config.vision, "tower.", "model.visual_tower.visual_tower.vision_model."),
        **weights.linear_sources("projector.linear_1", "model.visual_projector.0"),
        **weights.linear_sources("projector.linear_2", "model.visual_projector.2"),
        **weights.linear_sources("adaptor", "model.feature_adaptor"),
        **weights.llama_sources(config.language, "language.", "model.", "lm_head.weight"),
    }


def save_eventgpt(model: EventGpt, folder: Path, tokens: dict[str, int]) -> None:
    """Write a folder in EventGPT's layout: config.json, model.safetensors, and the tower's sizes in clip/config.json."""
    (folder / "clip").mkdir(parents=True, exist_ok=True)
    config = model.config
    weights.save(model, folder / "model.safetensors", sources(config))
    data = {
        "architectures": ["EventChatModel"],
        "model_type": "EventChat_llama",
        "dtype": "float16",
        **weights.llama_json(config.language),
        "mm_visual_tower": "clip",
        "mm_hidden_size": config.vision.hidden_size,
        "event_feature_adaptor": True,
        "event_images": config.images,
        **tokens,
    }
    (folder / "config.json").write_text(weights.pretty(data))
    clip = {"model_type": "clip_vision_model", **weights.clip_json(config.vision)}
    (folder / "clip/config.json").write_text(weights.pretty(clip))


def load_eventgpt(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> EventGpt:
    """The model of a folder with config.json, clip/config.json and model.safetensors; BadCheckpoint says what does not fit."""
    data = weights.read_json(folder / "config.json")
    vision = weights.read_json(folder / "clip/config.json")
    try:
        config = EventGptConfig(weights.clip_config(vision), weights.llama_config(data), data["event_images"])
    except (KeyError, TypeError) as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: field {error} is missing or wrong") from None
    model = EventGpt(config)
    weights.load(model, folder / "model.safetensors", sources(config), dtype)
    return model.to(device).requires_grad_(False).eval()
