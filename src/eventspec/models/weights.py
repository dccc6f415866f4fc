"""Checkpoint tensors <-> our modules: names, fusing and splitting, and writing; a model's identity by its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from eventspec.files import write_whole
from eventspec.nn import ClipConfig, LlamaConfig
from eventspec.nn.llama import LanguageEnds

Sources = dict[str, list[tuple[str, int]]]
"""Our tensor name -> the checkpoint tensors that are stacked into it along axis 0, with their rows (0 = all of it)."""
_SAMPLED = 64

CLIP_LAYER = {"norm1": "layer_norm1", "norm2": "layer_norm2", "out": "self_attn.out_proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}


def clip_sources(config: ClipConfig, ours: str, theirs: str) -> Sources:
    """CLIP vision tower under the prefixes `ours` and `theirs` (transformers' names below `vision_model.`)."""
    names: Sources = {
        f"{ours}cls": [(f"{theirs}embeddings.class_embedding", 0)],
        f"{ours}patch.weight": [(f"{theirs}embeddings.patch_embedding.weight", 0)],
        f"{ours}positions": [(f"{theirs}embeddings.position_embedding.weight", 0)],
        **linear_sources(f"{ours}pre_norm", f"{theirs}pre_layrnorm"),
        **linear_sources(f"{ours}post_norm", f"{theirs}post_layernorm"),
    }
    for i in range(config.num_hidden_layers):
        block, layer = f"{ours}blocks.{i}.", f"{theirs}encoder.layers.{i}."
        for own, other in CLIP_LAYER.items():
            names |= linear_sources(block + own, layer + other)
        for part in ("weight", "bias"):
            names[f"{block}qkv.{part}"] = [(f"{layer}self_attn.{x}_proj.{part}", config.hidden_size) for x in "qkv"]
    return names


def llama_sources(config: LlamaConfig, ours: str, theirs: str, head: str) -> Sources:
    """Llama under the prefixes `ours` and `theirs` (transformers' names below `model.`); `head` is the head's tensor."""
    names: Sources = {
        f"{ours}embed.weight": [(f"{theirs}embed_tokens.weight", 0)],
        f"{ours}norm": [(f"{theirs}norm.weight", 0)],
    }
    if not config.tie_word_embeddings:
        names[f"{ours}head.weight"] = [(head, 0)]
    for i in range(config.num_hidden_layers):
        names.update(layer_sources(config, f"{ours}layers.{i}.", f"{theirs}layers.{i}."))
    return names


def layer_sources(config: LlamaConfig, ours: str, theirs: str) -> Sources:
    """One decoder layer under the prefixes `ours` and `theirs`."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    rows = (("q", queries), ("k", keys), ("v", keys))
    return {
        f"{ours}input_norm": [(f"{theirs}input_layernorm.weight", 0)],
        f"{ours}post_norm": [(f"{theirs}post_attention_layernorm.weight", 0)],
        f"{ours}qkv.weight": [(f"{theirs}self_attn.{x}_proj.weight", n) for x, n in rows],
        f"{ours}out.weight": [(f"{theirs}self_attn.o_proj.weight", 0)],
        f"{ours}gate_up.weight": [(f"{theirs}mlp.{x}_proj.weight", config.intermediate_size) for x in ("gate", "up")],
        f"{ours}down.weight": [(f"{theirs}mlp.down_proj.weight", 0)],
    }


def linear_sources(ours: str, theirs: str) -> Sources:
    """A linear layer, or a norm, with bias."""
    return {f"{ours}.{part}": [(f"{theirs}.{part}", 0)] for part in ("weight", "bias")}


def own_names(module: nn.Module) -> Sources:
    """Of a folder that has our own names."""
    return {name: [(name, 0)] for name, _ in module.named_parameters()}


def save(
    module: nn.Module,
    path: Path,
    sources: Sources,
    copies: Mapping[str, str] | None = None,
    more: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a module's tensors as `dtype` under the checkpoint's names; `copies` repeats those below one prefix under another,
    `more` are written as they are."""
    own = {name: p.detach().to("cpu", dtype) for name, p in module.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for name, parts in sources.items():
        rows = [n or len(own[name]) for _, n in parts]
        for (part, _), piece in zip(parts, own[name].split(rows), strict=True):
            tensors[part] = piece.clone()
    for source, destination in (copies or {}).items():
        tensors.update({destination + n[len(source) :]: t.clone() for n, t in tensors.items() if n.startswith(source)})

    def write(part: Path) -> None:
        try:
            save_file({**tensors, **(more or {})}, part, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from None
        part.chmod(0o644)

    write_whole(path, write)


def fingerprint(model: nn.Module) -> str:
    """A digest of evenly spaced weights of every tensor, rounded to bfloat16 (16 hex digits): reading all would read a mapped
    checkpoint of 7 B from end to end. Loading in another dtype does not change it, if both hold the stored numbers."""
    model = model.whole if isinstance(model, LanguageEnds) else model
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        places = torch.linspace(0, len(flat) - 1, min(_SAMPLED, len(flat)), dtype=torch.float64).long().to(flat.device)
        values = flat[places].to(torch.bfloat16).view(torch.int16).cpu().numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.tobytes())
    return digest.hexdigest()[:16]
