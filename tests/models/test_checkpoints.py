"""What is saved is what is loaded, here and in transformers; what does not fit is refused in one line that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import VideoLlavaForConditionalGeneration

from eventspec.core import BadCheckpoint, BadInput, Media, Request, Sampling, Trace
from eventspec.costs.fit import session_of
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.generate import run
from eventspec.engine.policy import NO_TAIL
from eventspec.lanes.workers import Workers
from eventspec.models.embedded import BOS, PAD, VIDEO, pixels_from_frames, target_encoder
from eventspec.models.eventgpt import EventGpt, load_eventgpt
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import VideoLlava, load_video_llava, prompt
from eventspec.text import StopDetector
from eventspec.video.clip import VideoClip

QUESTION = "what?"


def clip(frames: int = 2) -> VideoClip:
    pictures = np.random.default_rng(0).integers(0, 256, (frames, 90, 140, 3), dtype=np.uint8)
    return VideoClip(pictures, np.arange(frames, dtype=np.int64) * 100_000)


def encode(text: str) -> list[int]:
    return [6 + ord(letter) % 54 for letter in text]


def request(most: int = 12) -> Request:
    return Request(Media(frames=clip()), QUESTION, Sampling(max_new_tokens=most))


# ------------------------------------------------------------------------------------------------------------- round trips
def assert_same_weights(saved: torch.nn.Module, loaded: torch.nn.Module) -> None:
    theirs = dict(loaded.named_parameters())
    assert dict(saved.named_parameters()).keys() == theirs.keys()
    for name, parameter in saved.named_parameters():
        assert torch.equal(theirs[name], parameter.half()), name


def test_a_target_survives_saving_and_loading_in_half_precision(target: tuple[VideoLlava, Path]) -> None:
    model, folder = target
    loaded = load_video_llava(folder, torch.float16)
    assert loaded.config == model.config
    assert not loaded.training
    assert_same_weights(model, loaded)


def test_a_drafter_survives_saving_and_loading_in_half_precision(drafter: tuple[EventGpt, Path]) -> None:
    model, folder = drafter
    loaded = load_eventgpt(folder, torch.float16)
    assert loaded.config == model.config
    assert_same_weights(model, loaded)


def test_loading_in_single_precision_gives_the_saved_numbers(target: tuple[VideoLlava, Path]) -> None:
    for _, parameter in load_video_llava(target[1]).named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, parameter.half().float())


# ------------------------------------------------------------------------------------------------------------ transformers
@torch.inference_mode()
def test_transformers_loads_the_target_and_generates_the_same_tokens(target: tuple[VideoLlava, Path]) -> None:
    model = load_video_llava(target[1])
    theirs, report = VideoLlavaForConditionalGeneration.from_pretrained(
        target[1], dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    ours = LanguageTarget(target_encoder(model, encode))
    workers = Workers("one")
    answer = run(Decoding(Asking(ours, request(), StopDetector(())), workers, Trace()), workers).token_ids

    before, after = prompt(QUESTION).split("<video>")
    ids = torch.tensor([[BOS, *encode(before), *[VIDEO] * model.config.visual_tokens, *encode(after)]])
    pixels = pixels_from_frames(clip().frames)[None]
    generated = theirs.eval().generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values_videos=pixels,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    assert generated[0, ids.shape[1] :].tolist() == answer
    assert len(set(answer)) > 2, "a model that always says the same proves little"


@torch.inference_mode()
def test_frames_may_be_encoded_one_by_one(target: tuple[VideoLlava, Path]) -> None:
    model, pixels = load_video_llava(target[1]), pixels_from_frames(clip().frames)
    together = model.encode(pixels)
    torch.testing.assert_close(together, torch.cat([model.encode(frame[None]) for frame in pixels]), rtol=1e-4, atol=1e-5)
    assert together.shape == (model.config.visual_tokens, model.config.language.hidden_size)


@torch.inference_mode()
def test_event_rows_are_means_over_space_then_over_time(drafter: tuple[EventGpt, Path]) -> None:
    model = load_eventgpt(drafter[1])
    pixels = torch.randn(6, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    rows = model.encode(pixels)
    assert rows.shape == (2, model.config.event_tokens, 48)
    features = model.adaptor(model.projector(model.tower(pixels[3:])))
    torch.testing.assert_close(rows[1, :3], features.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows[1, 3:], features.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.encode_for_drafts(pixels), rows, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------- what does not fit
@pytest.fixture
def copy(target: tuple[VideoLlava, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(target[1], tmp_path / "copy"))


def refused(load: Callable[[Path], Any], folder: Path, *words: str) -> None:
    with pytest.raises(BadCheckpoint) as caught:
        load(folder)
    told = str(caught.value)
    assert "\n" not in told
    for word in words:
        assert word in told, told


def with_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


HEADS = "language_model.model.layers.1.self_attn.k_proj.weight"


def test_a_missing_tensor_is_named(copy: Path) -> None:
    with_tensors(copy, lambda tensors: tensors.pop(HEADS))
    refused(load_video_llava, copy, "model.safetensors", HEADS, "missing")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("language_model.model.embed_tokens.weight", (59, 48)),
        ("language_model.model.layers.0.mlp.down_proj.weight", (48, 65)),
        (HEADS, (25, 48)),  # a part of a fused tensor
        (HEADS, (24, 47)),  # cannot even be joined with the others
        (HEADS, ()),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(name: str, shape: tuple[int, ...], copy: Path) -> None:
    with_tensors(copy, lambda tensors: tensors.update({name: torch.zeros(shape, dtype=torch.float16)}))
    refused(load_video_llava, copy, "model.safetensors", name, str(list(shape)))


def test_parts_whose_rows_only_add_up_are_refused(copy: Path) -> None:
    """Keys and values of another number of heads, together as long as they should be."""
    values = HEADS.replace("k_proj", "v_proj")
    shapes = {HEADS: (12, 48), values: (36, 48)}
    zeros = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()}
    with_tensors(copy, lambda tensors: tensors.update(zeros))
    refused(load_video_llava, copy, "model.safetensors", HEADS)


@pytest.mark.parametrize("kept", [0, 4, 100, -100])
def test_a_truncated_file_is_refused(kept: int, copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(load_video_llava, copy, str(path))


def test_a_file_that_is_not_there_is_named(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    refused(load_video_llava, copy, "model.safetensors")
    (copy / "config.json").unlink()
    refused(load_video_llava, copy, "config.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff\xfe", '{"a": 1}', "null"])
def test_a_broken_config_is_named(text: str, copy: Path) -> None:
    (copy / "config.json").write_bytes(text.encode("latin-1"))
    refused(load_video_llava, copy, "config.json")


WRONG: list[tuple[str, str, Any]] = [
    *(("text_config", "hidden_size", value) for value in ("big", None, 0, -48, 2.5, [48], True)),
    ("text_config", "num_hidden_layers", {}),
    ("text_config", "num_attention_heads", 5),  # does not divide hidden_size
    ("text_config", "num_attention_heads", 48),  # heads of one dimension cannot turn
    ("text_config", "num_key_value_heads", 3),  # does not divide the heads
    ("text_config", "max_position_embeddings", "long"),
    ("text_config", "rms_norm_eps", "small"),
    ("vision_config", "patch_size", 0),
    ("vision_config", "image_size", None),
    ("vision_config", "num_attention_heads", 5),
    ("vision_config", "hidden_act", "silu"),
    ("text_config", "hidden_act", "gelu"),  # what our decoder does not do must not be ignored
    ("text_config", "attention_bias", True),
    ("text_config", "rope_scaling", {"rope_type": "linear", "factor": 4.0}),
]


@pytest.mark.parametrize(("part", "field", "value"), WRONG)
def test_a_field_that_cannot_be_is_named(part: str, field: str, value: Any, copy: Path) -> None:
    data = json.loads((copy / "config.json").read_text())
    data[part][field] = value
    (copy / "config.json").write_text(json.dumps(data))
    refused(load_video_llava, copy, "config.json", field)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_attention_heads"])
def test_a_field_that_is_missing_is_named(field: str, copy: Path) -> None:
    data = json.loads((copy / "config.json").read_text())
    del data["text_config"][field]
    (copy / "config.json").write_text(json.dumps(data))
    refused(load_video_llava, copy, "config.json", field)


def test_a_broken_drafter_is_named_too(drafter: tuple[EventGpt, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(drafter[1], tmp_path / "copy"))
    with_tensors(folder, lambda tensors: tensors.pop("model.feature_adaptor.bias"))
    refused(load_eventgpt, folder, "model.safetensors", "model.feature_adaptor.bias")
    (folder / "clip/config.json").write_text("{")
    refused(load_eventgpt, folder, "clip/config.json")
    shutil.rmtree(folder / "clip")
    refused(load_eventgpt, folder, "clip/config.json")


@torch.inference_mode()
def test_a_prompt_that_does_not_fit_the_context_is_bad_input(target: tuple[VideoLlava, Path]) -> None:
    model = load_video_llava(target[1])
    ours = LanguageTarget(target_encoder(model, encode))
    rows = len(session_of(ours, NO_TAIL, asked=request(1)).pending)
    fits = session_of(ours, 1, asked=request(256 - rows))
    assert len(fits.pending) == 1
    with pytest.raises(BadInput, match=f"prompt of {rows} rows and max_new_tokens {257 - rows} exceed the context of 256"):
        session_of(ours, 1, asked=request(257 - rows))
