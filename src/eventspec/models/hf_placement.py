"""Where transformers puts the weights of a target: on one device, in fewer bits, or spread over all CUDA devices."""

from __future__ import annotations

import importlib.util
import math
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


def placement(folder: Path, how: LoadOptions, stored: Mapping[str, Stored]) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a folder's `stored` weights; nothing for what is loaded as it is, and moved. BadInput
    where bitsandbytes cannot run, and for weights that do not fit all devices together: none go to the host or to disk, from
    where every step would fetch them."""
    made = _quantization(how)
    if how.device != SPREAD:
        return made and {**made, "device_map": {"": how.device}}
    if importlib.util.find_spec("accelerate") is None:
        raise BadInput(f"device {SPREAD} needs accelerate: pip install 'eventspec[hf]', or name one device")
    if not torch.cuda.is_available():
        return {"device_map": {"": how.first}}
    room = {number: int(FREE * torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())}
    bits = BITS.get(how.quantized or "", 8 * (how.dtype or torch.bfloat16).itemsize)
    needed = sum(math.prod(one.shape) for one in stored.values()) * bits // 8
    if needed > sum(room.values()):
        gib = f"{needed / 2**30:.1f} GiB of weights, {sum(room.values()) / 2**30:.1f} GiB of room"
        raise BadInput(f"{folder} does not fit all CUDA devices together ({gib}): choose --dtype int8 or nf4")
    return {**made, "device_map": SPREAD, "max_memory": room}


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
