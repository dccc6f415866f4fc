"""The drafting pass of DREAM's head (2505.19201): a decoder layer over embeddings, a gated cross-attention to features, another
decoder layer; as TorchScript, like `nn.draft`, which calls it level by level."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cpu.products import product
from eventspec.nn.decode import apply_rope, attention, block, last_rows, rms_norm
from eventspec.nn.weights import CrossWeights, LayerWeights, Place, Sizes


def crossed(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """Pairs (embeds [T, D] of the next token, features [T, D] of this one) through the first layer and the crossing: [T, D].

    place: keys and values of the three blocks are written. layers: first, crossing, last.
    """
    rows, start, heads, eps, packed = embeds.size(0), place.start, sizes.heads, sizes.eps, sizes.packed
    end = start + rows
    first, layer = layers[0], layers[1]
    x = block(rms_norm(embeds, first.input_norm, eps), embeds, rows, place, 0, first, sizes)
    keys, values = place.keys[1], place.values[1]
    kv_heads, head_dim = keys.size(0), keys.size(2)
    asked = product(rms_norm(x, layer.input_norm, eps), cross.queries, packed).view(rows, heads, head_dim)
    both = product(features, cross.features, packed).view(rows, 2 * kv_heads, head_dim)
    queries = apply_rope(rms_norm(asked, cross.query_norm, eps), place.cos, place.sin)
    rotated = apply_rope(rms_norm(both[:, :kv_heads], cross.key_norm, eps), place.cos, place.sin)
    keys[:, start:end] = rotated.transpose(0, 1)
    values[:, start:end] = both[:, kv_heads:].transpose(0, 1)
    seen = attention(queries.transpose(0, 1), keys[:, :end], values[:, :end], place.mask, place.causal)
    x = x + cross.gates[0] * product(seen.transpose(0, 1).reshape(rows, heads * head_dim), layer.out, packed)
    inner = product(rms_norm(x, layer.post_norm, eps), layer.gate_up, packed)
    half = inner.size(1) // 2
    return x + cross.gates[1] * product(F.silu(inner[:, :half]) * inner[:, half:], layer.down, packed)


def crossed_pass(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """All three blocks, as `crossed`, for the rows of a draft: the predicted features after them, normed, [T, D]."""
    last = layers[2]
    x = crossed(embeds, features, place, layers, cross, sizes)
    x = block(rms_norm(x, last.input_norm, sizes.eps), x, x.size(0), place, 2, last, sizes)
    return rms_norm(x, cross.final_norm, sizes.eps)


def crossed_read(
    embeds: Tensor, features: Tensor, place: Place, layers: list[LayerWeights], cross: CrossWeights, sizes: Sizes
) -> Tensor:
    """All three blocks over committed pairs, as `crossed`: the predicted feature after the last one, [1, D]. Of the others the
    last layer only remembers keys and values. Where `packed`, the last layer's matrices are not, but for
    `CrossWeights.remembered`."""
    x = crossed(embeds, features, place, layers, cross, sizes)
    normed = rms_norm(x, layers[2].input_norm, sizes.eps)
    remembered = cross.remembered if sizes.packed else None
    own = Place(place.cos, place.sin, place.keys, place.values, place.start, None, 0)
    last = last_rows(normed, x[-1:], own, 2, layers[2], Sizes(sizes.heads, sizes.eps, False), remembered)
    return rms_norm(last, cross.final_norm, sizes.eps)
