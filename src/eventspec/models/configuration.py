"""config.json -> sizes of our modules: transformers' defaults for what a hub config omits, and a refusal for what we lack."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eventspec.core import BadCheckpoint
from eventspec.files import read_json as read_json
from eventspec.nn import ClipConfig, LlamaConfig

Fields = dict[str, Any]

LLAMA_DEFAULTS: Fields = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
CLIP_DEFAULTS: Fields = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}
CLIP_LARGE = ClipConfig(1024, 4096, 24, 16, 224, 14)
"""OpenAI's ViT-L/14, the tower where a config names none."""


class BadField(ValueError):
    """A field of a config that cannot be, or asks for what our modules do not do."""


@contextmanager
def of_file(path: Path) -> Iterator[None]:
    """A BadField raised here becomes a BadCheckpoint that names the file."""
    try:
        yield
    except BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def of_folder(folder: Path) -> AbstractContextManager[None]:
    """As `of_file`, of the folder's config.json."""
    return of_file(folder / "config.json")


def require(data: Fields, name: str, holds: bool, wanted: str) -> None:
    """BadField that names the field, its value and what would do, unless it `holds`."""
    if not holds:
        raise BadField(f"{name} is {data.get(name)!r}, wanted {wanted}")


def require_only(data: Fields, only: Fields, why: str) -> None:
    """BadField for a field that has another value than the one in `only`, where it is given."""
    for name, value in only.items():
        require(data, name, data.get(name, value) == value, f"{value!r}: {why}")


LARGEST = {"num_hidden_layers": 1 << 10, "max_position_embeddings": 1 << 21}
"""Bounds of fields that cost time or memory before any weight is looked at; the others must stay below 2^24."""


SMALLEST = {"max_position_embeddings": 8}
"""A context of less holds no prompt."""


def whole(data: Fields, name: str, least: int = 1, most: int | None = None) -> int:
    """A field that must be a whole number from `least` to `most`, or within the field's bounds."""
    value, most, least = data.get(name), most or LARGEST.get(name, 1 << 24), SMALLEST.get(name, least)
    require(data, name, type(value) is int and least <= value <= most, f"a whole number, {least} to {most}")
    return int(data[name])


def ascending(data: Fields, name: str, least: int, wanted: str, most: float = math.inf) -> tuple[int, ...]:
    """A field that must be a list of ascending whole numbers from `least` to `most`."""
    value = data.get(name)
    fits = isinstance(value, list) and len(value) > 0 and all(type(one) is int and least <= one <= most for one in value)
    require(data, name, fits and sorted(set(data[name])) == value, wanted)
    return tuple(data[name])


def part(data: Fields, name: str, default: Fields) -> Fields:
    """A field that is an object itself; `default` where it is absent."""
    value = data.get(name, default)
    require(data, name, isinstance(value, dict), "an object")
    return dict(value)


def assumed(data: Fields, defaults: Iterable[str]) -> list[str]:
    """The fields among `defaults` that a config leaves to transformers' defaults."""
    return [name for name in defaults if name not in data]


def pretty(data: Fields) -> str:
    """JSON as config files have it."""
    return json.dumps(data, indent=2) + "\n"


def clip_json(config: ClipConfig) -> Fields:
    """A tower's sizes in transformers' words."""
    return {**asdict(config), "projection_dim": config.hidden_size}


def llama_json(config: LlamaConfig) -> Fields:
    """A decoder's sizes in transformers' words."""
    return {**asdict(config), "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def clip_config(data: Fields) -> ClipConfig:
    """A tower's sizes from a CLIPVisionConfig; BadField names what cannot be."""
    data = {**CLIP_DEFAULTS, **data}
    sizes = {name: whole(data, name) for name, value in CLIP_DEFAULTS.items() if type(value) is int}
    heads, patch = sizes["num_attention_heads"], sizes["patch_size"]
    require(data, "num_attention_heads", sizes["hidden_size"] % heads == 0, f"a divisor of {sizes['hidden_size']}")
    require(data, "patch_size", sizes["image_size"] % patch == 0, f"a divisor of {sizes['image_size']}")
    require(data, "layer_norm_eps", _is_positive(data["layer_norm_eps"]), "a positive finite number")
    require(data, "hidden_act", data["hidden_act"] in ("gelu", "quick_gelu"), "gelu or quick_gelu")
    require(data, "num_channels", data.get("num_channels", 3) == 3, "3")
    return ClipConfig(**sizes, layer_norm_eps=data["layer_norm_eps"], hidden_act=data["hidden_act"])


_LARGEST_HEAD = 4096
_LARGEST_TABLE = 1 << 28
"""Numbers that are made of a config alone: 1 GiB. A million positions of heads of 128 are half of that."""


def llama_config(data: Fields) -> LlamaConfig:
    """A decoder's sizes from a LlamaConfig; BadField names what cannot be, or what our decoder does not do."""
    data = {**LLAMA_DEFAULTS, **data}
    sizes = {name: whole(data, name) for name, value in LLAMA_DEFAULTS.items() if type(value) is int}
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    if data.get("num_key_value_heads") is None:
        data["num_key_value_heads"] = heads
    groups = whole(data, "num_key_value_heads")
    require(data, "num_attention_heads", width % (2 * heads) == 0, f"heads of even size: 2 x it divides {width}")
    require(data, "num_key_value_heads", heads % groups == 0, f"a divisor of {heads}")
    # Tables of positions are made before any weight is compared with its shape.
    require(data, "hidden_size", width // heads <= _LARGEST_HEAD, f"heads of at most {_LARGEST_HEAD} numbers")
    most = _LARGEST_TABLE // (width // heads)
    require(data, "max_position_embeddings", sizes["max_position_embeddings"] <= most, f"at most {most} for heads of this size")
    require(data, "head_dim", data.get("head_dim") in (None, width // heads), f"{width // heads}")
    require(data, "rms_norm_eps", _is_positive(data["rms_norm_eps"]), "a positive finite number")
    require(data, "tie_word_embeddings", isinstance(data["tie_word_embeddings"], bool), "true or false")
    only = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "partial_rotary_factor": 1.0}
    require_only(data, only, "our decoder does nothing else")
    return LlamaConfig(
        **sizes,
        num_key_value_heads=groups,
        rms_norm_eps=data["rms_norm_eps"],
        rope_theta=_rope_theta(data),
        tie_word_embeddings=data["tie_word_embeddings"],
    )


def _rope_theta(data: Fields) -> float:
    """The base of the rotary embedding: `rope_theta`, or `rope_parameters` (transformers 5); scaled variants are refused."""
    theta = data.get("rope_theta")
    for name in ("rope_parameters", "rope_scaling"):
        block = data.get(name)
        if block is None:
            continue
        plain = isinstance(block, dict) and block.get("rope_type", block.get("type", "default")) == "default"
        require(data, name, plain, "null or rope_type 'default': our decoder scales no positions")
        theta = block.get("rope_theta", theta) if theta is None else theta
    theta = 10000.0 if theta is None else theta
    require({"rope_theta": theta}, "rope_theta", _is_positive(theta), "a positive finite number")
    return float(theta)


def _is_positive(value: object) -> bool:
    """Whether it is a number that a float holds, above zero."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
