"""A strided convolution over the features, kernel and stride alike; the embeddings are averaged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eventspec.compress.pool import grouped
from eventspec.nn.first_values import first_values


class Convolution(nn.Module):
    """One row of every `ratio`; it starts as the mean."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.weight = nn.Parameter(torch.empty(width, ratio * width))
        first_values(self.weight, lambda: torch.eye(width).repeat(1, ratio) / ratio)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, 2 D] -> [..., M, 2 D] with M = ceil(T / ratio), and the places of the groups' last rows."""
        groups, places = grouped(rows, self.ratio)
        if missing := self.ratio - groups.shape[-2]:  # fewer rows than one group
            rest = groups.mean(-2, keepdim=True)
            groups = torch.cat((groups, rest.expand(*rest.shape[:-2], missing, rest.shape[-1])), -2)
        embeds, hidden = groups.chunk(2, -1)
        return torch.cat((embeds.mean(-2), nn.functional.linear(hidden.flatten(-2), self.weight)), -1), places
