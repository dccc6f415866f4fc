"""DREAM's head (2505.19201): a decoder layer over embeddings alone, a gated cross-attention to the target's features, and a
second decoder layer; the target's own head names tokens.

As published: q and k norms, tanh gates on attention and feed-forward. Here the cross-attention is rotated by position, and a
predicted feature is looked at like a true one when drafts go deeper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.decode import apply_rope
from eventspec.nn.draft import CrossedKernel
from eventspec.nn.llama import Layer


@dataclass(frozen=True)
class DreamConfig:
    """`language`: sizes of every block, with the target's width and vocabulary."""

    language: LlamaConfig


class Crossing(nn.Module):
    """Rows look at features: queries from the rows, keys and values from the features; what was seen joins by a gate."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        self.query_norm, self.key_norm = (nn.Parameter(torch.ones(config.head_dim)) for _ in range(2))
        # Of attention and feed-forward; they begin half open: from zero, as published, a short training never opens them.
        self.gates = nn.Parameter(torch.full((2,), 0.5))

    def project(self, rows: Tensor, features: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries of rows [..., T, D]; rotated keys and values of features [..., T, D] at the same positions: [..., T,
        heads, head_dim] each. The weight is one, as in a decoder layer."""
        layer = self.layer
        width = layer.heads * layer.head_dim
        queries = F.linear(layer.normed(rows), layer.qkv.weight[:width].to(rows.dtype)).unflatten(-1, (layer.heads, -1))
        both = F.linear(features, layer.qkv.weight[width:].to(features.dtype)).unflatten(-1, (-1, layer.head_dim))
        keys, values = both.split((layer.kv_heads, layer.kv_heads), -2)
        rotated = (
            apply_rope(self._normed(x, norm), cos, sin) for x, norm in ((queries, self.query_norm), (keys, self.key_norm))
        )
        return *rotated, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """As `Layer.finish`, with gates."""
        seen, thought = self.gates.tanh()
        layer = self.layer
        x = x + seen * layer.out(attended)
        gate, up = layer.gate_up(self._normed(x, layer.post_norm)).chunk(2, -1)
        finished: Tensor = x + thought * layer.down(F.silu(gate) * up)
        return finished

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.layer.eps)


class DreamHead(nn.Module):
    """Embeddings through the first layer, features by the crossing, then the last layer and its norm."""

    taps: tuple[int, ...] = (-1,)

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.config = config
        self.first, self.cross, self.last = Layer(config.language), Crossing(config.language), Layer(config.language)
        self.norm = nn.Parameter(torch.ones(config.language.hidden_size))

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]: they are the features."""
        return tapped

    def normed(self, x: Tensor) -> Tensor:
        """Of the last layer's output: the predicted feature, [..., D]."""
        return F.rms_norm(x, self.norm.shape, self.norm.to(x.dtype), self.config.language.rms_norm_eps)

    def scores(self, hidden: Tensor, target: Llama) -> Tensor:
        """Predicted features [..., D] -> logits float [..., V]."""
        logits: Tensor = target.head(hidden)
        return logits

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(embedding of the next token, feature of this one), [..., D] each: they meet in the crossing, not before."""
        assert embedding_only is None
        return embeds, hidden

    def kernel(self, target: Llama) -> CrossedKernel:
        """The weights of the drafting pass."""
        cross, none = self.cross, self.norm.detach().new_empty(0)
        more = [part.detach() for part in (cross.query_norm, cross.key_norm, cross.gates.tanh(), self.norm)]
        out = [none, target.head.weight.detach(), none.long()]
        return CrossedKernel(self.first, cross.layer, self.last, more, out)
