"""The two-layer projector between a vision tower and a language model (LLaVA 1.5: linear, erf GELU, linear)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn.linear import Linear


class Projector(nn.Module):
    """[..., vision width] -> [..., language width]."""

    def __init__(self, vision: int, language: int) -> None:
        super().__init__()
        self.linear_1 = Linear(vision, language)
        self.linear_2 = Linear(language, language)

    def forward(self, features: Tensor) -> Tensor:
        projected: Tensor = self.linear_2(self.inner(features))
        return projected

    def inner(self, features: Tensor) -> Tensor:
        """What the second layer reads, [..., language width]: after it everything is linear."""
        return F.gelu(self.linear_1(features))
