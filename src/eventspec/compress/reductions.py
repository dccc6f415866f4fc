"""What makes fewer visual rows of many: dropping, averaging, a strided convolution, a few learned queries; and keeping those
that a model attends to: ranking as in FastV (2403.06764), and the two stages of video-SpecVLM (2508.16201). By the squares of a
frame's patches: `grid`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from eventspec.nn import Llama
from eventspec.nn.linear import first_values

RANKED_BEHIND = 1
"""Layers before the one whose attention ranks rows: it is the second, FastV's K. Its released code, too, takes the scores of
the layer before the first that runs on fewer rows; video-SpecVLM takes the mean over all layers: that would be a whole pass."""
SURE = 0.4
"""Of the attention, the share that the first stage keeps the rows of."""


class Pruning(nn.Module):
    """Keeps one row of `ratio`, at least one: evenly spaced ones; while training, random ones (the paper drops at random). By
    importance: `ImportancePruning`."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), and their places."""
        total = rows.shape[-2]
        count = -(-total // self.ratio)
        if self.training:
            places = torch.randperm(total, device=rows.device)[:count].sort().values
        else:
            places = torch.arange(count, device=rows.device) * self.ratio + min(self.ratio, total) // 2
            places = places.clamp_max(total - 1)
        return rows[..., places, :], places


class ImportancePruning(nn.Module):
    """Keeps one row of `ratio`, at least one: those of the highest importance, a learned product with the row's feature.

    Which rows are kept has no gradient. So a kept row's feature is multiplied by its importance over the same number, which is
    1: where more of a row would lessen the loss, its importance grows. Training adds Gumbel noise to the importances, so that
    other rows are tried too; with importances that are all alike that is dropping at random.
    """

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.weight = nn.Parameter(torch.empty(width))
        first_values(self.weight, lambda: torch.zeros(width))

    def importance(self, rows: Tensor) -> Tensor:
        """[..., T, 2 D] -> [..., T], before a sigmoid."""
        found: Tensor = rows.chunk(2, -1)[1] @ self.weight
        return found

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), and their places [..., M], ascending."""
        scores, count = self.importance(rows), -(-rows.shape[-2] // self.ratio)
        noise = -torch.empty_like(scores).exponential_().log() if self.training else 0.0
        places = (scores.detach() + noise).topk(count).indices.sort().values
        kept = rows.gather(-2, places[..., None].expand(*places.shape, rows.shape[-1]))
        if not torch.is_grad_enabled():
            return kept, places
        share = scores.gather(-1, places).sigmoid()[..., None]
        embeds, hidden = kept.chunk(2, -1)
        return torch.cat((embeds, hidden * (share / share.detach()).to(hidden.dtype)), -1), places


class Pooling(nn.Module):
    """The mean of every `ratio` rows; the last group may be shorter. With `frames` > 1 and the rows of a `frame`, first the
    mean of the same row of so many successive frames: a patch changes less from frame to frame than from one patch to the
    next."""

    def __init__(self, ratio: int, frames: int = 1, frame: int = 0) -> None:
        super().__init__()
        self.ratio, self.frames, self.frame = ratio, frames, frame

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), or that much of every stretch of frames, and the places of
        the groups' last rows. Rows after the last whole frame are a stretch of their own."""
        total = rows.shape[-2]
        count = total // self.frame if self.frames > 1 else 0
        if count == 0:
            return means(rows, self.ratio)
        whole = count * self.frame
        stretches, last = means(rows[..., :whole, :].unflatten(-2, (count, -1)).flatten(-2), self.frames)
        found, places = means(stretches.unflatten(-1, (self.frame, -1)), self.ratio)
        found, places = found.flatten(-3, -2), (last[:, None] * self.frame + places).flatten()
        if whole < total:
            rest, later = means(rows[..., whole:, :], self.ratio)
            found, places = torch.cat((found, rest), -2), torch.cat((places, whole + later))
        return found, places


def means(rows: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
    """[..., T, C] -> the mean of every `ratio` rows [..., M, C], of fewer at the end; places of the groups' last rows."""
    total = rows.shape[-2]
    full, missing = divmod(total, ratio)
    found = rows[..., : full * ratio, :].unflatten(-2, (full, ratio)).mean(-2)
    places = torch.arange(1, full + 1, device=rows.device) * ratio - 1
    if missing:
        found = torch.cat((found, rows[..., full * ratio :, :].mean(-2, keepdim=True)), -2)
        places = torch.cat((places, places.new_full((1,), total - 1)))
    return found, places


class Convolution(nn.Module):
    """A strided convolution over the features, one row of every `ratio`, which starts as the mean; embeddings are averaged."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.weight = nn.Parameter(torch.empty(width, ratio * width))
        first_values(self.weight, lambda: torch.eye(width).repeat(1, ratio) / ratio)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), and the places of the groups' last rows; a last group of
        fewer rows is filled up with its mean."""
        averaged, places = means(rows, self.ratio)
        embeds, rest = averaged.chunk(2, -1)
        hidden = rows.chunk(2, -1)[1]
        missing = len(places) * self.ratio - rows.shape[-2]
        filled = torch.cat((hidden, rest[..., -1:, :].expand(*rest.shape[:-2], missing, -1)), -2) if missing else hidden
        return torch.cat((embeds, linear(filled.unflatten(-2, (len(places), self.ratio)).flatten(-2), self.weight)), -1), places


class Resampler(nn.Module):
    """A few learned queries that look at all rows, one cross-attention layer as in Q-Former; what they find stands where the
    last rows stood."""

    def __init__(self, width: int, queries: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(queries, width))
        first_values(self.queries, lambda: torch.randn_like(self.queries) * width**-0.5)
        self.keys = nn.Linear(width, width, bias=False)
        self.values = nn.Linear(width, width, bias=False)
        first_values(self.values.weight, lambda: torch.eye(width))  # it starts as a mean that is not quite even

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., queries, 2 D] and the last places; with fewer rows than queries, as many as there are."""
        total, count = rows.shape[-2], min(rows.shape[-2], len(self.queries))
        embeds, hidden = rows.chunk(2, -1)
        # Turning the few queries instead of all rows gives the same products.
        asked = self.queries[:count] @ self.keys.weight
        scores = asked @ hidden.transpose(-1, -2) * hidden.shape[-1] ** -0.5
        shares = scores.softmax(-1)
        found = torch.cat((shares @ embeds, self.values(shares @ hidden)), -1)
        return found, torch.arange(total - count, total, device=rows.device)


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
