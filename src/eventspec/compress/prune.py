"""Dropping rows: evenly spaced ones stay; while training, random ones (the paper drops at random)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Pruning(nn.Module):
    """Keeps one row of `ratio`, at least one."""

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
