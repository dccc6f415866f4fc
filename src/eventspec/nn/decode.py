"""The decoder's inference pass as one TorchScript function: all layers in one call that does not hold Python's lock.

Two lanes of one process would otherwise take turns at the lock after every small operation. Measured on two Zen 5 cores, 13
rows through 8 layers of width 192: beside a drafting thread 5.3 ms step by step and 2.5 ms in one call; alone 2.9 and 2.1 ms.
The arithmetic is that of `Llama.forward`; norms, and the causal attention of long prompts, have another order of sums.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.nn.layer_weights import LayerWeights
from eventspec.nn.linear import filled, product


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


def split_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    causal: int,
    mask: Optional[Tensor],  # noqa: UP045
) -> Tensor:
    """Attention [B, H, T, D] of queries [B, H, T, D] to keys and values [B, K, S, D]: the first `causal` rows are causal, from
    the first key on; those behind them see what the mask [..., T - causal, S] allows (bool), or are biased by it (float)."""
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


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
) -> Tensor:
    """Attention [H, T, D] of queries [H, T, D] to keys and values [K, S, D]. The first `causal` rows are causal from the first
    key on; for those behind them a `mask` float [T - causal, S] is added. Several rows with neither are a chain behind cached
    ones, in half precision on a GPU: 16 of them take 1.0 ms in 32 layers of a 7B decoder on an H200, with a mask 2.8.

    On a CPU many causal rows go in blocks, each of which looks at the keys up to its own last row: torch's kernel computes most
    of the square above the diagonal. 544 rows, 4 heads of 48, 8 layers on a Zen 4 core: 18.6 ms, torch's own 24.2, products
    of oneDNN instead 23.2. The rows behind them share the last block."""
    rows, many, block = queries.size(1), keys.size(1), 128
    if mask is None and causal == 0 and rows > 1 and queries.is_cuda:  # by its name: see `runner.knows_chains`
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


def placed(
    found: Tensor,
    cos: Tensor,
    sin: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    start: int,
    heads: int,
) -> Tensor:
    """Of queries, keys and values side by side, `found` [T, (heads + 2 kv_heads) * head_dim], keys and values go behind `start`
    cached rows; the rotated queries, and the keys behind them, are returned: [T, heads + kv_heads, head_dim]."""
    rows, kv_heads, head_dim = found.size(0), past_keys.size(0), past_keys.size(2)
    end = start + rows
    rotated_and_values = found.view(rows, heads + 2 * kv_heads, head_dim)
    rotated = apply_rope(rotated_and_values[:, : heads + kv_heads], cos, sin)
    past_keys[:, start:end] = rotated[:, heads:].transpose(0, 1)
    past_values[:, start:end] = rotated_and_values[:, heads + kv_heads :].transpose(0, 1)
    return rotated


def attend(
    found: Tensor,
    rows: int,
    cos: Tensor,
    sin: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
    heads: int,
) -> Tensor:
    """Attention [P, heads * head_dim] of the first T = `rows` of P new rows behind `start` cached ones, from their queries,
    keys and values side by side, `found` [P, (heads + 2 kv_heads) * head_dim]; zeros for the others, which fill up a product.
    Writes rows [start, start + T) of past_keys and past_values."""
    end = start + rows
    queries = placed(found[:rows], cos, sin, past_keys, past_values, start, heads)[:, :heads].transpose(0, 1)
    attended = attention(queries, past_keys[:, :end], past_values[:, :end], mask, causal)
    attended = attended.transpose(0, 1).reshape(rows, heads * past_keys.size(2))
    return attended if rows == found.size(0) else F.pad(attended, [0, 0, 0, found.size(0) - rows])


def before_attention(
    x: Tensor,
    rows: int,
    cos: Tensor,
    sin: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    start: int,
    layer: LayerWeights,
    packed: bool,
    heads: int,
    eps: float,
) -> Tensor:
    """As `placed`, of the first T = `rows` of x [P, D]."""
    found = product(rms_norm(x, layer.input_norm, eps), layer.qkv, packed)
    return placed(found[:rows], cos, sin, past_keys, past_values, start, heads)


def queries_of(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layer: LayerWeights,
    query_weight: Optional[Tensor],  # noqa: UP045
    heads: int,
    eps: float,
) -> Tensor:
    """The rotated queries float [T, heads, head_dim] of rows x float [T, D], at cos and sin [T, 1, head_dim]. query_weight: the
    rows of layer.qkv for them, [heads * head_dim, D] in oneDNN's layout."""
    head_dim = cos.size(-1)
    weight = layer.qkv[: heads * head_dim] if query_weight is None else query_weight
    found = product(rms_norm(x, layer.input_norm, eps), weight, query_weight is not None)
    return apply_rope(found.view(x.size(0), heads, head_dim), cos, sin)


def finish(x: Tensor, attended: Tensor, layer: LayerWeights, packed: bool, eps: float) -> Tensor:
    """Output projection and feed-forward block behind the attention: [T, D]."""
    x = x + product(attended, layer.out, packed)
    inner = product(rms_norm(x, layer.post_norm, eps), layer.gate_up, packed)
    width = inner.size(1) // 2
    return x + product(F.silu(inner[:, :width]) * inner[:, width:], layer.down, packed)


def block(
    normed: Tensor,
    x: Tensor,
    rows: int,
    cos: Tensor,
    sin: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
    layer: LayerWeights,
    packed: bool,
    heads: int,
    eps: float,
) -> Tensor:
    """One decoder layer behind `start` cached rows: attention reads `normed` [P, I], its result joins x [P, D]; then the
    feed-forward block. Only the first T = `rows` of the P rows count, as in `attend`. Writes rows [start, start + T) of
    past_keys and past_values. `packed`: the layer's matrices are."""
    found = product(normed, layer.qkv, packed)
    attended = attend(found, rows, cos, sin, past_keys, past_values, start, mask, causal, heads)
    return finish(x, attended, layer, packed, eps)


def last_rows(
    normed: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    layer: LayerWeights,
    packed: bool,
    remembered: Optional[Tensor],  # noqa: UP045
    heads: int,
    eps: float,
) -> Tensor:
    """What the layer makes of the last W of T new rows [W, D]: of those before them, only keys and values are ever looked at.

    normed [T, I] is what the attention reads, x [W, D] the last rows' residual; mask float [W, start + T] is added (None: one
    row, or a chain, as in `attention`). `packed`: the layer's matrices are; remembered: its rows for keys and values, in
    oneDNN's layout. Writes rows [start, start + T) of keys and values."""
    wanted = x.size(0)
    before = normed.size(0) - wanted
    if before > 0:
        kv_heads, head_dim = keys.size(0), keys.size(2)
        weight = layer.qkv[heads * head_dim :] if remembered is None else remembered
        found = product(normed[:before], weight, remembered is not None).view(before, 2 * kv_heads, head_dim)
        keys[:, start : start + before] = apply_rope(found[:, :kv_heads], cos[:before], sin[:before]).transpose(0, 1)
        values[:, start : start + before] = found[:, kv_heads:].transpose(0, 1)
    if wanted == 0:
        return x
    own, rope = filled(normed[before:], packed), (cos[before:], sin[before:])
    stored, last = (keys, values), start + before
    made = block(own, filled(x, packed), wanted, *rope, *stored, last, mask, 0, layer, packed, heads, eps)
    return made[:wanted]


def seen_by_last(
    wanted: int,
    rows: int,
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
    like: Tensor,
) -> Optional[Tensor]:  # noqa: UP045
    """The mask [wanted, start + rows] of the last of so many new rows, from what `attention` has for all of them."""
    behind = 0 if mask is None else mask.size(0)
    if mask is not None and wanted <= behind:
        return mask[behind - wanted :]
    if wanted == 1 or causal == 0:
        return None
    many = start + rows
    found = like.new_full([wanted, many], -math.inf).triu_(many - wanted + 1)
    if mask is not None:
        found[wanted - behind :] = mask
    return found


def decode(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    start: int,
    mask: Optional[Tensor],  # noqa: UP045
    causal: int,
    layers: list[LayerWeights],
    packed: bool,
    heads: int,
    eps: float,
    taps: list[int],
    wanted: int,
    remembered: Optional[Tensor],  # noqa: UP045
) -> tuple[Tensor, list[Tensor]]:
    """x float [T, D] through all layers behind `start` cached rows; writes rows [start, start + T) of keys and values.

    cos, sin float [T, 1, head_dim]; mask and causal as in `attention`. Returns the last layer's output for the last `wanted`
    rows, and the outputs of the layers `taps` (0 = x) for all of them. Of the other rows the last layer keeps keys and values
    only (`remembered`, as in `last_rows`): 544 rows of which one is wanted take 53 ms instead of 59 (8 layers, Zen 4).
    """
    rows = x.size(0)
    tapped: list[Tensor] = []
    if 0 in taps:
        tapped.append(x)
    x = filled(x, packed)
    for number, layer in enumerate(layers):
        normed = rms_norm(x, layer.input_norm, eps)
        stored, last = (keys[number], values[number]), number + 1 == len(layers)
        if last and wanted < rows:
            seen = seen_by_last(wanted, rows, start, mask, causal, x)
            own = x[rows - wanted : rows]
            x = last_rows(normed[:rows], own, cos, sin, *stored, start, seen, layer, packed, remembered, heads, eps)
            return x, tapped
        x = block(normed, x, rows, cos, sin, *stored, start, mask, causal, layer, packed, heads, eps)
        if number + 1 in taps:
            tapped.append(x[:rows])
    return x[:rows], tapped


def decode_together(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    counts: list[int],
    keys: list[list[Tensor]],
    values: list[list[Tensor]],
    starts: list[int],
    masks: list[Optional[Tensor]],  # noqa: UP045
    causal: list[int],
    layers: list[LayerWeights],
    packed: bool,
    heads: int,
    eps: float,
    taps: list[int],
) -> tuple[Tensor, list[Tensor]]:
    """As `decode`, of several sequences whose new rows, counts[b] each, stand behind each other in x [sum of counts, D]: one
    product for all of them, attention for each in its own cache. No sequence is padded."""
    rows = x.size(0)
    tapped: list[Tensor] = []
    if 0 in taps:
        tapped.append(x)
    x = filled(x, packed)
    for number, layer in enumerate(layers):
        normed = rms_norm(x, layer.input_norm, eps)
        found = product(normed, layer.qkv, packed)
        attended: list[Tensor] = []
        begin = 0
        for one in range(len(counts)):
            end = begin + counts[one]
            seen = attend(
                found[begin:end],
                counts[one],
                cos[begin:end],
                sin[begin:end],
                keys[one][number],
                values[one][number],
                starts[one],
                masks[one],
                causal[one],
                heads,
            )
            attended.append(seen)
            begin = end
        x = finish(x, filled(torch.cat(attended), packed), layer, packed, eps)
        if number + 1 in taps:
            tapped.append(x[:rows])
    return x[:rows], tapped


def compiled(function: Any) -> Any:
    """A function as TorchScript where this torch still compiles it, else the function itself (slower beside another lane)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is frozen upstream; it is used for what nothing else gives: no Python lock
        try:
            return torch.jit.script(function)
        except (RuntimeError, AttributeError, NotImplementedError):
            return function
