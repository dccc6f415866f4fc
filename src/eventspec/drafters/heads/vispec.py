"""ViSpec's head (2509.15235): the visual rows become a few learned ones, and one vector of them all is fused into every feature
after them. The rest is EAGLE's head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.drafters.heads import eagle
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead, eagle_config
from eventspec.drafters.heads.head import Recipe
from eventspec.drafters.heads.views import HeadInputs, PromptView
from eventspec.nn.draft import DraftKernel
from eventspec.nn.linear import Linear, first_values

VECTORS = 8
"""Rows for a recording in training: one for each of the frames, as the paper takes one for an image."""
MOST_VECTORS = 4096
"""At most, in a folder."""


class AdaptedView(PromptView):
    """Learned queries look at the visual rows by cross-attention of several heads and give `queries` rows for them, and one
    more of them all (the paper: one and one for an image; here one for every frame), which is fused with every feature."""

    def __init__(self, width: int, heads: int, queries: int) -> None:
        super().__init__()
        self.heads, self.queries = heads, nn.Parameter(torch.empty(queries + 1, heads, width // heads))
        first_values(self.queries, lambda: torch.randn_like(self.queries) * width**-0.5)
        self.keys, self.values, self.out = (Linear(width, width, bias=False) for _ in range(3))
        self.global_proj = Linear(2 * width, width)
        self.begin()

    def begin(self) -> None:
        """The fusion as it is before training: the vector changes nothing."""
        width = self.global_proj.out_features
        first_values(self.global_proj.weight, lambda: torch.eye(width, 2 * width))
        first_values(self.global_proj.bias, lambda: torch.zeros(width))

    def fuse_global(self, tapped: Tensor, global_feature: Tensor) -> Tensor:
        """Features [..., D] fused with the vector of all visual rows [..., D] (zero before there are any)."""
        fused: Tensor = self.global_proj(torch.cat((tapped, global_feature.expand_as(tapped).to(tapped.dtype)), -1))
        return fused

    def adapted(self, visual: Tensor) -> tuple[Tensor, Tensor]:
        """Visual rows [..., T, D] -> rows [..., queries, D], and the vector of them all [..., D]."""
        queries = self.queries.transpose(0, 1)
        keys, values = (part(visual).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in (self.keys, self.values))
        shares = (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(-1)
        found = self.out((shares @ values).transpose(-2, -3).flatten(-2))
        return found[..., :-1, :], found[..., -1, :]

    def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        """A few vectors instead of the pairs whose next row is visual, where the last of these stood."""
        if visual[0] == visual[1]:
            nothing = torch.zeros_like(inputs.tapped[..., 0, :])
            tapped = self.fuse_global(inputs.tapped, nothing[..., None, :])
            return HeadInputs(inputs.embeds, tapped, inputs.positions, global_feature=nothing)
        begin, end = max(0, visual[0] - 1), visual[1] - 1
        vectors, whole = self.adapted(inputs.embeds[..., begin:end, :])
        count = vectors.shape[-2]
        first = max(begin, end - count)  # a span that is shorter than the vectors are many takes the last of them
        vectors = vectors[..., count - (end - first) :, :].to(inputs.embeds.dtype)
        order = torch.arange(inputs.embeds.shape[-2], device=whole.device)
        kept = ((order < begin) | (order >= first)).nonzero().flatten()
        tapped = self.fuse_global(inputs.tapped, whole[..., None, :] * (order >= begin)[:, None])
        return HeadInputs(
            torch.cat((inputs.embeds[..., :begin, :], vectors, inputs.embeds[..., end:, :]), -2),
            tapped[..., kept, :],
            inputs.positions[..., kept],
            embedding_only=((order >= begin) & (order < end))[kept],
            global_feature=whole,
            kept=kept,
        )

    def kernel_for(self, kernel: DraftKernel, global_feature: Tensor) -> DraftKernel:
        """The fusion goes into the reduction's weight and bias, so that drafting costs what EAGLE's does."""
        reduction, given = kernel.weights.reduction, kernel.weights.bias
        assert reduction is not None
        left, right = reduction.contiguous().split(self.global_proj.out_features, 1)  # it may be laid out by columns
        own, others = self.global_proj.weight.detach().split(self.global_proj.out_features, 1)
        bias = right @ F.linear(global_feature, others, self.global_proj.bias.detach())
        return kernel.with_reduction(torch.cat((left, right @ own), 1), bias if given is None else bias + given)


def vispec_head(config: EagleConfig, queries: int) -> EagleHead:
    """EAGLE's head with an adaptor of so many queries for the visual rows."""
    sizes = config.language
    return EagleHead(config, AdaptedView(sizes.hidden_size, sizes.num_attention_heads, queries), "vispec")


FAMILY = replace(
    eagle.FAMILY,
    name="vispec",
    title="ViSpec",
    recipes={"vispec": Recipe(lambda sizes: vispec_head(EagleConfig(sizes.layer), VECTORS), unroll=3, begins_with="eagle")},
    read=lambda folder: partial(vispec_head, eagle_config(folder), folder.shape("imadpt.q", 3, (2, MOST_VECTORS))[0] - 1),
    begin=lambda head: cast(AdaptedView, head.view).begin(),
    kind="vispec",
    names={
        "view.global_proj.": "img_fc.",
        "view.queries": "imadpt.q",
        **{f"view.{ours}.": f"imadpt.{theirs}_proj." for ours, theirs in (("keys", "k"), ("values", "v"), ("out", "o"))},
    },
)
