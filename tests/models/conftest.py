"""Tiny random checkpoints of both architectures, and of transformers' own, written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from eventspec.models.embedded import BOS, EOS, IMAGE, PAD, VIDEO
from eventspec.models.eventgpt import EventGpt, EventGptConfig, save_eventgpt
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig, save_video_llava
from eventspec.nn import ClipConfig, LlamaConfig

IDS = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
CLIP = ClipConfig(32, 64, 3, 2, 112, 14)

MARKS = ("<pad>", "<s>", "</s>", "<image>", "<video>", "<|begin|>", "<|end|>", "<|stop|>")
MARK = {mark: 256 + place for place, mark in enumerate(MARKS)}
ROWS = 270
MARK_IDS = {"bos_token_id": MARK["<s>"], "eos_token_id": MARK["</s>"], "pad_token_id": MARK["<pad>"]}
MEDIA = {"image_token_id": MARK["<image>"], "video_token_id": MARK["<video>"]}
TEXT = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    **MARK_IDS,
}
TEXT |= {
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for c in m.content %}{% if c.type == 'image' %}@{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %} answer:"
)


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


# --------------------------------------------------------------------------------------------------------- transformers' own
def _llava(text: Any) -> Any:
    vision = hf.CLIPVisionConfig(**TOWER)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=MARK["<image>"], image_seq_length=4)
    return hf.LlavaForConditionalGeneration(config)


def _onevision() -> Any:
    parts = {"vision_config": hf.SiglipVisionConfig(**TOWER), "text_config": hf.Qwen2Config(**TEXT)}
    ids = {"image_token_index": MARK["<image>"], "video_token_index": MARK["<video>"]}
    return hf.LlavaOnevisionForConditionalGeneration(
        hf.LlavaOnevisionConfig(**parts, **ids, image_grid_pinpoints=[[28, 28], [56, 28]])
    )


def _qwen() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14}
    vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
    special = {**MEDIA, "vision_start_token_id": MARK["<|begin|>"], "vision_end_token_id": MARK["<|end|>"]}
    config = hf.Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **special)
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def _deepstack() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14}
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    special = {**MEDIA, "vision_start_token_id": MARK["<|begin|>"], "vision_end_token_id": MARK["<|end|>"]}
    text = {**TEXT, "rope_parameters": rope, "head_dim": 8}
    return hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(text_config=text, vision_config=vision, **special))


def _kinds() -> dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]]:
    """Model, image processor, fields of processor_config.json, and what stands for a picture in the template."""
    small = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    clip = hf.CLIPImageProcessorPil(**small)
    llava = {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"}
    llava["num_additional_image_tokens"] = 1
    several = hf.LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 28], [56, 28]])
    one = {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    qwen = hf.Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=84 * 84)
    around = "<|begin|><image><|end|>"
    window = hf.MistralConfig(**TEXT, sliding_window=12)
    linear = hf.Lfm2Config(**{**TEXT, "num_hidden_layers": 3}, layer_types=["conv", "full_attention", "conv"])
    return {
        "llava": (lambda: _llava(hf.LlamaConfig(**TEXT)), clip, llava, "<image>"),
        "onevision": (_onevision, several, one, "<image>"),
        "qwen": (_qwen, qwen, {"processor_class": "Qwen2_5_VLProcessor"}, around),
        "deepstack": (_deepstack, qwen, {"processor_class": "Qwen3VLProcessor"}, around),
        "window": (lambda: _llava(window), clip, llava, "<image>"),
        "linear": (lambda: _llava(linear), clip, llava, "<image>"),
    }


def written(folder: Path, kind: str, seed: int = 5) -> Path:
    make, pictures, settings, place = _kinds()[kind]
    model = make().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.requires_grad_(False).named_parameters():
        weight.normal_(0.0, 0.5 if "language" in name or "head" in name else 0.15, generator=generator)
        if "norm" in name and not name.endswith("bias"):
            weight.add_(1.0)
    model.generation_config = hf.GenerationConfig(**{**MARK_IDS, "eos_token_id": [MARK["</s>"], MARK["<|stop|>"]]})
    hf.utils.logging.disable_progress_bar()  # its line would stand among what a test reads of stderr
    model.save_pretrained(folder)
    hf.utils.logging.enable_progress_bar()
    pictures.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>", "video_token": "<video>"}
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("@", place))
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model of transformers: llava, onevision, qwen, window (sliding), deepstack, linear."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = written(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get
