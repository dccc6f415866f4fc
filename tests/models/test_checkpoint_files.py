"""Weight files: shards, .bin, name variants; nothing is executed or copied needlessly, every refusal names its cause."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eventspec.core import BadCheckpoint, BadInput
from eventspec.models.eventgpt import EventGpt, load_eventgpt
from eventspec.models.folder import describe, load_folder
from eventspec.models.loading import LoadOptions
from eventspec.models.video_llava import VideoLlava, hub_name, load_video_llava, open_video_llava

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

INDEX = "model.safetensors.index.json"


@pytest.fixture
def copy(target: tuple[VideoLlava, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(target[1], tmp_path / "copy"))


def refused(folder: Path, *words: str, load: Callable[[Path], Any] = load_video_llava) -> None:
    with pytest.raises(BadCheckpoint) as caught:
        load(folder)
    told = str(caught.value)
    assert "\n" not in told
    for word in words:
        assert word in told, told


def sharded(folder: Path, index: bool = True, count: int = 3) -> list[Path]:
    """Split model.safetensors into shards, as save_pretrained names them."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    paths, table, names = [], {}, sorted(tensors)
    for number in range(count):
        path = folder / f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        save_file({name: tensors[name] for name in names[number::count]}, path)
        table.update(dict.fromkeys(names[number::count], path.name))
        paths.append(path)
    if index:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return paths


def same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    theirs = dict(other.named_parameters())
    assert all(torch.equal(parameter, theirs[name]) for name, parameter in one.named_parameters())
    assert len(theirs) == len(list(one.parameters()))


@pytest.mark.parametrize("index", [True, False], ids=["indexed", "numbered"])
def test_shards_hold_the_same_model(copy: Path, target: tuple[VideoLlava, Path], index: bool) -> None:
    sharded(copy, index)
    same(load_video_llava(target[1]), load_video_llava(copy))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "the older format"])
def test_bin_files_hold_the_same_model(copy: Path, target: tuple[VideoLlava, Path], zipped: bool) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (copy / "model.safetensors").unlink()
    same(load_video_llava(target[1]), load_video_llava(copy))


def test_weights_stay_in_the_file_where_they_are_used_as_they_are(copy: Path) -> None:
    model = load_video_llava(copy, None)
    assert model.language.embed.weight.dtype == torch.float16
    for path in copy.glob("*.safetensors"):
        maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
        assert maps, "the file is mapped"
    before = model.language.embed.weight.clone()
    model.language.embed.weight.zero_()  # private to this process: the file is not written
    assert torch.equal(load_video_llava(copy, None).language.embed.weight, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["language_model.model.layers.1.self_attn.k_proj.weight", "multi_modal_projector.linear_1.bias"]
)
def test_a_weight_that_is_no_number_is_named(copy: Path, name: str, value: float) -> None:
    tensors = load_file(copy / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, copy / "model.safetensors")
    told = name.replace("k_proj", "q_proj")  # queries, keys and values become one
    refused(copy, told, "holds NaN or infinity")
    refused(copy, name, "holds NaN or infinity", load=lambda folder: open_video_llava(folder).check_values())


def test_a_weight_that_overflows_in_half_precision_is_named(copy: Path) -> None:
    tensors = {name: tensor.float() for name, tensor in load_file(copy / "model.safetensors").items()}
    name = next(name for name in sorted(tensors) if "down_proj" in name)
    tensors[name][0, 0] = 1e5
    save_file(tensors, copy / "model.safetensors")
    refused(copy, name, "in float16", "bfloat16", load=lambda folder: load_video_llava(folder, torch.float16))
    open_video_llava(copy).check_values()
    load_video_llava(copy, torch.bfloat16)


def test_a_missing_shard_is_named(copy: Path) -> None:
    paths = sharded(copy)
    paths[1].unlink()
    refused(copy, paths[1].name, "missing", INDEX)
    (copy / INDEX).unlink()
    refused(copy, "shard 2 of 3 is missing")


def test_a_corrupt_shard_is_named(copy: Path) -> None:
    paths = sharded(copy)
    paths[1].write_bytes(b"\0" * 100)
    refused(copy, paths[1].name, "cannot be read as safetensors")


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04broken", b"not torch at all", b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n"],
)
def test_a_corrupt_bin_file_is_named(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(content)
    refused(copy, "pytorch_model.bin", "cannot be read as torch weights")


def test_a_bin_file_is_never_executed(copy: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "executed",))

    (copy / "model.safetensors").unlink()
    torch.save({"language_model.lm_head.weight": Bomb()}, copy / "pytorch_model.bin")
    refused(copy, "pytorch_model.bin", "holds more than tensors, and is not opened")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "", "..", 3])
def test_an_index_cannot_reach_out_of_its_folder(copy: Path, name: object) -> None:
    (copy / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    refused(copy, INDEX, "weight_map")


def test_unknown_tensors_are_named_and_known_extras_are_not_minded(copy: Path) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    extra = ("language_model.model.layers.0.self_attn.rotary_emb.inv_freq", "video_tower.vision_model.embeddings.position_ids")
    save_file({**tensors, **{name: torch.zeros(1) for name in extra}}, path)
    load_video_llava(copy)
    save_file({**tensors, "language_model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(1)}, path)
    refused(copy, "q_proj.lora_A.weight", "unknown", "model.safetensors")


def test_eventgpts_unused_parts_are_not_minded(drafter: tuple[EventGpt, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(drafter[1], tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    extra = ("model.query_embedder.weight", "model.attention_layers.0.weight")
    save_file({**tensors, **{name: torch.zeros(1) for name in extra}}, folder / "model.safetensors")
    same(load_eventgpt(drafter[1]), load_eventgpt(folder))
    save_file({**tensors, "model.other.weight": torch.zeros(1)}, folder / "model.safetensors")
    refused(folder, "model.other.weight", "unknown", load=load_eventgpt)


def test_quantised_weights_are_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    name = "language_model.model.layers.0.mlp.up_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].to(torch.int8)}, path)
    refused(copy, name, "quantised")


def test_two_variants_of_a_name_are_one_too_many(copy: Path) -> None:
    path = copy / "model.safetensors"
    name = "language_model.model.norm.weight"
    tensors = load_file(path)
    save_file({**tensors, "model.language_model.norm.weight": tensors[name].clone()}, path)
    refused(copy, "twice")


def test_names_of_every_layout_become_the_hubs() -> None:
    names = {
        "model.video_tower.embeddings.class_embedding": "video_tower.vision_model.embeddings.class_embedding",
        "image_tower.encoder.layers.0.mlp.fc1.bias": "image_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
        "video_tower.vision_model.post_layernorm.bias": "video_tower.vision_model.post_layernorm.bias",
        "model.multi_modal_projector.linear_1.bias": "multi_modal_projector.linear_1.bias",
        "model.language_model.layers.0.mlp.up_proj.weight": "language_model.model.layers.0.mlp.up_proj.weight",
        "lm_head.weight": "language_model.lm_head.weight",
        "language_model.lm_head.weight": "language_model.lm_head.weight",
    }
    assert {name: hub_name(name) for name in names} == names


def test_the_clip_folder_is_found_beside_the_checkpoint_by_any_path(folders: Folders, tmp_path: Path) -> None:
    """mm_visual_tower is what the trainers' machine called it."""
    shutil.copytree(folders.eventgpt, tmp_path / "checkpoint")
    config = json.loads((tmp_path / "checkpoint/config.json").read_text())
    config["mm_visual_tower"] = "/data/weights/clip"
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(config))
    refused(tmp_path / "checkpoint", "clip/config.json is missing", "mm_visual_tower", load=load_folder)
    shutil.copytree(folders.clip, tmp_path / "clip")
    same(load_eventgpt(folders.eventgpt), load_eventgpt(tmp_path / "checkpoint"))
    assert describe(tmp_path / "checkpoint")["sees"] == {"event_images": 5, "visual_rows": 10, "image_size": 28}


def test_a_tokenizer_of_another_size_cuts_or_lengthens_the_rows(folders: Folders) -> None:
    """As upstream's resize does, but for its random numbers."""
    whole = load_eventgpt(folders.eventgpt)
    size = whole.config.language.vocab_size
    shorter, longer = load_eventgpt(folders.eventgpt, rows=size - 2), load_eventgpt(folders.eventgpt, rows=size + 1)
    for layer in ("embed", "head"):
        rows = getattr(whole.language, layer).weight
        assert torch.equal(getattr(shorter.language, layer).weight, rows[:-2])
        assert torch.equal(getattr(longer.language, layer).weight, torch.cat((rows, torch.zeros(1, rows.shape[1]))))
    assert (shorter.config.language.vocab_size, longer.language.config.vocab_size) == (size - 2, size + 1)
    end = longer.language.logits(torch.ones(1, 48))
    assert end.shape == (1, size + 1)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there_is_refused_before_any_weight_is_read(device: str) -> None:
    with pytest.raises(BadInput, match=f"device '{device}' cannot be used") as refused:
        LoadOptions(device=device)
    assert "\n" not in str(refused.value)
