"""Modules that map what an event model computes to what a target's language model reads; both models stay as they are.

Output `rows`: features of the event tower become visual rows of the target, laid out as EventGPT's: one a picture (means over
its places), then one a place (means over the pictures). Output `tower`: they become features of the target's tower, frame by
frame, which its own projector makes all of its visual rows of. Output `features`: what the event model computes at a token
becomes what the target's own head reads, so that the next token is named with the target's embeddings.

linear: one product. slim: two with a ReLU between, through a sixteenth of the width (4096-256-4096, the early notes' shape, 2 M
parameters). bottleneck, blocks, wide: residual MLPs (one narrow, three narrow, three wide: the L1, L2 and L3 of earlier work).
attention: rows attend to each other; causal: to earlier ones only, and each also learns to predict the next. cross: rows
attend to a learned bank; cached: to a bank and, where the target has seen the frames already, to its own visual rows, as
DREAM's drafter (arXiv 2505.19201) attends to features of the target. fused: several inputs (layers of the tower; a token's
feature and its embedding), mixed by a gate for every row and channel. autoregressive: slim, and a product that joins what it
wrote with the feature before, so that features follow each other; the early notes' form of EAGLE's (2401.15077), which reads a
token and has a decoder layer between. constant: a control that sees no event and learns one row for all places.
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
from eventspec.models.video_llava import VideoLlavaConfig
from eventspec.nn.linear import Linear

Output = Literal["rows", "tower", "features"]
PROMPTED: tuple[Output, ...] = ("rows", "tower")
"""Outputs that stand in a prompt in the place of the target's own visual rows."""
Reads = Literal["last", "penultimate", "levels"]
HEADS = 4
LARGEST = 1 << 16
"""Bound of a width."""
BANK = 64
"""Rows of the bank that kind cross looks at."""
CONTROL = "constant"
ROLLED = 6
"""Features that follow each other without a token between: five to eight, by the early notes."""
LAST_LAYERS = 3
"""Of the tower, that `fused` reads."""


Looked = tuple[Tensor, Tensor]
"""Keys and values [..., M, HEADS, D / HEADS] of what rows look at."""


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
    """[..., T, D] -> [..., T, D]: every row looks at a learned bank, then a residual MLP. One that `looks` is also given rows
    [..., M, D] of the target, where they are there."""

    def __init__(self, width: int, inner: int, looks: bool = False) -> None:
        super().__init__()
        self.norm, self.look = nn.LayerNorm(width), nn.LayerNorm(width) if looks else None
        self.bank = nn.Parameter(torch.empty(BANK, width))
        self.query = Linear(width, width)
        self.keys_values = Linear(width, 2 * width)
        self.out = Linear(width, width)
        self.mlp = Residual(width, inner)

    def looked(self, seen: Tensor | None = None) -> Looked:
        """What rows look at: the bank, and what the target has seen, [..., M, D]."""
        rows: Tensor = self.bank
        if self.look is not None and seen is not None:
            own = self.look(seen)
            rows = torch.cat((rows.to(own.dtype).expand(*own.shape[:-2], -1, -1), own), -2)
        keys, values = self.keys_values(rows).unflatten(-1, (2, HEADS, -1)).unbind(-3)
        return keys, values

    def forward(self, rows: Tensor, looked: Looked | None = None) -> Tensor:
        queries = self.query(self.norm(rows)).unflatten(-1, (HEADS, -1))
        keys, values = looked or self.looked()
        near = torch.einsum("...thd,...mhd->...thm", queries, keys) / queries.shape[-1] ** 0.5
        found = torch.einsum("...thm,...mhd->...thd", near.softmax(-1), values)
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
    """How an adapter of a kind is made for rows of a width: its blocks, whether it reads several inputs, what it can write,
    whether each row also learns to predict the next, whether it looks at the target's rows, and whether its features follow
    each other; `narrow`: what the width is divided by between the first product and the last."""

    blocks: Callable[[int], list[nn.Module]]
    several: bool = False
    outputs: tuple[Output, ...] = get_args(Output)
    foresees: bool = False
    narrow: int = 1
    looks: bool = False
    rolls: bool = False


KINDS = {
    "linear": Kind(lambda width: []),
    "slim": Kind(lambda width: [nn.ReLU()], narrow=16),
    "bottleneck": Kind(lambda width: [Residual(width, width // 2)]),
    "blocks": Kind(lambda width: [Residual(width, width // 2) for _ in range(3)]),
    "wide": Kind(lambda width: [Residual(width, 4 * width) for _ in range(3)]),
    "attention": Kind(lambda width: [Attending(width, 2 * width, False) for _ in range(2)], outputs=PROMPTED),
    "causal": Kind(lambda width: [Attending(width, 2 * width, True) for _ in range(2)], outputs=("rows",), foresees=True),
    "cross": Kind(lambda width: [Crossing(width, 2 * width) for _ in range(2)]),
    "cached": Kind(
        lambda width: [Crossing(width, 2 * width, looks=True) for _ in range(2)], outputs=("rows", "features"), looks=True
    ),
    "fused": Kind(lambda width: [Residual(width, 2 * width) for _ in range(2)], several=True),
    "autoregressive": Kind(lambda width: [nn.ReLU()], outputs=("features",), narrow=16, rolls=True),
    CONTROL: Kind(lambda width: [Constant(width)]),
}


def kinds_to(output: Output) -> list[str]:
    """The kinds that can write an output."""
    return [name for name, own in KINDS.items() if output in own.outputs]


@dataclass(frozen=True)
class AdapterConfig:
    """A kind, its inputs' numbers ascending, their width and that of what comes out.

    To `rows` and `tower` the inputs are layers of the event tower from 1 on, the last one last. To `features` they are what the
    event model's head reads (1), the row that was read there (2), and what its n-th layer gives there (2 + n).
    """

    kind: str
    output: Output
    layers: tuple[int, ...]
    reads: int
    width: int

    @classmethod
    def of(
        cls, kind: str, drafter: EventGptConfig, width: int, output: Output = "rows", reads: Reads = "last"
    ) -> AdapterConfig:
        """From an event model to rows of a width, see `width_to`; BadInput for an unknown kind. `reads`, to features: what the
        head reads, the layer before the last one, or a low, a middle and the last one (EAGLE-3's fusion, 2503.01840)."""
        check_known(f"adapter to {output}", [kind], kinds_to(output))
        several = KINDS[kind].several
        if output == "features":
            last = drafter.language.num_hidden_layers
            levels = {1, *(2 + n for n in (min(2, last - 1), last // 2) if 0 < n < last)}
            inputs = {"last": (1, 2) if several else (1,), "penultimate": (1 + last,), "levels": tuple(sorted(levels))}
            return cls(kind, output, inputs[reads], drafter.language.hidden_size, width)
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

    def check(self, drafter: EventGptConfig, target: VideoLlavaConfig) -> None:
        """BadField unless it is one between this event model and this target."""
        width, data = width_to(target, self.output), self.as_json()
        reads = get_args(Reads) if self.output == "features" else ("last",)
        several = [AdapterConfig.of(self.kind, drafter, width, self.output, one) for one in reads]
        layers = list(dict.fromkeys(own.layers for own in several))
        fields.require(data, "reads", self.reads == several[0].reads, f"{several[0].reads}, the event model's width there")
        fields.require(data, "width", self.width == width, f"{width}, the target's hidden_size")
        known = " or ".join(str(list(one)) for one in layers)
        fields.require(data, "layers", self.layers in layers, f"{known} of this event model")

    @property
    def taps(self) -> tuple[int, ...]:
        """To features, the layers of the event model's language model that it reads beside the last one's output."""
        return tuple(number - 2 for number in self.layers if number > 2) if self.output == "features" else ()


def width_to(target: VideoLlavaConfig, output: Output) -> int:
    """The width of what an adapter to an output writes for a target."""
    return target.vision.hidden_size if output == "tower" else target.language.hidden_size


class Adapter(nn.Module):
    """Inputs [B, T, C] each (to features also [T, C]) -> what the target computes there, [B, T, D]. `looked`: what a kind that
    looks at visual rows of the target makes of them, see `look`."""

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
        self.fusion = Linear(2 * config.width, config.width) if kind.rolls else None

    def forward(self, layers: Sequence[Tensor], looked: Sequence[Looked] = ()) -> Tensor:
        return self.project(self.hidden(layers, looked))

    def look(self, seen: Tensor) -> list[Looked]:
        """Of visual rows of the target, [B, M, D] (or [M, D]), what every block looks at: the same for all that is written."""
        return [block.looked(seen) for block in self.blocks if isinstance(block, Crossing)]

    def rolled(self, layers: Sequence[Tensor], count: int) -> list[Tensor]:
        """Features of so many tokens after each row, [B, T, D] each: the first is the adapted one, each next one is joined
        from that and the one before. Of a kind that does not roll the first one alone."""
        found = [self(layers)]
        while self.fusion is not None and len(found) < count:
            found.append(self.fusion(torch.cat((found[0], found[-1]), -1)))
        return found

    def hidden(self, layers: Sequence[Tensor], looked: Sequence[Looked] = ()) -> Tensor:
        """Rows before the last product, [B, T, D]."""
        entered: list[Tensor] = [e(norm(layer)) for e, norm, layer in zip(self.enter, self.norms, layers, strict=True)]
        rows = entered[0]
        if self.gate is not None:
            shares = self.gate(torch.cat(entered, -1)).unflatten(-1, (len(entered), -1)).softmax(-2)
            rows = (shares * torch.stack(entered, -2)).sum(-2)
        for place, block in enumerate(self.blocks):
            rows = block(rows, looked[place]) if looked else block(rows)
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


def by_frame(layer: Tensor, images: int, frames: int, tokens: int) -> Tensor:
    """A layer of the event tower, of the pictures of each window, [B * images, T, C], at the moments and the places of a
    target's frames: [B * frames, tokens, C]. A frame between two pictures has its share of both."""
    windows = layer.unflatten(0, (-1, images))
    at = ((torch.arange(frames, device=layer.device) + 0.5) * images / frames - 0.5).clamp(0, images - 1)
    before = at.long().clamp_max(max(0, images - 2))
    share = (at - before).to(layer.dtype)[:, None, None]
    later = windows[:, (before + 1).clamp_max(images - 1)]
    return on_grid(torch.lerp(windows[:, before], later, share).flatten(0, 1), tokens)


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
