"""A Llama decoder in plain torch: one code path for prefill, decoding, tree verification and packed training.

Inference works on one sequence and two-dimensional activations [T, D] with a static cache; training on a batch without one.
Checked against transformers' LlamaModel to 1e-4 in fp32 (tests/nn).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from eventspec.nn.cache import KVCache
from eventspec.nn.decode import split_attention
from eventspec.nn.layer import LanguageEnds as LanguageEnds
from eventspec.nn.layer import Layer as Layer
from eventspec.nn.layer import LlamaConfig as LlamaConfig
from eventspec.nn.layer import rms_norm as rms_norm
from eventspec.nn.layer import rope_tables as rope_tables
from eventspec.nn.linear import Linear
from eventspec.nn.runner import DecoderRunner, Rows


class Llama(LanguageEnds):
    """Token embedding, decoder layers, final norm and head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embed.weight
        self._runner: tuple[int, DecoderRunner] | None = None
        cos, sin = rope_tables(config, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of at most `capacity` rows."""
        weight, config = self.embed.weight, self.config
        return KVCache(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, capacity, weight.dtype, weight.device
        )

    def decoder_layer(self, number: int) -> Layer:
        """One of the layers, from 0."""
        return cast("Layer", self.layers[number])

    def normed(self, x: Tensor) -> Tensor:
        """The final norm: the input of the head, [..., D]."""
        return rms_norm(x, self.norm, self.config.rms_norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        """float [..., V] from the last layer's output [..., D]."""
        logits: Tensor = self.head(self.normed(x))
        return logits

    def step(
        self,
        x: Tensor,
        cache: KVCache,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """Run T new rows after the cached ones, as `runner.Rows` has them: x float [T, D] -> the last layer's output [T, D]
        and the outputs [T, D] of the layers `taps` (0 = the embedding), ascending."""
        return self.runner().step(Rows(x, cache, positions, mask), taps)

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, which gathers its weights itself."""
        return {**self.__dict__, "_runner": None}

    def train(self, mode: bool = True) -> Llama:
        """As nn.Module.train; training forgets the weights that were gathered."""
        if mode:
            self._runner = None
        super().train(mode)
        return self

    def runner(self) -> DecoderRunner:
        """The layers laid out for inference; gathered once, for weights that are final."""
        layers = cast("list[Layer]", self.layers)
        first = layers[0].qkv.weight.data_ptr()
        if self._runner is None or self._runner[0] != first:
            self._runner = first, DecoderRunner(layers, self.cos, self.sin)
        return self._runner[1]

    def forward(self, x: Tensor, positions: Tensor, prefix: int, mask: Tensor | None) -> Tensor:
        """Training on a batch: x float [B, T, D], positions int64 [T] or [B, T] -> the last layer's output [B, T, D].

        Rows [0, prefix) are causal and see only themselves; the rows after see what mask bool [B, 1, T - prefix, T] allows
        (several questions packed after one recording). prefix = T needs no mask.
        """
        return self.tapped(x, positions, prefix, mask, ())[0]

    def tapped(
        self, x: Tensor, positions: Tensor, prefix: int, mask: Tensor | None, taps: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, with the outputs [B, T, D] of the layers `taps` (0 = the embedding), in ascending order."""
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        found = [x] if 0 in taps else []
        for number, layer in enumerate(cast("list[Layer]", self.layers), 1):
            queries, keys, values = (part.transpose(-2, -3) for part in layer.project(layer.normed(x), cos, sin))
            attended = packed_attention(queries, keys, values, prefix, mask)
            x = layer.finish(x, attended.transpose(-2, -3).flatten(-2))
            if number in taps:
                found.append(x)
        return x, found


def packed_attention(queries: Tensor, keys: Tensor, values: Tensor, prefix: int, mask: Tensor | None) -> Tensor:
    """Attention [B, H, T, d]: rows [0, prefix) are causal, those after see what the mask [B, 1, T - prefix, T] allows (bool),
    or are biased by it (float)."""
    if mask is not None and mask.is_floating_point():
        mask = mask.to(queries.dtype)  # torch's kernel on a CPU misreads a float mask beside doubles, without a word
    return split_attention(queries, keys, values, prefix, mask)
