"""Checkpoint tensors <-> our modules: names, fusing and splitting, and reading safetensors without trusting them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eventspec.core import BadCheckpoint
from eventspec.nn import ClipConfig, LlamaConfig

Sources = dict[str, list[tuple[str, int]]]
"""Our tensor name -> the checkpoint tensors that are stacked into it along axis 0, with their rows (0 = all of it)."""


def clip_sources(config: ClipConfig, ours: str, theirs: str) -> Sources:
    """CLIP vision tower under the prefixes `ours` and `theirs` (transformers' names below `vision_model.`)."""
    names: Sources = {
        f"{ours}cls": [(f"{theirs}embeddings.class_embedding", 0)],
        f"{ours}patch.weight": [(f"{theirs}embeddings.patch_embedding.weight", 0)],
        f"{ours}positions": [(f"{theirs}embeddings.position_embedding.weight", 0)],
    }
    width = config.hidden_size
    for part in ("weight", "bias"):
        names[f"{ours}pre_norm.{part}"] = [(f"{theirs}pre_layrnorm.{part}", 0)]
        names[f"{ours}post_norm.{part}"] = [(f"{theirs}post_layernorm.{part}", 0)]
        for i in range(config.num_hidden_layers):
            block, layer = f"{ours}blocks.{i}.", f"{theirs}encoder.layers.{i}."
            names[f"{block}norm1.{part}"] = [(f"{layer}layer_norm1.{part}", 0)]
            names[f"{block}norm2.{part}"] = [(f"{layer}layer_norm2.{part}", 0)]
            names[f"{block}qkv.{part}"] = [(f"{layer}self_attn.{x}_proj.{part}", width) for x in "qkv"]
            names[f"{block}out.{part}"] = [(f"{layer}self_attn.out_proj.{part}", 0)]
            names[f"{block}fc1.{part}"] = [(f"{layer}mlp.fc1.{part}", 0)]
            names[f"{block}fc2.{part}"] = [(f"{layer}mlp.fc2.{part}", 0)]
    return names


def llama_sources(config: LlamaConfig, ours: str, theirs: str, head: str) -> Sources:
    """Llama under the prefixes `ours` and `theirs` (transformers' names below `model.`); `head` is the head's tensor."""
    names: Sources = {
        f"{ours}embed.weight": [(f"{theirs}embed_tokens.weight", 0)],
        f"{ours}norm": [(f"{theirs}norm.weight", 0)],
    }
    if not config.tie_word_embeddings:
        names[f"{ours}head.weight"] = [(head, 0)]
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    for i in range(config.num_hidden_layers):
        layer, other = f"{ours}layers.{i}.", f"{theirs}layers.{i}."
        names[f"{layer}input_norm"] = [(f"{other}input_layernorm.weight", 0)]
        names[f"{layer}post_norm"] = [(f"{other}post_attention_layernorm.weight", 0)]
        rows = (("q", queries), ("k", keys), ("v", keys))
        names[f"{layer}qkv.weight"] = [(f"{other}self_attn.{x}_proj.weight", n) for x, n in rows]
        names[f"{layer}out.weight"] = [(f"{other}self_attn.o_proj.weight", 0)]
        names[f"{layer}gate_up.weight"] = [(f"{other}mlp.{x}_proj.weight", config.intermediate_size) for x in ("gate", "up")]
        names[f"{layer}down.weight"] = [(f"{other}mlp.down_proj.weight", 0)]
    return names


def linear_sources(ours: str, theirs: str) -> Sources:
    """A linear layer with bias."""
    return {f"{ours}.{part}": [(f"{theirs}.{part}", 0)] for part in ("weight", "bias")}


def load(module: nn.Module, path: Path, sources: Sources, dtype: torch.dtype) -> None:
    """Fill a module from one safetensors file; refuses missing tensors and wrong shapes by name."""
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            missing = sorted({name for parts in sources.values() for name, _ in parts} - names)
            if missing:
                raise BadCheckpoint(
                    f"{path}: tensor {missing[0]} is missing ({len(missing)} in all): the checkpoint is incomplete"
                )
            own = dict(module.named_parameters())
            for name, parts in sources.items():
                pieces = []
                for part, rows in parts:
                    pieces.append(file.get_tensor(part))
                    found, wanted = list(pieces[-1].shape), [rows or len(own[name]), *own[name].shape[1:]]
                    if found != wanted:
                        raise BadCheckpoint(f"{path}: tensor {part} is {found}, config.json asks for {wanted}")
                own[name].data = (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).to(dtype)
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} cannot be read as safetensors ({error}): fetch or train it again") from None


def save(module: nn.Module, path: Path, sources: Sources, copies: Mapping[str, str] | None = None) -> None:
    """Write a module's tensors in fp16 under the checkpoint's names; `copies` repeats those below one prefix under another."""
    own = {name: p.detach().to("cpu", torch.float16) for name, p in module.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for name, parts in sources.items():
        rows = [n or len(own[name]) for _, n in parts]
        for (part, _), piece in zip(parts, own[name].split(rows), strict=True):
            tensors[part] = piece.clone()
    for source, destination in (copies or {}).items():
        tensors.update({destination + n[len(source) :]: t.clone() for n, t in tensors.items() if n.startswith(source)})
    beside = path.with_suffix(".part")
    save_file(tensors, beside, metadata={"format": "pt"})
    beside.chmod(0o644)
    beside.rename(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint folder; BadCheckpoint names the file when it is missing or broken."""
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: the folder is not a complete checkpoint")
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path} is not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} must hold one JSON object")
    return data


def pretty(data: dict[str, Any]) -> str:
    """JSON as config files have it."""
    return json.dumps(data, indent=2) + "\n"


def clip_json(config: ClipConfig) -> dict[str, Any]:
    """A tower's sizes in transformers' words."""
    return {**asdict(config), "projection_dim": config.hidden_size}


def llama_json(config: LlamaConfig) -> dict[str, Any]:
    """A decoder's sizes in transformers' words."""
    return {**asdict(config), "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def clip_config(data: dict[str, Any]) -> ClipConfig:
    """The inverse of `clip_json`; KeyError names a field that is missing or cannot be."""
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    sizes: dict[str, Any] = {name: _whole(data, name) for name in needed}
    more = {name: data[name] for name in ("layer_norm_eps", "hidden_act") if name in data}
    _require("num_attention_heads", sizes["hidden_size"] % sizes["num_attention_heads"] == 0)
    _require("patch_size", sizes["image_size"] % sizes["patch_size"] == 0)
    _require("layer_norm_eps", isinstance(more.get("layer_norm_eps", 0.0), float | int))
    _require("hidden_act", more.get("hidden_act", "gelu") in ("gelu", "quick_gelu"))
    return ClipConfig(**sizes, **more)


def _whole(data: dict[str, Any], name: str) -> int:
    value = data[name]
    _require(name, type(value) is int and value > 0)
    return int(value)


def _require(name: str, holds: bool) -> None:
    if not holds:
        raise KeyError(name)


def llama_config(data: dict[str, Any]) -> LlamaConfig:
    """The inverse of `llama_json`; KeyError names a field that is missing, cannot be, or asks for what our decoder lacks."""
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    optional = ("rms_norm_eps", "rope_theta", "max_position_embeddings", "tie_word_embeddings")
    sizes: dict[str, Any] = {name: _whole(data, name) for name in needed}
    more = {name: data[name] for name in optional if name in data}
    heads = sizes["num_attention_heads"]
    groups = _whole({"num_key_value_heads": heads, **data}, "num_key_value_heads")
    _require("num_attention_heads", sizes["hidden_size"] % (2 * heads) == 0)
    _require("num_key_value_heads", heads % groups == 0)
    _require("max_position_embeddings", type(more.get("max_position_embeddings", 1)) is int)
    for name in ("rms_norm_eps", "rope_theta"):
        _require(name, isinstance(more.get(name, 0.0), float | int))
    for name, only in (("rope_scaling", None), ("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        _require(name, data.get(name, only) == only)
    return LlamaConfig(**sizes, num_key_value_heads=groups, **more)
