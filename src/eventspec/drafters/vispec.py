"""ViSpec's head (2509.15235): the visual rows become a few learned ones, and one vector of them all is fused into every feature
behind them. The rest is EAGLE's head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.drafters.eagle import EagleConfig, EagleHead
from eventspec.nn.linear import Linear


class VisionAdaptor(nn.Module):
    """Learned queries that look at the visual rows by cross-attention of several heads: `queries` rows, and one more for the
    whole (the paper: one and one for an image; here one for every frame)."""

    def __init__(self, width: int, heads: int, queries: int) -> None:
        super().__init__()
        self.heads, self.queries = heads, nn.Parameter(torch.randn(queries + 1, heads, width // heads) * width**-0.5)
        self.keys, self.values, self.out = (Linear(width, width, bias=False) for _ in range(3))

    def forward(self, visual: Tensor) -> tuple[Tensor, Tensor]:
        """Visual rows [..., T, D] -> rows [..., queries, D], and the vector of them all [..., D]."""
        queries = self.queries.transpose(0, 1)
        keys, values = (part(visual).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in (self.keys, self.values))
        shares = (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(-1)
        found = self.out((shares @ values).transpose(-2, -3).flatten(-2))
        return found[..., :-1, :], found[..., -1, :]


class VispecHead(EagleHead):
    """EAGLE's head with an adaptor for visual rows, and a fusion of their vector with a feature that begins as the feature."""

    def __init__(self, config: EagleConfig, queries: int) -> None:
        super().__init__(config)
        width = config.language.hidden_size
        self.adaptor = VisionAdaptor(width, config.language.num_attention_heads, queries)
        self.global_proj = Linear(2 * width, width)
        self.begin()

    def begin(self) -> None:
        """The fusion as it is before training: the vector changes nothing."""
        width = self.global_proj.out_features
        with torch.no_grad():
            self.global_proj.weight.copy_(torch.cat((torch.eye(width), torch.zeros(width, width)), 1))
            self.global_proj.bias.zero_()

    def fuse_global(self, hidden: Tensor, global_feature: Tensor) -> Tensor:
        """Features [..., D] fused with the vector of all visual rows [..., D] (zero before there are any)."""
        fused: Tensor = self.global_proj(torch.cat((hidden, global_feature.expand_as(hidden).to(hidden.dtype)), -1))
        return fused

    def folded(self, global_feature: Tensor) -> list[Tensor]:
        """The reduction's weight and bias with the fusion in it, for one recording's vector [D]: drafting costs what EAGLE's
        does."""
        left, right = self.fc.weight.detach().split(self.global_proj.out_features, 1)
        own, others = self.global_proj.weight.detach().split(self.global_proj.out_features, 1)
        bias = right @ F.linear(global_feature, others, self.global_proj.bias.detach())
        return [torch.cat((left, right @ own), 1), bias if self.fc.bias is None else bias + self.fc.bias.detach()]
