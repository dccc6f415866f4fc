"""Modules that map features of an event tower to visual rows of a target's language model.

They are small, and trained while both models stay as they are. Rows are laid out as EventGPT's: one a picture (means over its
places), then one a place (means over the pictures). linear: one product. bottleneck, blocks, wide: residual MLPs (one narrow,
three narrow, three wide: the L1, L2 and L3 of earlier work). attention: rows look at each other before; causal: only at earlier
ones, and each also learns to say the next. fused: several layers of the tower, mixed by a gate for every row and channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.core import BadInput
from eventspec.models import configuration as fields
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.nn.linear import Linear

HEADS = 4
LARGEST = 1 << 16
"""Bound of a width."""
LAST_LAYERS = 3
"""Of the tower, that `fused` reads."""


class Residual(nn.Module):
    """[..., D] -> [..., D]: what a normed MLP through `inner` channels finds is added."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.down = Linear(width, inner)
        self.up = Linear(inner, width)

    def forward(self, rows: Tensor) -> Tensor:
        added: Tensor = rows + self.up(F.gelu(self.down(self.norm(rows))))
        return added


class Attending(nn.Module):
    """[B, T, D] -> [B, T, D]: rows look at each other, or at earlier ones only, then a residual MLP."""

    def __init__(self, width: int, inner: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.norm = causal, nn.LayerNorm(width)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.mlp = Residual(width, inner)

    def forward(self, rows: Tensor) -> Tensor:
        queries, keys, values = self.qkv(self.norm(rows)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        added: Tensor = self.mlp(rows + self.out(found.transpose(1, 2).flatten(2)))
        return added


@dataclass(frozen=True)
class Kind:
    """How an adapter of a kind is made for rows of a width: its blocks, how many layers of the tower it reads, and whether it
    also learns to say the next row."""

    blocks: Callable[[int], list[nn.Module]]
    layers: int = 1
    foresees: bool = False


KINDS = {
    "linear": Kind(lambda width: []),
    "bottleneck": Kind(lambda width: [Residual(width, width // 2)]),
    "blocks": Kind(lambda width: [Residual(width, width // 2) for _ in range(3)]),
    "wide": Kind(lambda width: [Residual(width, 4 * width) for _ in range(3)]),
    "attention": Kind(lambda width: [Attending(width, 2 * width, causal=False) for _ in range(2)]),
    "causal": Kind(lambda width: [Attending(width, 2 * width, causal=True) for _ in range(2)], foresees=True),
    "fused": Kind(lambda width: [Residual(width, 2 * width) for _ in range(2)], LAST_LAYERS),
}


def check_kind(kind: str) -> str:
    """The kind itself; BadInput for one that there is not."""
    if kind not in KINDS:
        raise BadInput(f"adapter '{kind}' is unknown: choose one of {', '.join(KINDS)}")
    return kind


@dataclass(frozen=True)
class AdapterConfig:
    """A kind, the tower's layers that are read (ascending from 1, the last one last), the tower's width and that of a row."""

    kind: str
    layers: tuple[int, ...]
    reads: int
    width: int

    @classmethod
    def of(cls, kind: str, drafter: EventGptConfig, width: int) -> AdapterConfig:
        """For the tower of an event model and a language model of a width; BadInput for an unknown kind."""
        last, count = drafter.vision.num_hidden_layers, KINDS[check_kind(kind)].layers
        return cls(kind, tuple(range(max(1, last - count + 1), last + 1)), drafter.vision.hidden_size, width)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        return {**asdict(self), "layers": list(self.layers)}

    @classmethod
    def from_json(cls, data: fields.Fields) -> AdapterConfig:
        """The config of an adapter's folder; BadField for what can be none."""
        kind: Any = data.get("kind")
        layers: Any = data.get("layers")
        fields.require(data, "kind", isinstance(kind, str) and kind in KINDS, f"one of {', '.join(KINDS)}")
        fits = isinstance(layers, list) and len(layers) > 0 and all(type(i) is int and i > 0 for i in layers)
        fields.require(data, "layers", fits and sorted(set(layers)) == layers, "ascending layers of the event tower, from 1")
        sizes: dict[str, Any] = {name: data.get(name) for name in ("reads", "width")}
        for name, size in sizes.items():
            fields.require(data, name, type(size) is int and 0 < size <= LARGEST, f"a whole number, 1 to {LARGEST}")
        fields.require(data, "width", sizes["width"] % HEADS == 0, f"a multiple of {HEADS}")
        return cls(kind, tuple(layers), **sizes)

    def check(self, drafter: EventGptConfig, width: int) -> None:
        """BadField unless it is one for this event model and a language model of this width."""
        data, vision = self.as_json(), drafter.vision
        fields.require(data, "reads", self.reads == vision.hidden_size, f"{vision.hidden_size}, the event tower's width")
        fields.require(data, "width", self.width == width, f"{width}, the target's hidden_size")
        most = vision.num_hidden_layers
        fields.require(data, "layers", self.layers[-1] == most, f"them to end with {most}, the tower's last")


class Adapter(nn.Module):
    """Pooled layers of the event tower, [B, T, C] each -> rows [B, T, D] for the target's language model."""

    def __init__(self, config: AdapterConfig) -> None:
        super().__init__()
        self.config, kind, together = config, KINDS[config.kind], len(config.layers) * config.width
        self.norms = nn.ModuleList(nn.LayerNorm(config.reads) for _ in config.layers)
        self.enter = nn.ModuleList(Linear(config.reads, config.width) for _ in config.layers)
        self.gate = Linear(together, together) if len(config.layers) > 1 else None
        self.blocks = nn.ModuleList(kind.blocks(config.width))
        self.leave = Linear(config.width, config.width) if self.blocks else None
        self.next = Linear(config.width, config.width) if kind.foresees else None

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return self.said(self.inner(layers))

    def inner(self, layers: Sequence[Tensor]) -> Tensor:
        """What rows [B, T, D] are made of."""
        entered: list[Tensor] = [e(norm(layer)) for e, norm, layer in zip(self.enter, self.norms, layers, strict=True)]
        rows = entered[0]
        if self.gate is not None:
            shares = self.gate(torch.cat(entered, -1)).unflatten(-1, (len(entered), -1)).softmax(-2)
            rows = (shares * torch.stack(entered, -2)).sum(-2)
        for block in self.blocks:
            rows = block(rows)
        return rows

    def said(self, inner: Tensor) -> Tensor:
        """Rows of what they are made of."""
        rows: Tensor = inner if self.leave is None else self.leave(inner)
        return rows

    def foreseen(self, inner: Tensor) -> Tensor | None:
        """What each row says about the one behind it, [B, T, D], of a kind that learns to; else None."""
        return None if self.next is None else self.next(inner)


def pooled_layers(model: EventGpt, pixels: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """Event pictures float [B * images, 3, S, S] -> layers of the tower, pooled as the event model pools what it reads: each
    [B, images + tokens, C]."""
    return [model.pooled(layer) for layer in model.tower.outputs(pixels, layers)]
