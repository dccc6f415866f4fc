"""A small vision-language model behind the target's own vision encoder (MASSV, 2505.10526): a projector from the target's
visual rows to a small language model, trained on the target's answers. It reads no other layer of the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.linear import Linear


@dataclass(frozen=True)
class SmallConfig:
    """`language`: sizes of the small model, with the target's vocabulary; `reads`: the target's width."""

    language: LlamaConfig
    reads: int


class SmallVlm(nn.Module):
    """Projector and small language model."""

    taps: tuple[int, ...] = ()

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config, width = config, config.language.hidden_size
        self.up, self.across = Linear(config.reads, width), Linear(width, width)
        self.language = Llama(config.language)

    def projected(self, visual: Tensor) -> Tensor:
        """The target's visual rows [..., T, D] as rows of the small model [..., T, d]."""
        found: Tensor = self.across(nn.functional.gelu(self.up(visual)))
        return found

    def rows(self, ids: Tensor, visual: Tensor) -> Tensor:
        """A prompt: text ids int64 [..., T], -1 where a row of `visual` float [..., T, D] stands -> rows [..., T, d]."""
        return torch.where((ids < 0)[..., None], self.projected(visual), self.language.embed(ids.clamp_min(0)))

    def scores(self, hidden: Tensor, target: Llama) -> Tensor:
        """Its own normed outputs [..., d] -> logits float [..., V]."""
        logits: Tensor = self.language.head(hidden)
        return logits

    def in_vocabulary(self, logits: Tensor) -> Tensor:
        """A target's logits [..., V] as far as this head can name tokens: all of them."""
        return logits

    def names(self, rows: Tensor) -> Tensor:
        """Rows of its scores int64 -> the target's ids."""
        return rows
