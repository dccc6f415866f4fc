"""EAGLE-1's head (2401.15077, section 4) and its vision-language form EagleVLM (2509.11815, section 3): one decoder layer that
predicts the target's next feature from this feature and the next token, and the target's own head to name tokens.

A feature is the vector that the target's head reads: the last layer's output after the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.draft import DraftKernel
from eventspec.nn.linear import Linear
from eventspec.nn.llama import Layer


@dataclass(frozen=True)
class EagleConfig:
    """`language`: sizes of the one layer, with the target's width and vocabulary. `input_norm`: EagleVLM's added norm, which
    EAGLE-1 lacks. `bias`: of the reduction, which vLLM's loader does not know."""

    language: LlamaConfig
    input_norm: bool = True
    bias: bool = True


class EagleHead(nn.Module):
    """Reduction of (embedding, feature) to one width, then one decoder layer."""

    taps: tuple[int, ...] = (-1,)

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config, width = config, config.language.hidden_size
        self.fc = Linear(2 * width, width, bias=config.bias)
        self.layer = Layer(config.language)
        if not config.input_norm:
            self.layer.input_norm = nn.Parameter(torch.empty(0), requires_grad=False)

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]: they are the features."""
        return tapped

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(embedding of the next token, feature of this one), [..., D] each -> what the attention reads, and the residual.

        Rows where `embedding_only` bool [...] is true are not fused: the layer reads the embedding (MSD's visual rows)."""
        x = self.fc(torch.cat((embeds, hidden), -1))
        if embedding_only is not None:
            x = torch.where(embedding_only[..., None], embeds.to(x.dtype), x)
        return (self.layer.normed(x) if self.config.input_norm else x), x

    def scores(self, hidden: Tensor, target: Llama) -> Tensor:
        """Predicted features [..., D] -> logits float [..., V]."""
        logits: Tensor = target.head(hidden)
        return logits

    def kernel(self, target: Llama) -> DraftKernel:
        """The weights of the drafting pass."""
        weight = self.fc.weight.detach()
        none = weight.new_empty(0)
        bias = none if self.fc.bias is None else self.fc.bias.detach()
        return DraftKernel([weight, bias], self.layer, [none, target.head.weight.detach(), none.long()])


class MsdHead(EagleHead):
    """EAGLE's head for text, decoupled from vision (MSD, 2505.14260): a visual row is the layer's input as it is, without a
    feature and without the reduction."""
