"""The drafting pass of DREAM's head (2505.19201): a decoder layer over embeddings, a gated cross-attention to features, another
decoder layer; as TorchScript, like `nn.draft`, which calls it level by level."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.decode import block, turned


def crossed_pass(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: bool,
    weights: list[Tensor],
    heads: int,
    eps: float,
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, features [T, D] of this one) through the three blocks, behind `start` cached
    ones: the predicted features behind them, normed, [T, D].

    mask float [T, start + T] is added; None: every row sees all of them, or what lies before it (causal, start 0). stored: keys
    and values of the three blocks in turn, rows [start, start + T) are written. weights: six tensors of each block as in
    `nn.decode`, then query norm, key norm, gates [2] (after tanh) and the final norm.
    """
    rows, end, width = embeds.size(0), start + embeds.size(0), embeds.size(1)
    none = weights[:0]
    normed = torch.rms_norm(embeds, [width], weights[0], eps)
    x = block(normed, embeds, cos, sin, stored[0], stored[1], start, mask, causal, weights, none, 0, heads, eps)
    kv_heads, head_dim = stored[2].size(0), stored[2].size(2)
    asking, telling = weights[7][: heads * head_dim], weights[7][heads * head_dim :]
    queries = F.linear(torch.rms_norm(x, [width], weights[6], eps), asking).view(rows, heads, head_dim)
    both = F.linear(features, telling).view(rows, 2 * kv_heads, head_dim)
    queries = turned(torch.rms_norm(queries, [head_dim], weights[18], eps), cos, sin)
    keys = turned(torch.rms_norm(both[:, :kv_heads], [head_dim], weights[19], eps), cos, sin)
    stored[2][:, start:end] = keys.transpose(0, 1)
    stored[3][:, start:end] = both[:, kv_heads:].transpose(0, 1)
    attended = torch._C._nn.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        stored[2][:, :end].unsqueeze(0),
        stored[3][:, :end].unsqueeze(0),
        mask,
        0.0,
        causal,
        enable_gqa=kv_heads != heads,
    )[0]
    x = x + weights[20][0] * F.linear(attended.transpose(0, 1).reshape(rows, heads * head_dim), weights[8])
    inner = F.linear(torch.rms_norm(x, [width], weights[9], eps), weights[10])
    half = inner.size(1) // 2
    x = x + weights[20][1] * F.linear(F.silu(inner[:, :half]) * inner[:, half:], weights[11])
    normed = torch.rms_norm(x, [width], weights[12], eps)
    x = block(normed, x, cos, sin, stored[4], stored[5], start, mask, causal, weights, none, 12, heads, eps)
    return torch.rms_norm(x, [width], weights[21], eps)
