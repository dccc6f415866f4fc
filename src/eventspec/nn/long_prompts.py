"""Which attention a long prompt has: torch's own, or that of `attention.c`, whichever is faster on the machine at hand."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from eventspec.nn.decode import attention
from eventspec.nn.linear import WORTH, Once, least_seconds
from eventspec.nn.native import attend_many, library

MANY = 64
"""Rows from which it is worth leaving the one call of `nn.decode.decode`."""
LANES = 16
"""A row of a head has to be a multiple of so many numbers: of the longest vector there is."""


@Once
@torch.inference_mode()
def native_pays() -> bool:
    """Whether `attention.c` computes a prompt's attention rightly on this CPU, and sooner than torch on one thread. Some 20 ms,
    once a process."""
    if library() is None:
        return False
    drawn = torch.Generator().manual_seed(0)
    heads, rows, head_dim = 2, 384, 48
    asked = torch.randn(rows, heads, head_dim, generator=drawn)
    keys, values = torch.randn(2, heads, rows, head_dim, generator=drawn)
    native = partial(attend_many, asked, keys, values, 0, rows, None, heads, 0)
    wanted = attention(asked.transpose(0, 1), keys, values, None, rows)
    apart = (native() - wanted.transpose(0, 1).flatten(1)).abs().max()
    if not apart < 1e-4:
        return False
    took = least_seconds({"torch": partial(attention, asked.transpose(0, 1), keys, values, None, rows), "native": native}, 6)
    return took["native"] < WORTH * took["torch"]


def has_native_attention(rows: int, keys: Tensor) -> bool:
    """Whether so many new rows have their attention from `attention.c`, of a model with such keys [K, S, head_dim]: on several
    threads torch is faster."""
    suits = rows >= MANY and keys.shape[2] % LANES == 0 and keys.dtype == torch.float32
    return suits and keys.device.type == "cpu" and torch.get_num_threads() == 1 and native_pays()
