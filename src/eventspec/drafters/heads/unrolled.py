"""The training pass of a feature-level head: all pairs at once with true features, then again on the head's own predictions, as
many steps as it will draft ahead (EAGLE-3's training-time test, 2503.01840, section 3.2).

Rows [0, P) are the recording's prefix, the R rows after it are packed branches (see `TargetBatch`). A step s > 0 runs on
branch rows only: row j reads the prediction that step s - 1 made at row j - 1. It sees the true keys of rows up to j - s and
the predicted keys of the s - 1 rows between, which is what a drafter s levels below its root sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from eventspec.drafters.heads.feature import FeatureHead
from eventspec.drafters.heads.views import Rollout, TargetBatch, View
from eventspec.nn.llama import LanguageEnds, Layer, packed_attention


class OneLayerHead(FeatureHead, Protocol):
    """A head of one decoder layer."""

    layer: Layer


class UnrolledAttention:
    """One attention of a head, step after step on the branch rows of a view; it remembers the keys and values of every step."""

    def __init__(self, view: View) -> None:
        self.prefix, self.mask = view.prefix, view.mask
        self.true: tuple[Tensor, Tensor] | None = None
        self.own: list[tuple[Tensor, Tensor]] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, T, heads * d] of queries, keys and values [B, T, heads, d]: of all rows in the first step, of the branch rows in
        those after it."""
        queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
        if self.true is None:
            self.true, rows = (keys, values), queries.shape[2]
            attended = packed_attention(queries, keys, values, rows - self.mask.shape[2], self.mask)
            self.mask = self.mask[:, :, -(rows - self.prefix) :]
        else:
            self.own.append((keys, values))
            attended = attend_ahead(queries, self.true, without_recent(self.mask, self.prefix, len(self.own)), self.own)
        return attended.transpose(1, 2).flatten(-2)


def rollout(head: OneLayerHead, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    """As `Family.rollout`, of a head on the target's features."""
    view = batch.view(head.taps, head.view)
    rope = target.cos[view.positions], target.sin[view.positions]
    return Rollout(steps(head, view, rope, count), view.loss_mask)


def steps(head: OneLayerHead, view: View, rope: tuple[Tensor, Tensor], count: int) -> Iterator[Tensor]:
    """Outputs of every step on the branch rows of a view, float [B, R, D]; `count` of them. rope: cos and sin of the view's
    positions, [B, P + R, 1, d]. A prediction is fused with the view's global feature before it is read."""
    layer, prefix, (cos, sin), whole = head.layer, view.prefix, rope, view.global_feature
    attention = UnrolledAttention(view)
    normed, residual = head.fuse_inputs(view.embeds, head.features(view.tapped), view.embedding_only)
    out = layer.finish(residual, attention(*layer.project(normed, cos, sin)))[:, prefix:]
    yield out
    embeds, cos, sin = view.embeds[:, prefix:], cos[:, prefix:], sin[:, prefix:]
    for _ in range(1, count):
        predicted = shifted(out, 1)
        fused = predicted if whole is None else head.view.fuse_global(predicted, whole[:, None])
        normed, residual = head.fuse_inputs(embeds, fused)
        out = layer.finish(residual, attention(*layer.project(normed, cos, sin)))
        yield out


def shifted(x: Tensor, by: int) -> Tensor:
    """Row j takes row j - by, along axis 1; the first rows take themselves (they are masked from every loss)."""
    return torch.cat((x[:, :by], x[:, : x.shape[1] - by]), 1)


def without_recent(mask: Tensor, prefix: int, step: int) -> Tensor:
    """The mask [B, 1, R, P + R] of branch rows, with true rows seen up to j - step only."""
    row = torch.arange(mask.shape[2], device=mask.device)
    recent = row[None, :] > row[:, None] - step
    return torch.cat((mask[..., :prefix], mask[..., prefix:].masked_fill(recent, -torch.inf)), -1)


def attend_ahead(queries: Tensor, true: tuple[Tensor, Tensor], mask: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[B, H, R, d]: true keys under the mask, and of step i's keys the one row that lies len(own) - i before."""
    if (groups := queries.shape[1] // true[0].shape[1]) > 1:
        true, *own = [(k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)) for k, v in (true, *own)]
    keys, values = true
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
