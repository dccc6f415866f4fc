"""The drafting pass of DREAM's head (2505.19201): a decoder layer over embeddings, a gated cross-attention to features, another
decoder layer; as TorchScript, like `nn.draft`, which calls it level by level."""

from __future__ import annotations

from typing import Optional

import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.decode import apply_rope, attention, block, last_rows, rms_norm
from eventspec.nn.layer_weights import CrossWeights, LayerWeights
from eventspec.nn.linear import product


def crossed(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
    layers: list[LayerWeights],
    cross: CrossWeights,
    packed: bool,
    heads: int,
    eps: float,
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, features [T, D] of this one) through the first layer and the crossing, behind
    `start` cached ones: [T, D].

    mask and causal as in `attention`. stored: keys and values of the three blocks in turn, rows [start, start + T) are written.
    layers: first, crossing, last; `packed`: the matrices that are used here are.
    """
    rows, end = embeds.size(0), start + embeds.size(0)
    first, layer = layers[0], layers[1]
    normed = rms_norm(embeds, first.input_norm, eps)
    x = block(normed, embeds, rows, cos, sin, stored[0], stored[1], start, mask, causal, first, packed, heads, eps)
    kv_heads, head_dim = stored[2].size(0), stored[2].size(2)
    asked = product(rms_norm(x, layer.input_norm, eps), cross.queries, packed).view(rows, heads, head_dim)
    both = product(features, cross.features, packed).view(rows, 2 * kv_heads, head_dim)
    queries = apply_rope(rms_norm(asked, cross.query_norm, eps), cos, sin)
    keys = apply_rope(rms_norm(both[:, :kv_heads], cross.key_norm, eps), cos, sin)
    stored[2][:, start:end] = keys.transpose(0, 1)
    stored[3][:, start:end] = both[:, kv_heads:].transpose(0, 1)
    seen = attention(queries.transpose(0, 1), stored[2][:, :end], stored[3][:, :end], mask, causal)
    x = x + cross.gates[0] * product(seen.transpose(0, 1).reshape(rows, heads * head_dim), layer.out, packed)
    inner = product(rms_norm(x, layer.post_norm, eps), layer.gate_up, packed)
    half = inner.size(1) // 2
    return x + cross.gates[1] * product(F.silu(inner[:, :half]) * inner[:, half:], layer.down, packed)


def crossed_pass(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    layers: list[LayerWeights],
    cross: CrossWeights,
    heads: int,
    eps: float,
) -> Tensor:
    """All three blocks, as `crossed`, for the rows of a draft: the predicted features behind them, normed, [T, D]."""
    last = layers[2]
    x = crossed(embeds, features, cos, sin, stored, start, mask, 0, layers, cross, False, heads, eps)
    normed = rms_norm(x, last.input_norm, eps)
    x = block(normed, x, x.size(0), cos, sin, stored[4], stored[5], start, mask, 0, last, False, heads, eps)
    return rms_norm(x, cross.final_norm, eps)


def crossed_read(
    embeds: Tensor,
    features: Tensor,
    cos: Tensor,
    sin: Tensor,
    stored: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    layers: list[LayerWeights],
    cross: CrossWeights,
    packed: bool,
    heads: int,
    eps: float,
) -> Tensor:
    """All three blocks over committed pairs, as `crossed`, but without a mask they are causal: the predicted feature behind the
    last one, [1, D]. Of the others the last layer only remembers keys and values. Where `packed`, the last layer's matrices are
    not, but for `CrossWeights.remembered`."""
    rows = embeds.size(0)
    causal = rows if mask is None and rows > 1 else 0
    x = crossed(embeds, features, cos, sin, stored, start, mask, causal, layers, cross, packed, heads, eps)
    normed = rms_norm(x, layers[2].input_norm, eps)
    remembered = cross.remembered if packed else None
    where = (cos, sin, stored[4], stored[5], start)
    last = last_rows(normed, x[-1:], *where, None, layers[2], False, remembered, heads, eps)
    return rms_norm(last, cross.final_norm, eps)
