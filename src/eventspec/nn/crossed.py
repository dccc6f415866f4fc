"""The drafting pass of DREAM's head (2505.19201): a decoder layer over embeddings, a gated cross-attention to features, another
decoder layer; as TorchScript, like `nn.draft`, which calls it level by level."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.decode import apply_rope, attention, block, last_row, product

READ = (1, 2, 4, 5, 8, 10, 11, 22, 23, 24)
"""Which of the weights reading a prompt multiplies by; only they are worth another layout."""


def crossed(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: bool,
    weights: list[Tensor],
    packed: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, features [T, D] of this one) through the first layer and the crossing, behind
    `start` cached ones: [T, D].

    mask float [T, start + T] is added; None: every row sees all of them, or what lies before it (causal, start 0). stored:
    keys and values of the three blocks in turn, rows [start, start + T) are written. weights: six tensors of each block as
    in `nn.decode`, query norm, key norm, gates [2] (after tanh), the final norm, then the crossing's rows for queries, those
    for keys and values, and the last layer's for keys and values; packed: the same in oneDNN's layout, or [].
    """
    rows, end, width = embeds.size(0), start + embeds.size(0), embeds.size(1)
    normed = torch.rms_norm(embeds, [width], weights[0], eps)
    x = block(normed, embeds, cos, sin, stored[0], stored[1], start, mask, causal, weights, packed, 0, heads, eps)
    kv_heads, head_dim = stored[2].size(0), stored[2].size(2)
    queries = product(torch.rms_norm(x, [width], weights[6], eps), weights, packed, 22).view(rows, heads, head_dim)
    both = product(features, weights, packed, 23).view(rows, 2 * kv_heads, head_dim)
    queries = apply_rope(torch.rms_norm(queries, [head_dim], weights[18], eps), cos, sin)
    keys = apply_rope(torch.rms_norm(both[:, :kv_heads], [head_dim], weights[19], eps), cos, sin)
    stored[2][:, start:end] = keys.transpose(0, 1)
    stored[3][:, start:end] = both[:, kv_heads:].transpose(0, 1)
    seen = attention(queries.transpose(0, 1), stored[2][:, :end], stored[3][:, :end], mask, causal, len(packed) > 0)
    x = x + weights[20][0] * product(seen.transpose(0, 1).reshape(rows, heads * head_dim), weights, packed, 8)
    inner = product(torch.rms_norm(x, [width], weights[9], eps), weights, packed, 10)
    half = inner.size(1) // 2
    return x + weights[20][1] * product(F.silu(inner[:, :half]) * inner[:, half:], weights, packed, 11)


def crossed_pass(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    weights: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """All three blocks, as `crossed`, for the rows of a draft: the predicted features behind them, normed, [T, D]."""
    width, none = embeds.size(1), weights[:0]
    x = crossed(embeds, features, cos, sin, stored, start, mask, False, weights, none, heads, eps)
    normed = torch.rms_norm(x, [width], weights[12], eps)
    x = block(normed, x, cos, sin, stored[4], stored[5], start, mask, False, weights, none, 12, heads, eps)
    return torch.rms_norm(x, [width], weights[21], eps)


def crossed_read(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    weights: list[Tensor],
    packed: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """All three blocks over committed pairs, as `crossed`, but without a mask they are causal: the predicted feature behind the
    last one, [1, D]. Of the others the last layer only remembers keys and values."""
    rows, width = embeds.size(0), embeds.size(1)
    causal = mask is None and rows > 1
    x = crossed(embeds, features, cos, sin, stored, start, mask, causal, weights, packed, heads, eps)
    normed, remembering = torch.rms_norm(x, [width], weights[12], eps), packed[24:]
    last = last_row(normed, x[-1:], cos, sin, stored[4], stored[5], start, weights[12:18], remembering, heads, eps)
    return torch.rms_norm(last, [width], weights[21], eps)
