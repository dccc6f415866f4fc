"""The decoder's inference pass as one TorchScript function: all layers in one call that does not hold Python's lock.

Two lanes of one process would otherwise take turns at the lock after every small operation. Measured on two Zen 5 cores, 13
rows through 8 layers of width 192: beside a drafting thread 5.3 ms step by step and 2.5 ms in one call; alone 2.9 and 2.1 ms.
The arithmetic is that of `Llama.forward`; norms, and the causal attention of long prompts, have another order of sums.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.cpu.products import filled, product
from eventspec.nn.weights import LayerWeights, Place, Sizes


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of x [..., D] over its last dimension, of fp32 on a CPU as a length: a step over 1, 16 and 24 rows of 8 layers
    takes 0.975, 0.963 and 0.966 of the time that it takes with torch's own (medians of 72 in turns, one process, Zen 4)."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return torch.rms_norm(x, [x.size(-1)], weight, eps)
    length = torch.linalg.vector_norm(x, 2, [-1], True)
    return x * torch.rsqrt(length * length * (1.0 / x.size(-1)) + eps) * weight


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., T, heads, head_dim] rotated to its positions: cos, signed sin [..., T or 1, 1, head_dim]."""
    return torch.addcmul(x * cos, torch.roll(x, x.size(-1) // 2, -1), sin)


def split_attention(queries: Tensor, keys: Tensor, values: Tensor, causal: int, mask: Tensor | None) -> Tensor:
    """Attention [B, H, T, D] of queries [B, H, T, D] to keys and values [B, K, S, D]: the first `causal` rows are causal, from
    the first key on; those after them see what the mask [..., T - causal, S] allows (bool), or are biased by it (float)."""
    grouped = keys.size(1) != queries.size(1)
    if causal == 0:  # every step of plain decoding: its six layers save 1 % of it here
        return torch._C._nn.scaled_dot_product_attention(queries, keys, values, mask, 0.0, False, enable_gqa=grouped)
    # Two calls: the causal one skips half of the square, which one masked call over all rows could not.
    own = (queries[:, :, :causal], keys[:, :, :causal], values[:, :, :causal])
    first = torch._C._nn.scaled_dot_product_attention(own[0], own[1], own[2], None, 0.0, True, enable_gqa=grouped)
    if causal == queries.size(2):
        return first
    behind = queries[:, :, causal:]
    masked = torch._C._nn.scaled_dot_product_attention(behind, keys, values, mask, 0.0, False, enable_gqa=grouped)
    return torch.cat((first, masked), 2)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: int) -> Tensor:
    """Attention [H, T, D] of queries [H, T, D] to keys and values [K, S, D]. The first `causal` rows are causal from the first
    key on; for those after them a `mask` float [T - causal, S] is added. Several rows with neither are a chain after cached
    ones, in half precision on a GPU: 16 of them take 1.0 ms in 32 layers of a 7B decoder on an H200, with a mask 2.8.

    On a CPU many causal rows go in blocks, each of which looks at the keys up to its own last row: torch's kernel computes most
    of the square above the diagonal. 544 rows, 4 heads of 48, 8 layers on a Zen 4 core: 18.6 ms, torch's own 24.2, products
    of oneDNN instead 23.2. The rows after them share the last block."""
    rows, many, block = queries.size(1), keys.size(1), 128
    if mask is None and causal == 0 and rows > 1 and queries.is_cuda:  # by its name: see `cuda.decoder.knows_chains`
        own = (queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0))
        chain: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(own[0], own[1], own[2], 0.0, True)[0]
        return chain[0]
    if causal <= block or queries.device.type != "cpu":
        return split_attention(queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), causal, mask)[0]
    grouped = keys.size(0) != queries.size(0)
    made = queries.new_empty([rows, queries.size(0), queries.size(2)])
    edge = (causal - 1) // block * block  # where the last block begins
    triangle = queries.new_zeros([block, edge])  # of the last block before that; those before it lack its first columns
    triangle[:, edge - block :].fill_(-math.inf).triu_(1)
    for begin in range(0, edge + 1, block):
        end, seen = (begin + block, begin + block) if begin < edge else (rows, many)
        if begin < edge:
            later = triangle[:, edge - end :]
        else:
            later = queries.new_full([rows - edge, many], -math.inf).triu_(edge + 1)
            if mask is not None:
                later[causal - edge :] = mask
        own = (queries[:, begin:end].unsqueeze(0), keys[:, :seen].unsqueeze(0), values[:, :seen].unsqueeze(0))
        found = torch._C._nn.scaled_dot_product_attention(own[0], own[1], own[2], later, 0.0, False, enable_gqa=grouped)
        made[begin:end] = found[0].transpose(0, 1)
    return made.transpose(0, 1)


def attend(found: Tensor, rows: int, place: Place, layer: int, heads: int) -> Tensor:
    """Attention [P, heads * head_dim] of the first T = `rows` of P new rows, from their queries, keys and values side by side,
    `found` [P, (heads + 2 kv_heads) * head_dim]; zeros for the others, which fill up a product. Writes their place in the
    layer's cache."""
    keys, values = place.keys[layer], place.values[layer]
    kv_heads, head_dim, end = keys.size(0), keys.size(2), place.start + rows
    rotated_and_values = found[:rows].view(rows, heads + 2 * kv_heads, head_dim)
    rotated = apply_rope(rotated_and_values[:, : heads + kv_heads], place.cos, place.sin)
    keys[:, place.start : end] = rotated[:, heads:].transpose(0, 1)
    values[:, place.start : end] = rotated_and_values[:, heads + kv_heads :].transpose(0, 1)
    queries = rotated[:, :heads].transpose(0, 1)
    attended = attention(queries, keys[:, :end], values[:, :end], place.mask, place.causal)
    attended = attended.transpose(0, 1).reshape(rows, heads * head_dim)
    return attended if rows == found.size(0) else F.pad(attended, [0, 0, 0, found.size(0) - rows])


def queries_of(x: Tensor, cos: Tensor, sin: Tensor, layer: LayerWeights, query_weight: Tensor | None, sizes: Sizes) -> Tensor:
    """The rotated queries float [T, heads, head_dim] of rows x float [T, D], at cos and sin [T, 1, head_dim]. query_weight: the
    rows of layer.qkv for them, [heads * head_dim, D] in oneDNN's layout."""
    head_dim = cos.size(-1)
    weight = layer.qkv[: sizes.heads * head_dim] if query_weight is None else query_weight
    found = product(rms_norm(x, layer.input_norm, sizes.eps), weight, query_weight is not None)
    return apply_rope(found.view(x.size(0), sizes.heads, head_dim), cos, sin)


def finish(x: Tensor, attended: Tensor, layer: LayerWeights, sizes: Sizes) -> Tensor:
    """Output projection and feed-forward block after the attention: [T, D]."""
    x = x + product(attended, layer.out, sizes.packed)
    inner = product(rms_norm(x, layer.post_norm, sizes.eps), layer.gate_up, sizes.packed)
    width = inner.size(1) // 2
    return x + product(F.silu(inner[:, :width]) * inner[:, width:], layer.down, sizes.packed)


def block(normed: Tensor, x: Tensor, rows: int, place: Place, number: int, layer: LayerWeights, sizes: Sizes) -> Tensor:
    """One decoder layer, the one with this number in the cache: attention reads `normed` [P, I], its result joins x [P, D];
    then the feed-forward block. Only the first T = `rows` of the P rows count, as in `attend`."""
    found = product(normed, layer.qkv, sizes.packed)
    return finish(x, attend(found, rows, place, number, sizes.heads), layer, sizes)


def last_rows(
    normed: Tensor, x: Tensor, place: Place, number: int, layer: LayerWeights, sizes: Sizes, remembered: Tensor | None
) -> Tensor:
    """What the layer makes of the last W of T new rows [W, D]: of those before them, only keys and values are ever looked at.

    normed [T, I] is what the attention reads, x [W, D] the last rows' residual; place.mask float [W, start + T] is added (None:
    one row, or a chain, as in `attention`). remembered: the layer's rows for keys and values, in oneDNN's layout.
    """
    wanted = x.size(0)
    before = normed.size(0) - wanted
    start, last = place.start, place.start + before
    if before > 0:
        keys, values = place.keys[number], place.values[number]
        kv_heads, head_dim = keys.size(0), keys.size(2)
        weight = layer.qkv[sizes.heads * head_dim :] if remembered is None else remembered
        found = product(normed[:before], weight, remembered is not None).view(before, 2 * kv_heads, head_dim)
        rotated = apply_rope(found[:, :kv_heads], place.cos[:before], place.sin[:before])
        keys[:, start:last] = rotated.transpose(0, 1)
        values[:, start:last] = found[:, kv_heads:].transpose(0, 1)
    if wanted == 0:
        return x
    own = Place(place.cos[before:], place.sin[before:], place.keys, place.values, last, place.mask, 0)
    packed = sizes.packed
    return block(filled(normed[before:], packed), filled(x, packed), wanted, own, number, layer, sizes)[:wanted]


def seen_by_last(wanted: int, rows: int, place: Place, like: Tensor) -> Tensor | None:
    """The mask [wanted, start + rows] of the last of so many new rows, from what `attention` has for all of them."""
    mask = place.mask
    after = 0 if mask is None else mask.size(0)
    if mask is not None and wanted <= after:
        return mask[after - wanted :]
    if wanted == 1 or place.causal == 0:
        return None
    many = place.start + rows
    found = like.new_full([wanted, many], -math.inf).triu_(many - wanted + 1)
    if mask is not None:
        found[wanted - after :] = mask
    return found


def decode(
    x: Tensor, place: Place, layers: list[LayerWeights], sizes: Sizes, taps: list[int], wanted: int, remembered: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """x float [T, D] through all layers, whose keys and values go to their place.

    Returns the last layer's output for the last `wanted` rows, and the outputs of the layers `taps` (0 = x) for all of them. Of
    the other rows the last layer keeps keys and values only (`remembered`, as in `last_rows`): 544 rows of which one is wanted
    take 53 ms instead of 59 (8 layers, Zen 4).
    """
    rows = x.size(0)
    tapped: list[Tensor] = []
    if 0 in taps:
        tapped.append(x)
    x = filled(x, sizes.packed)
    for number, layer in enumerate(layers):
        normed = rms_norm(x, layer.input_norm, sizes.eps)
        if number + 1 == len(layers) and wanted < rows:
            seen = seen_by_last(wanted, rows, place, x)
            last = Place(place.cos, place.sin, place.keys, place.values, place.start, seen, 0)
            return last_rows(normed[:rows], x[rows - wanted : rows], last, number, layer, sizes, remembered), tapped
        x = block(normed, x, rows, place, number, layer, sizes)
        if number + 1 in taps:
            tapped.append(x[:rows])
    return x[:rows], tapped


def decode_together(
    x: Tensor, counts: list[int], places: list[Place], layers: list[LayerWeights], sizes: Sizes, taps: list[int]
) -> tuple[Tensor, list[Tensor]]:
    """As `decode`, of several sequences whose new rows, counts[b] each, follow one another in x [sum of counts, D]: one product
    for all of them, attention for each in its own cache. No sequence is padded."""
    rows = x.size(0)
    tapped: list[Tensor] = []
    if 0 in taps:
        tapped.append(x)
    x = filled(x, sizes.packed)
    for number, layer in enumerate(layers):
        found = product(rms_norm(x, layer.input_norm, sizes.eps), layer.qkv, sizes.packed)
        attended: list[Tensor] = []
        begin = 0
        for one in range(len(counts)):
            end = begin + counts[one]
            attended.append(attend(found[begin:end], counts[one], places[one], number, sizes.heads))
            begin = end
        x = finish(x, filled(torch.cat(attended), sizes.packed), layer, sizes)
        if number + 1 in taps:
            tapped.append(x[:rows])
    return x[:rows], tapped


@functools.cache
def compiled(function: Any) -> Any:
    """A function as TorchScript where this torch still compiles it, else the function itself (slower beside another lane)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is frozen upstream; it is used for what nothing else gives: no Python lock
        try:
            return torch.jit.script(function)
        except (RuntimeError, AttributeError, NotImplementedError):
            return function
