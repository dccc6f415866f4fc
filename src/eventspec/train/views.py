"""What a head sees of a batch in training: all pairs of the recording, or its visual pairs as a compressor gives them, with
questions packed behind.

Branches that choose differently lie behind the same recording: every way of a compressor is laid out in the prefix, hidden from
the other ways, and a branch's choice is a bias on its attention to each. At inference only the chosen way is there
(`drafters.feature.compressed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.train.data import Packed


@dataclass(frozen=True)
class TargetBatch:
    """What the target did with a batch: rows float [B, P + R, D], their ids (-1 = visual), the embedding behind each, layer
    outputs by tap, logits [B, R, V] of the branch rows, positions [B, P + R], where the visual rows begin and the prefix ends,
    and which branch rows are learned from, bool [B, R]."""

    rows: Tensor
    ids: Tensor
    following: Tensor
    taps: Mapping[int, Tensor]
    logits: Tensor
    positions: Tensor
    packed: Packed
    visual: int
    prefix: int
    loss_mask: Tensor


@dataclass(frozen=True)
class View:
    """What a head sees: pairs [B, P + R, .], positions [B, P + R], a mask float as in `unrolled.steps`, the rows P of the
    prefix, which branch rows it learns from, and which rows are their embedding alone, bool [P + R], or None; `cost`: what the
    ways that were drawn cost a question (`compress.Option.cost`), scalar, or None."""

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    mask: Tensor
    prefix: int
    loss_mask: Tensor
    plain: Tensor | None = None
    cost: Tensor | None = None


def whole(seen: TargetBatch, taps: tuple[int, ...]) -> View:
    """All pairs, with the outputs of the layers `taps`."""
    tapped = torch.cat([seen.taps[tap] for tap in taps], -1)
    mask = hidden_where(~seen.packed.mask.to(tapped.device))
    return View(seen.following, tapped, seen.positions, mask, seen.prefix, seen.loss_mask)


def decoupled(seen: TargetBatch, taps: tuple[int, ...]) -> View:
    """All pairs; those whose next row is visual are that row alone."""
    every = whole(seen, taps)
    order = torch.arange(every.embeds.shape[1], device=every.embeds.device)
    return replace(every, plain=(order >= seen.visual - 1) & (order < seen.prefix - 1))


def few(seen: TargetBatch, taps: tuple[int, ...], vectors: Tensor) -> View:
    """Vectors [B, M, D] instead of the pairs whose next row is visual, where the last of these stood."""
    every, begin, end = whole(seen, taps), seen.visual - 1, seen.prefix - 1
    count = vectors.shape[1]
    order = torch.arange(every.embeds.shape[1] - (end - begin) + count, device=vectors.device)
    kept = torch.cat((torch.arange(begin), torch.arange(end - count, every.embeds.shape[1]))).to(vectors.device)
    return View(
        torch.cat((every.embeds[:, :begin], vectors.to(every.embeds.dtype), every.embeds[:, end:]), 1),
        every.tapped[:, kept],
        every.positions[:, kept],
        every.mask[..., kept],
        seen.prefix - (end - begin) + count,
        every.loss_mask,
        (order >= begin) & (order < begin + count),
    )


def compressed(seen: TargetBatch, taps: tuple[int, ...], elastic: Elastic) -> View:
    """The visual pairs in every way of a compressor."""
    all_pairs, first, prefix = whole(seen, taps), seen.visual, seen.prefix
    embeds, tapped = all_pairs.embeds, all_pairs.tapped
    branch = (seen.packed.offsets.to(tapped.device) == 0).cumsum(1) - 1
    loss_mask, mask = seen.loss_mask, all_pairs.mask[..., prefix:]
    ways = elastic.branches_of(torch.cat((embeds[:, first:prefix], tapped[:, first:prefix]), -1))
    biases, cost = torch.zeros(*branch.shape, len(ways), device=tapped.device), None
    if elastic.mode == "select":
        shares = _shares(elastic, tapped[:, prefix:], seen, branch)
        biases = shares.clamp_min(1e-9).log()
        # A recording is read once for a question, however long the answer: one row of a branch stands for it.
        starts = loss_mask & ~loss_mask.roll(1, 1)
        kept = [len(places) / max(1, prefix - first) for _, places in ways]
        each = [option.cost(share) for option, share in zip(elastic.options, kept, strict=True)]
        costs = (shares * shares.new_tensor(each)).sum(-1)[starts]
        cost = costs.mean() if len(costs) else None
    if elastic.mode == "weighted":
        # Added rows depend on the question, so a recording has room for one: the first branch's.
        shares = _shares(elastic, tapped[:, prefix:], seen, branch)[:, 0].to(tapped.dtype)
        mixed = (shares[:, :, None, None] * torch.stack([rows for rows, _ in ways], 1)).sum(1)
        ways, biases, loss_mask = [(mixed, ways[-1][1])], biases[..., :1], loss_mask & (branch == 0)
    counts = torch.tensor([first, *(len(places) for _, places in ways)])
    group = torch.repeat_interleave(torch.arange(len(counts)), counts).to(tapped.device)
    places = torch.cat([first + places for _, places in ways]).to(tapped.device)
    kept_embeds, kept_tapped = torch.cat([rows for rows, _ in ways], 1).chunk(2, -1)
    # The text before is seen by all; a way's rows see it and themselves.
    order = torch.arange(len(group), device=tapped.device)
    among = ((group[:, None] == group) | (group == 0)) & (order[:, None] >= order)
    top = hidden_where(~torch.cat((among, among.new_zeros(len(group), branch.shape[1])), 1))
    chosen = torch.cat((torch.zeros_like(biases[..., :1]), biases), -1)[..., group]
    return View(
        torch.cat((embeds[:, :first], kept_embeds, embeds[:, prefix:]), 1),
        torch.cat((tapped[:, :first], kept_tapped, tapped[:, prefix:]), 1),
        torch.cat((seen.positions[:, :first], seen.positions[:, places], seen.positions[:, prefix:]), 1),
        torch.cat((top.expand(len(tapped), 1, -1, -1), torch.cat((chosen[:, None], mask), -1)), 2),
        len(group),
        loss_mask,
        cost=cost,
    )


def hidden_where(masked: Tensor) -> Tensor:
    """float, -inf where it is true."""
    return torch.zeros(masked.shape, device=masked.device).masked_fill_(masked, -torch.inf)


def _shares(elastic: Elastic, tapped: Tensor, seen: TargetBatch, branch: Tensor) -> Tensor:
    """The gate's shares for every branch row [B, R, ways]: its branch's, by the mean feature of the question's rows."""
    asked = (seen.packed.labels.to(tapped.device) < 0).to(tapped.dtype)
    member = F.one_hot(branch.clamp_min(0), int(branch.max()) + 1).to(tapped.dtype) * asked[..., None]
    mean = member.transpose(1, 2) @ tapped / member.sum(1)[..., None].clamp_min(1)
    shares = elastic.shares(mean[:, :, None])
    return shares.gather(1, branch.clamp_min(0)[..., None].expand(-1, -1, shares.shape[-1]))
