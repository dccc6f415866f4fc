"""One decoder layer, its sizes and its rotation, as modules: what training runs and inference takes its weights from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn.decode import apply_rope
from eventspec.nn.linear import Linear, unpacked
from eventspec.nn.weights import LayerWeights


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a decoder, in the words of transformers' LlamaConfig."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] over the root of its mean square, times a weight [D]."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def rope_tables(config: LlamaConfig, length: int) -> tuple[Tensor, Tensor]:
    """cos and signed sin, float32 [length, 1, head_dim]: rotating is ``x * cos + roll(x, head_dim / 2) * sin``."""
    half = config.head_dim // 2
    # On the CPU even where modules are made without memory (the meta device): no checkpoint holds these numbers.
    frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float32, device="cpu") / half)
    angle = torch.arange(length, dtype=torch.float32, device="cpu")[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    # rotate_half(x) is (-x2, x1), i.e. roll(x) with its first half negated; the sign lives in the table.
    return torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]


class Layer(nn.Module):
    """One decoder layer; q, k, v and gate, up are fused so that a decoding step makes four matrix products. `reads` vectors of
    the width side by side are what its attention reads (EAGLE-3: two)."""

    def __init__(self, config: LlamaConfig, reads: int = 1) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps, width, inner = config.rms_norm_eps, config.hidden_size, config.intermediate_size
        self.input_norm = nn.Parameter(torch.ones(width))
        self.qkv = Linear(reads * width, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.out = Linear(self.heads * self.head_dim, width, bias=False)
        self.post_norm = nn.Parameter(torch.ones(width))
        self.gate_up = Linear(width, 2 * inner, bias=False)
        self.down = Linear(inner, width, bias=False)

    def normed(self, x: Tensor) -> Tensor:
        """What the attention reads of x [..., D]."""
        return rms_norm(x, self.input_norm, self.eps)

    def project(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [..., T, heads, head_dim] and keys, and values [..., T, kv_heads, head_dim]."""
        packed = self.qkv(normed).unflatten(-1, (-1, self.head_dim))
        rotating, values = packed.split((self.heads + self.kv_heads, self.kv_heads), -2)
        rotated = apply_rope(rotating, cos, sin)
        queries, keys = rotated.split((self.heads, self.kv_heads), -2)
        return queries, keys, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward block: attended [..., T, heads * head_dim] -> [..., T, D]."""
        x, inner = self.before_down(x, attended)
        finished: Tensor = x + self.down(inner)
        return finished

    def before_down(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """What `finish` adds up: the residual [..., T, D] behind the attention, and what `down` multiplies [..., T, I]."""
        x = x + self.out(attended)
        gate, up = self.gate_up(rms_norm(x, self.post_norm, self.eps)).chunk(2, -1)
        return x, F.silu(gate) * up


class LanguageEnds(nn.Module):
    """Both ends of a language model, which is all of it that a draft head shares: `embed` gives rows [..., D] for tokens,
    `head` logits [..., V] for normed outputs [..., D]. cos, sin: rotation for the head's own layers, as long as the context."""

    config: LlamaConfig
    embed: nn.Embedding
    head: nn.Linear
    cos: Tensor
    sin: Tensor

    @property
    def whole(self) -> nn.Module:
        """The model whose ends these are."""
        return self


def layer_weights(layer: Layer, laid_out: Callable[[Linear], Tensor] = unpacked) -> LayerWeights:
    """A decoder layer's tensors, its matrices as `laid_out` gives them."""
    parts = (layer.input_norm, layer.qkv, layer.out, layer.post_norm, layer.gate_up, layer.down)
    return LayerWeights(*(part.detach() if isinstance(part, Tensor) else laid_out(part) for part in parts))
