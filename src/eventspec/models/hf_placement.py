"""Where transformers puts the weights of a target: on one device, in fewer bits, or spread over all CUDA devices."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.machine import SPREAD
from eventspec.models.checkpoint import Stored
from eventspec.models.loading import LoadOptions

FREE = 0.85
"""Share of a device's free memory that the weights of a spread model may fill: caches and what a step needs take some."""
BITS = {"nf4": 4, "int8": 8}
_TABLE = re.compile(r"embed|lm_head|norm|bias")
"""Weights that bitsandbytes leaves in 16 bits."""


def placement(folder: Path, how: LoadOptions, stored: Mapping[str, Stored]) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a folder's `stored` weights; nothing for what is loaded as it is, and moved. BadInput
    where bitsandbytes cannot run, and for weights that all devices together have no room for."""
    made = _quantization(how)
    if how.device != SPREAD:
        return made and {**made, "device_map": {"": how.device}}
    if importlib.util.find_spec("accelerate") is None:
        raise BadInput(f"device {SPREAD} needs accelerate: pip install 'eventspec[hf]', or name one device")
    room = {number: int(FREE * torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())}
    needed = sum(math.prod(one.shape) * _bits(name, one, how) // 8 for name, one in stored.items())
    if needed > sum(room.values()):
        raise _too_large(folder, how, f"{needed / 2**30:.1f} GiB of weights, {sum(room.values()) / 2**30:.1f} GiB of room")
    return {**made, "device_map": SPREAD, "max_memory": room}


def check_spread(folder: Path, model: Any, how: LoadOptions) -> None:
    """BadInput for a model of which accelerate put a part on the host or on disk: it places whole blocks, and may have room for
    all of them together and for none of the last. Every step would fetch that part from there."""
    outside = {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}
    if how.device == SPREAD and outside:
        raise _too_large(folder, how, "its blocks cannot be shared out among them")


def _too_large(folder: Path, how: LoadOptions, why: str) -> BadInput:
    mend = {"nf4": "", "int8": ", or choose --dtype nf4"}.get(how.quantized or "", ", or choose --dtype int8 or nf4")
    mend = ", or choose --dtype bfloat16, int8 or nf4" if how.dtype == torch.float32 else mend
    return BadInput(f"{folder} does not fit all CUDA devices together ({why}): free some of their memory{mend}")


def _bits(name: str, stored: Stored, how: LoadOptions) -> int:
    """Of one number of a tensor, as it is loaded."""
    if how.quantized is not None:
        return 16 if _TABLE.search(name) else BITS[how.quantized]
    return 8 * (how.dtype or stored.dtype or torch.float32).itemsize


def _quantization(how: LoadOptions) -> dict[str, Any]:
    if how.quantized is None:
        return {}
    if not how.first.startswith("cuda") or not torch.cuda.is_available():
        raise BadInput(f"dtype {how.quantized} needs a CUDA device, here is {how.device}: choose float32, bfloat16 or float16")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise BadInput(f"dtype {how.quantized} needs bitsandbytes: pip install bitsandbytes, or choose bfloat16")
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    kinds = importlib.import_module("transformers")  # only where such a folder is opened
    return {"quantization_config": kinds.BitsAndBytesConfig(**(four if how.quantized == "nf4" else {"load_in_8bit": True}))}
