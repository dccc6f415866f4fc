"""Modules that map what an event model computes to what a target's language model reads; both models stay as they are.

Output `rows`: features of the event tower become visual rows of the target, laid out as EventGPT's: one a picture (means over
its places), then one a place (means over the pictures). Output `features`: what the event model computes at a token becomes
what the target's own head reads, so that the next token is named with the target's embeddings.

linear: one product. slim: two with a ReLU between, through a sixteenth of the width (4096-256-4096, the early notes' shape, 2 M
parameters). bottleneck, blocks, wide: residual MLPs (one narrow, three narrow, three wide: the L1, L2 and L3 of earlier work).
attention: rows attend to each other; causal: to earlier ones only, and each also learns to predict the next. cross: rows
attend to a learned bank, where DREAM's drafter (arXiv 2505.19201) attends to features of the target. fused: several inputs
(layers of the tower; a token's feature and its embedding), mixed by a gate for every row and channel. constant: a control that
sees no event and learns one row for all places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.errors import check_known
from eventspec.models import configuration as fields
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.nn.linear import Linear

Output = Literal["rows", "features"]
HEADS = 4
LARGEST = 1 << 16
"""Bound of a width."""
BANK = 64
"""Rows of the bank that kind cross looks at."""
CONTROL = "constant"
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


class Crossing(nn.Module):
    """[..., D] -> [..., D]: every row looks at a learned bank, then a residual MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.bank = nn.Parameter(torch.empty(BANK, width))
        self.query = Linear(width, width)
        self.keys_values = Linear(width, 2 * width)
        self.out = Linear(width, width)
        self.mlp = Residual(width, inner)

    def forward(self, rows: Tensor) -> Tensor:
        queries = self.query(self.norm(rows)).unflatten(-1, (HEADS, -1))
        keys, values = self.keys_values(self.bank).unflatten(-1, (2, HEADS, -1)).unbind(-3)
        near = torch.einsum("...hd,mhd->...hm", queries, keys) / queries.shape[-1] ** 0.5
        found = torch.einsum("...hm,mhd->...hd", near.softmax(-1), values)
        added: Tensor = self.mlp(rows + self.out(found.flatten(-2)))
        return added


class Constant(nn.Module):
    """[..., D] -> [..., D]: one learned row, whatever comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        return 0 * rows + self.row  # with a gradient of 0 for what comes before: training takes none for a fault


@dataclass(frozen=True)
class Kind:
    """How an adapter of a kind is made for rows of a width: its blocks, whether it reads several inputs, whether it writes rows
    only, and whether each row also learns to predict the next; `narrow`: what the width is divided by between the first
    product and the last."""

    blocks: Callable[[int], list[nn.Module]]
    several: bool = False
    rows_only: bool = False
    foresees: bool = False
    narrow: int = 1


KINDS = {
    "linear": Kind(lambda width: []),
    "slim": Kind(lambda width: [nn.ReLU()], narrow=16),
    "bottleneck": Kind(lambda width: [Residual(width, width // 2)]),
    "blocks": Kind(lambda width: [Residual(width, width // 2) for _ in range(3)]),
    "wide": Kind(lambda width: [Residual(width, 4 * width) for _ in range(3)]),
    "attention": Kind(lambda width: [Attending(width, 2 * width, causal=False) for _ in range(2)], rows_only=True),
    "causal": Kind(lambda width: [Attending(width, 2 * width, causal=True) for _ in range(2)], rows_only=True, foresees=True),
    "cross": Kind(lambda width: [Crossing(width, 2 * width) for _ in range(2)]),
    "fused": Kind(lambda width: [Residual(width, 2 * width) for _ in range(2)], several=True),
    CONTROL: Kind(lambda width: [Constant(width)], rows_only=True),
}


def kinds_to(output: Output) -> list[str]:
    """The kinds that can write an output."""
    return [name for name, own in KINDS.items() if output == "rows" or not own.rows_only]


@dataclass(frozen=True)
class AdapterConfig:
    """A kind, its inputs' numbers ascending, their width and that of what comes out.

    To `rows` the inputs are layers of the event tower from 1 on, the last one last. To `features` they are what the event
    model's head reads (1) and the row that was read there (2).
    """

    kind: str
    output: Output
    layers: tuple[int, ...]
    reads: int
    width: int

    @classmethod
    def of(cls, kind: str, drafter: EventGptConfig, width: int, output: Output = "rows") -> AdapterConfig:
        """Between an event model and a language model of a width; BadInput for an unknown kind."""
        check_known(f"adapter to {output}", [kind], kinds_to(output))
        several = KINDS[kind].several
        if output == "features":
            return cls(kind, output, (1, 2) if several else (1,), drafter.language.hidden_size, width)
        last = drafter.vision.num_hidden_layers
        layers = tuple(range(max(1, last - LAST_LAYERS + 1), last + 1)) if several else (last,)
        return cls(kind, output, layers, drafter.vision.hidden_size, width)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        return {**asdict(self), "layers": list(self.layers)}

    @classmethod
    def from_json(cls, data: fields.Fields) -> AdapterConfig:
        """The config of an adapter's folder; BadField for what can be none."""
        kind: Any = data.get("kind")
        output: Any = data.get("output")
        fields.require(data, "output", output in get_args(Output), " or ".join(get_args(Output)))
        fields.require(data, "kind", kind in kinds_to(output), f"one of {', '.join(kinds_to(output))}")
        layers = fields.ascending(data, "layers", 1, "ascending inputs, from 1")
        reads, width = (fields.whole(data, name, 1, LARGEST) for name in ("reads", "width"))
        fields.require(data, "width", width % HEADS == 0, f"a multiple of {HEADS}")
        return cls(kind, output, layers, reads, width)

    def check(self, drafter: EventGptConfig, width: int) -> None:
        """BadField unless it is one for this event model and a language model of this width."""
        data, own = self.as_json(), AdapterConfig.of(self.kind, drafter, width, self.output)
        fields.require(data, "reads", self.reads == own.reads, f"{own.reads}, the event model's width there")
        fields.require(data, "width", self.width == width, f"{width}, the target's hidden_size")
        fields.require(data, "layers", self.layers == own.layers, f"{list(own.layers)} of this event model")


class Adapter(nn.Module):
    """Inputs [B, T, C] each (to features also [T, C]) -> what the target's language model reads, [B, T, D]."""

    def __init__(self, config: AdapterConfig) -> None:
        super().__init__()
        self.config, kind = config, KINDS[config.kind]
        inner = -(-config.width // kind.narrow)
        together = len(config.layers) * inner
        self.norms = nn.ModuleList(nn.LayerNorm(config.reads) for _ in config.layers)
        self.enter = nn.ModuleList(Linear(config.reads, inner) for _ in config.layers)
        self.gate = Linear(together, together) if len(config.layers) > 1 else None
        self.blocks = nn.ModuleList(kind.blocks(inner))
        self.leave = Linear(inner, config.width) if self.blocks else None
        self.next = Linear(config.width, config.width) if kind.foresees else None

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return self.project(self.hidden(layers))

    def hidden(self, layers: Sequence[Tensor]) -> Tensor:
        """Rows before the last product, [B, T, D]."""
        entered: list[Tensor] = [e(norm(layer)) for e, norm, layer in zip(self.enter, self.norms, layers, strict=True)]
        rows = entered[0]
        if self.gate is not None:
            shares = self.gate(torch.cat(entered, -1)).unflatten(-1, (len(entered), -1)).softmax(-2)
            rows = (shares * torch.stack(entered, -2)).sum(-2)
        for block in self.blocks:
            rows = block(rows)
        return rows

    def project(self, hidden: Tensor) -> Tensor:
        """The last product: what the target's language model reads, [B, T, D]."""
        rows: Tensor = hidden if self.leave is None else self.leave(hidden)
        return rows

    def predict_next(self, hidden: Tensor) -> Tensor | None:
        """Every row's prediction of the next one, [B, T, D], of a kind that learns to; else None."""
        return None if self.next is None else self.next(hidden)


def pooled_layers(model: EventGpt, pixels: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """Event pictures float [B * images, 3, S, S] -> layers of the tower, pooled as the event model pools what it reads: each
    [B, images + tokens, C]."""
    return [model.pooled(layer) for layer in model.tower.outputs(pixels, layers)]


def laid_out(rows: Tensor, config: EventGptConfig) -> Tensor:
    """Rows [B, K, T, D] of a tower's K frames as an event model lays out its own, [B, images + tokens, D]: for every event
    picture the mean over the places of the frame nearest in time, then for every place of the event tower the mean over the
    frames there."""
    count, images = rows.shape[1], config.images
    nearest = [min(count - 1, round((image + 0.5) / images * count - 0.5)) for image in range(images)]
    return torch.cat((rows[:, nearest].mean(2), on_grid(rows.mean(1), config.vision.tokens)), 1)


def on_grid(rows: Tensor, tokens: int) -> Tensor:
    """Rows [B, T, D] of a tower, of its class token and a square of patches, at the places of another one, [B, tokens, D]:
    bilinear where their squares differ, since both look at the same scene."""
    if rows.shape[1] == tokens:
        return rows
    side, wanted = (math.isqrt(count - 1) for count in (rows.shape[1], tokens))
    grid = rows[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    placed = F.interpolate(grid.float(), (wanted, wanted), mode="bilinear", antialias=True).to(rows.dtype)
    return torch.cat((rows[:, :1], placed.flatten(2).transpose(1, 2)), 1)
