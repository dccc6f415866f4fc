"""The training pass of a feature-level head: all pairs at once with true features, then again on the head's own predictions, as
many steps as it will draft ahead (EAGLE-3's training-time test, 2503.01840, section 3.2).

Rows [0, P) are the recording's prefix, the R rows behind are packed branches (see `TargetBatch`). A step s > 0 runs on
branch rows only: row j reads the prediction that step s - 1 made at row j - 1. It sees the true keys of rows up to j - s and
the predicted keys of the s - 1 rows between, which is what a drafter s levels below its root sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from eventspec.drafters.heads.batch import View
from eventspec.drafters.heads.feature import FeatureHead
from eventspec.nn.llama import Layer, packed_attention


class Unrolled(FeatureHead, Protocol):
    """A head of one decoder layer, as its training sees it."""

    layer: Layer


def steps(head: Unrolled, view: View, rope: tuple[Tensor, Tensor], count: int) -> Iterator[Tensor]:
    """Outputs of every step on the branch rows of a view, float [B, R, D]; `count` of them. rope: cos and sin of the view's
    positions, [B, P + R, 1, d]. A prediction is fused with the view's global feature before it is read."""
    layer, prefix, mask, (cos, sin), whole = head.layer, view.prefix, view.mask, rope, view.global_feature
    normed, residual = head.fuse_inputs(view.embeds, head.features(view.tapped), view.embedding_only)
    queries, keys, values = (part.transpose(1, 2) for part in layer.project(normed, cos, sin))
    attended = packed_attention(queries, keys, values, queries.shape[2] - mask.shape[2], mask)
    mask = mask[:, :, -(queries.shape[2] - prefix) :]
    out = layer.finish(residual, attended.transpose(1, 2).flatten(-2))[:, prefix:]
    yield out
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(1, count):
        predicted = shifted(out, 1)
        fused = predicted if whole is None else head.view.fuse_global(predicted, whole[:, None])
        normed, residual = head.fuse_inputs(view.embeds[:, prefix:], fused)
        queries, new_keys, new_values = (
            part.transpose(1, 2) for part in layer.project(normed, cos[:, prefix:], sin[:, prefix:])
        )
        own.append((new_keys, new_values))
        attended = ahead(queries, (keys, values), without(mask, prefix, step), own)
        out = layer.finish(residual, attended.transpose(1, 2).flatten(-2))
        yield out


def without(mask: Tensor, prefix: int, step: int) -> Tensor:
    """The mask [B, 1, R, P + R] of branch rows, with true rows seen up to j - step only."""
    behind = torch.arange(mask.shape[2], device=mask.device)
    recent = behind[None, :] > behind[:, None] - step
    return torch.cat((mask[..., :prefix], mask[..., prefix:].masked_fill(recent, -torch.inf)), -1)


def shifted(x: Tensor, by: int) -> Tensor:
    """Row j takes row j - by, along axis 1; the first rows take themselves (they are masked from every loss)."""
    return torch.cat((x[:, :by], x[:, : x.shape[1] - by]), 1)


def ahead(queries: Tensor, true: tuple[Tensor, Tensor], mask: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[B, H, R, d]: true keys under the mask, and of step i's keys the one row that lies len(own) - i before."""
    keys, values = true
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        own = [(k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)) for k, v in own]
    scaled = queries * queries.shape[-1] ** -0.5
    steps = [
        (shifted(k.transpose(1, 2), len(own) - i).transpose(1, 2), shifted(v.transpose(1, 2), len(own) - i).transpose(1, 2))
        for i, (k, v) in enumerate(own, 1)
    ]
    scores = scaled @ keys.transpose(-1, -2) + mask.to(scaled.dtype)
    diagonals = [(scaled * key).sum(-1, keepdim=True) for key, _ in steps]
    shares = torch.cat((scores, *diagonals), -1).softmax(-1)
    total: Tensor = shares[..., : keys.shape[2]] @ values
    for place, (_, value) in enumerate(steps, keys.shape[2]):
        total = total + shares[..., place : place + 1] * value
    return total
