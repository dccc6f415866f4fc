"""Which visual rows a model attends to, and keeping those: ranking as in FastV (2403.06764), and the two stages of
video-SpecVLM (2508.16201)."""

from __future__ import annotations

import torch
from torch import Tensor

from eventspec.nn import Llama

RANKED_BEHIND = 1
"""Layers before the one whose attention ranks rows: it is the second, FastV's K. Its released code, too, takes the scores of
the layer before the first that runs on fewer rows; video-SpecVLM takes the mean over all layers: that would be a whole pass."""
SURE = 0.4
"""Of the attention, the share that the first stage keeps the rows of."""


def attention_of_last(language: Llama, layer: int, inputs: Tensor) -> Tensor:
    """How a prompt's last row attends to every row [T], the mean over the heads of the layer after `layer` others, whose
    inputs are given, float [T, D]."""
    block, last = language.decoder_layer(layer), len(inputs) - 1
    cos, sin = language.cos[: last + 1].to(inputs.dtype), language.sin[: last + 1].to(inputs.dtype)
    queries, keys, _ = block.project(block.normed(inputs), cos, sin)
    keys = keys.repeat_interleave(block.heads // block.kv_heads, 1)
    shares: Tensor = (torch.einsum("hd,thd->ht", queries[last], keys) * block.head_dim**-0.5).softmax(-1).mean(0)
    return shares


def two_stages(shares: Tensor, kept: float) -> Tensor:
    """Places int64, ascending, of the rows that stay of T, at least one: the most attended until they have SURE of all
    attention together, then evenly spaced ones of the rest. shares float [T]; kept is the share of rows."""
    total = len(shares)
    wanted = max(1, min(total, round(total * kept)))
    ranked, order = (shares / shares.sum().clamp_min(1e-9)).sort(descending=True, stable=True)
    sure = min(wanted, int((ranked.cumsum(0) < SURE).sum()) + 1)
    rest = order[sure:].sort().values
    spaced = rest[torch.linspace(0, max(0, len(rest) - 1), wanted - sure, device=rest.device).round().long()]
    places: Tensor = torch.cat((order[:sure], spaced)).sort().values
    return places
