"""The Video-LLaVA architecture: every frame through one CLIP tower, a projector, then a Llama that reads all frames in order.

No temporal attention: frames are encoded independently, so encoding them one by one equals encoding them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eventspec.core import BadCheckpoint
from eventspec.models import weights
from eventspec.nn import ClipConfig, ClipViT, Llama, LlamaConfig, Projector


@dataclass(frozen=True)
class VideoLlavaConfig:
    """Sizes, and the token ids that matter (transformers' VideoLlavaConfig)."""

    vision: ClipConfig
    language: LlamaConfig
    frames: int = 8
    vision_layer: int = -2
    video_token: int = 32001

    @property
    def visual_tokens(self) -> int:
        """Rows of one clip: CLS is kept for videos."""
        return self.frames * self.vision.tokens


class VideoLlava(nn.Module):
    """Tower, projector and language model; the decoding session lives in `models.session`."""

    def __init__(self, config: VideoLlavaConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipViT(config.vision)
        self.projector = Projector(config.vision.hidden_size, config.language.hidden_size)
        self.language = Llama(config.language)

    def encode(self, pixels: Tensor) -> Tensor:
        """Frames float [K, 3, S, S] -> visual rows [K * tokens, D] in frame order."""
        rows: Tensor = self.projector(self.tower(pixels, self.config.vision_layer)).flatten(0, 1)
        return rows


def sources(config: VideoLlavaConfig) -> weights.Sources:
    """Tensor names of the hub's checkpoints."""
    return {
        **weights.clip_sources(config.vision, "tower.", "video_tower.vision_model."),
        **weights.linear_sources("projector.linear_1", "multi_modal_projector.linear_1"),
        **weights.linear_sources("projector.linear_2", "multi_modal_projector.linear_2"),
        **weights.llama_sources(config.language, "language.", "language_model.model.", "language_model.lm_head.weight"),
    }


def save_video_llava(model: VideoLlava, folder: Path, tokens: dict[str, int]) -> None:
    """Write a folder that transformers' VideoLlavaForConditionalGeneration loads too; `tokens` names the special ids."""
    folder.mkdir(parents=True, exist_ok=True)
    # transformers builds an image tower as well; a copy of the video tower keeps its loading silent and its result defined.
    copies = {"video_tower.": "image_tower."}
    weights.save(model, folder / "model.safetensors", sources(model.config), copies)
    (folder / "config.json").write_text(weights.pretty(_config_json(model.config, tokens)))


def _config_json(config: VideoLlavaConfig, tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["VideoLlavaForConditionalGeneration"],
        "model_type": "video_llava",
        "dtype": "float16",
        "vision_config": {"model_type": "clip_vision_model", **weights.clip_json(config.vision)},
        "text_config": {"model_type": "llama", **weights.llama_json(config.language), **tokens},
        "image_token_index": tokens["image_token_id"],
        "video_token_index": config.video_token,
        "vision_feature_layer": config.vision_layer,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "image_seq_length": config.vision.tokens - 1,
        "video_seq_length": config.visual_tokens,
        "tie_word_embeddings": config.language.tie_word_embeddings,
        **tokens,
    }


def load_video_llava(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> VideoLlava:
    """The model of a folder with config.json and model.safetensors; BadCheckpoint says what is missing or does not fit."""
    data = weights.read_json(folder / "config.json")
    try:
        vision, text = data["vision_config"], data["text_config"]
        config = VideoLlavaConfig(
            weights.clip_config(vision),
            weights.llama_config(text),
            frames=data["video_seq_length"] // ((vision["image_size"] // vision["patch_size"]) ** 2 + 1),
            vision_layer=data["vision_feature_layer"],
            video_token=data["video_token_index"],
        )
    except (KeyError, TypeError) as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: field {error} is missing or wrong") from None
    model = VideoLlava(config)
    weights.load(model, folder / "model.safetensors", sources(config), dtype)
    return model.to(device).requires_grad_(False).eval()
