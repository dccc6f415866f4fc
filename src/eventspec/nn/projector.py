"""The two-layer projector between a vision tower and a language model (LLaVA 1.5: linear, erf GELU, linear)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn.linear import linear


class Projector(nn.Module):
    """[..., vision width] -> [..., language width]."""

    def __init__(self, vision: int, language: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(vision, language)
        self.linear_2 = nn.Linear(language, language)

    def forward(self, features: Tensor) -> Tensor:
        inner = F.gelu(linear(features, self.linear_1.weight, self.linear_1.bias))
        return linear(inner, self.linear_2.weight, self.linear_2.bias)
