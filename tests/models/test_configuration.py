"""config.json: what hub configs omit, what transformers 5 calls otherwise, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eventspec.core import BadCheckpoint
from eventspec.models.configuration import BadField, llama_config
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig, load_video_llava, video_llava_config

# What the hub's config of Video-LLaVA-7B says, as far as it matters here; the rest are transformers' defaults.
HUB: dict[str, Any] = {
    "architectures": ["VideoLlavaForConditionalGeneration"],
    "ignore_index": -100,
    "model_type": "video_llava",
    "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "vocab_size": 32064},
}


def test_a_config_of_defaults_is_the_7b_model() -> None:
    config = video_llava_config(HUB)
    assert (config.frames, config.visual_tokens, config.vision_layer) == (8, 2056, -2)
    assert (config.video_token, config.image_token) == (32001, 32000)
    language, vision = config.language, config.vision
    assert (language.hidden_size, language.intermediate_size, language.num_hidden_layers) == (4096, 11008, 32)
    assert (language.num_key_value_heads, language.rope_theta, language.max_position_embeddings) == (32, 10000.0, 4096)
    assert (vision.hidden_size, vision.num_hidden_layers, vision.image_size, vision.patch_size) == (1024, 24, 224, 14)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_scaling": {"rope_theta": 5e5, "type": "default"}},
    ],
)
def test_the_rotary_base_may_be_called_in_any_way(rope: dict[str, Any]) -> None:
    assert llama_config(rope).rope_theta == 5e5


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", [{"rope_type": "llama3", "factor": 8.0}, {"type": "linear"}, "linear"])
def test_scaled_positions_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BadField, match=name):
        llama_config({name: value})


@pytest.mark.parametrize(("layer", "ours"), [(-1, -1), (-2, -2), (23, -2), (24, -1), (0, -25)], ids=lambda layer: str(layer))
def test_a_layer_may_be_counted_from_either_end(layer: int, ours: int) -> None:
    assert video_llava_config({**HUB, "vision_feature_layer": layer}).vision_layer == ours


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "llava"),
        ("vision_feature_layer", [-2, -5]),
        ("vision_feature_layer", 25),
        ("vision_feature_layer", "last"),
        ("vision_feature_select_strategy", "full"),
        ("video_seq_length", 1000),
        ("video_seq_length", "long"),
        ("video_token_index", -1),
        ("projector_hidden_act", "relu"),
        ("multimodal_projector_bias", False),
        ("text_config", []),
        ("vision_config", "clip"),
        ("text_config", {"max_position_embeddings": 1 << 40}),
        ("text_config", {"hidden_size": 1 << 40}),
        ("text_config", {"hidden_size": 1 << 20}),  # before a table of positions is made for heads of 32,768
        ("text_config", {"max_position_embeddings": 1 << 22}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadField, match=next(iter(value)) if isinstance(value, dict) else field):
        video_llava_config({**HUB, field: value})


@pytest.mark.parametrize("value", [0, -1e-6, float("nan"), float("inf"), 10**400, True, "1e-6"])
def test_an_epsilon_or_a_base_that_is_no_positive_number_is_refused(value: object) -> None:
    for name in ("rms_norm_eps", "rope_theta"):
        with pytest.raises(BadField, match=f"{name} is .*, wanted a positive finite number"):
            llama_config({name: value})


def test_the_default_of_video_rows_does_not_bind_another_tower() -> None:
    small = {**HUB, "vision_config": {"hidden_size": 32, "num_attention_heads": 2, "image_size": 112, "patch_size": 14}}
    config: VideoLlavaConfig = video_llava_config(small)
    assert (config.frames, config.vision.tokens) == (8, 65)
    assert video_llava_config({**small, "video_seq_length": 130}).frames == 2


def changed(folder: Path, copy: Path, part: str = "", **fields: object) -> Path:
    if folder != copy:
        shutil.copytree(folder, copy)
    data = json.loads((copy / "config.json").read_text())
    inner = data[part] if part else data
    for name, value in fields.items():
        if value is None:
            inner.pop(name)
        else:
            inner[name] = value
    (copy / "config.json").write_text(json.dumps(data))
    return copy


def test_a_config_without_its_defaults_loads(target: tuple[VideoLlava, Path], tmp_path: Path) -> None:
    gone = dict.fromkeys(("vision_feature_select_strategy", "projector_hidden_act", "image_seq_length"))
    folder = changed(target[1], tmp_path / "copy", **gone)
    changed(folder, folder, "vision_config", layer_norm_eps=None)
    changed(folder, folder, "text_config", rope_theta=None)
    changed(folder, folder, "text_config", rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    assert load_video_llava(folder).config == load_video_llava(target[1]).config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"use_event_qformer": False}, ("use_event_qformer",)),
        ({"mm_visual_tower": None}, ("mm_visual_tower",)),
        ({"mm_hidden_size": None}, ("mm_hidden_size", "1024")),
        ({"mm_hidden_size": 48}, ("mm_hidden_size",)),
        ({"event_images": 0}, ("event_images",)),
        ({"event_feature_adaptor": None}, ("model.feature_adaptor.bias", "unknown")),
        ({"model_type": "llama"}, ("model_type",)),
    ],
    ids=lambda value: str(next(iter(value))),
)
def test_eventgpts_fields_are_refused_by_name(
    drafter: tuple[Any, Path], tmp_path: Path, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    folder = changed(drafter[1], tmp_path / "copy", **fields)
    with pytest.raises(BadCheckpoint) as caught:
        load_eventgpt(folder)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_missing_number_of_images_is_five(drafter: tuple[Any, Path], tmp_path: Path) -> None:
    assert load_eventgpt(changed(drafter[1], tmp_path / "copy", event_images=None)).config.images == 5


def test_a_context_without_room_for_a_prompt_is_refused() -> None:
    with pytest.raises(BadField, match="max_position_embeddings is 1, wanted a whole number, 8 to"):
        llama_config({"max_position_embeddings": 1})
