"""Averaging rows that lie next to each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Pooling(nn.Module):
    """The mean of every `ratio` rows; the last group may be shorter."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), and the places of the groups' last rows."""
        groups, places = grouped(rows, self.ratio)
        return groups.mean(-2), places


def grouped(rows: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
    """[..., T, C] -> [..., M, ratio, C], the last group filled up with its own mean; places of the groups' last rows."""
    total = rows.shape[-2]
    ratio = max(1, min(ratio, total))  # one group is the most that there can be
    count = -(-total // ratio)
    places = (torch.arange(1, count + 1, device=rows.device) * ratio - 1).clamp_max(total - 1)
    if missing := count * ratio - total:
        rest = rows[..., total - (ratio - missing) :, :].mean(-2, keepdim=True)
        rows = torch.cat((rows, rest.expand(*rest.shape[:-2], missing, rest.shape[-1])), -2)
    return rows.unflatten(-2, (count, ratio)), places
