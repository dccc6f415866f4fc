"""EAGLE-3's head (2503.01840): three of the target's layers fused into one feature, one decoder layer that reads it beside the
next token's embedding, and a head of its own over the tokens that answers really use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.draft import DraftKernel
from eventspec.nn.linear import Linear
from eventspec.nn.llama import Layer


@dataclass(frozen=True)
class Eagle3Config:
    """`language`: sizes of the one layer, with the target's width and vocabulary; `taps`: the target's layers whose outputs are
    fused, ascending; `draft_vocab`: tokens the head can name; `norm_before_residual`: the layer adds to the normed feature, as
    many of `speculators` do, not to the feature itself, as the paper's."""

    language: LlamaConfig
    taps: tuple[int, ...]
    draft_vocab: int
    norm_before_residual: bool = False


def usual_taps(layers: int) -> tuple[int, ...]:
    """Low, middle and high: the residual stream that enters layers 2, n/2 and n - 3 (as the published code counts)."""
    found = (2, layers // 2, layers - 3)
    return found if found[0] < found[1] < found[2] else tuple(sorted({max(1, layers // 4), layers // 2, layers}))


class Eagle3Head(nn.Module):
    """Fusion of the tapped layers, one decoder layer over [embedding, feature], norm and head."""

    ids: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config, width = config, config.language.hidden_size
        self.taps = config.taps
        self.fc = Linear(len(config.taps) * width, width, bias=False)
        self.hidden_norm = nn.Parameter(torch.ones(width))
        self.layer = Layer(config.language, reads=2)
        self.norm = nn.Parameter(torch.ones(width))
        self.head = Linear(width, config.draft_vocab, bias=False)
        # d2t of the published layout is this minus the row's number.
        self.register_buffer("ids", torch.arange(config.draft_vocab))

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]."""
        fused: Tensor = self.fc(tapped)
        return fused

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(embedding of the next token, feature of this one), [..., D] each -> what the attention reads, and the residual."""
        assert embedding_only is None  # here they are side by side, there is nothing to leave out
        eps = self.config.language.rms_norm_eps
        seen = F.rms_norm(hidden, self.hidden_norm.shape, self.hidden_norm.to(hidden.dtype), eps)
        return torch.cat((self.layer.normed(embeds), seen), -1), seen if self.config.norm_before_residual else hidden

    def scores(self, hidden: Tensor, target: Llama) -> Tensor:
        """Outputs [..., D] -> logits float [..., draft_vocab]."""
        logits: Tensor = self.head(
            F.rms_norm(hidden, self.norm.shape, self.norm.to(hidden.dtype), self.config.language.rms_norm_eps)
        )
        return logits

    def kernel(self, target: Llama) -> DraftKernel:
        """The weights of the drafting pass."""
        norms = [self.hidden_norm.detach()] * (2 if self.config.norm_before_residual else 1)
        return DraftKernel(norms, self.layer, [self.norm.detach(), self.head.weight.detach(), self.ids])
