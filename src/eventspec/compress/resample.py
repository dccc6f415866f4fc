"""A few learned queries that look at all rows: one cross-attention layer, as in Q-Former."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eventspec.nn.first_values import first_values


class Resampler(nn.Module):
    """`queries` rows, whatever the number of rows before. They stand where the last rows stood."""

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
