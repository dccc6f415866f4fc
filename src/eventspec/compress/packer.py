"""A projector that packs: a frame's patches become one row for every `scale` x `scale` of them (TokenPacker, 2407.02392).

A query is a place of the down-sampled grid of the layer that the target reads. It attends to the patches of its own square in
several layers of the tower, adds what it finds and goes through an MLP to the language model's width. Unlike the paper's, it
starts as the target's own projector on the down-sampled grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.errors import check_scale
from eventspec.models import configuration as fields
from eventspec.models.prompt import projected
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig
from eventspec.nn import Projector
from eventspec.nn.linear import Linear

LAYERS = 4
"""Layers of the tower that keys and values are made of, as in the paper."""
LARGEST = 1023
"""Bound of a scale."""


@dataclass(frozen=True)
class PackerConfig:
    """Patches a side that become one row, and the tower's layers that are read, ascending from 1 (0: what goes into it); the
    last one is the layer that the target reads."""

    scale: int
    layers: tuple[int, ...]

    @classmethod
    def of(cls, target: VideoLlavaConfig, scale: int) -> PackerConfig:
        """For a target: evenly spaced layers up to the one it reads. BadInput for a scale that its grid does not have."""
        check_scale(scale, grid(target))
        last = read_layer(target)
        return cls(scale, tuple(sorted({last * part // LAYERS for part in range(1, LAYERS + 1)})))

    def as_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        return {"scale": self.scale, "layers": list(self.layers)}

    @classmethod
    def from_json(cls, data: fields.Fields) -> PackerConfig:
        """The config of a packer's folder; BadField for what can be none for any target."""
        scale = fields.whole(data, "scale", 2, LARGEST)
        return cls(scale, fields.ascending(data, "layers", 0, "ascending layers of the target's tower"))

    def check(self, target: VideoLlavaConfig) -> None:
        """BadField unless it is one for this target."""
        side, last, data = grid(target), read_layer(target), self.as_json()
        fields.require(data, "scale", side % self.scale == 0, f"a whole number that divides {side}")
        fields.require(data, "layers", self.layers[-1] == last, f"them to end with {last}, which the target reads")


def grid(target: VideoLlavaConfig) -> int:
    """Patches on a side of a frame."""
    return target.vision.image_size // target.vision.patch_size


def read_layer(target: VideoLlavaConfig) -> int:
    """The tower's layer that the target reads, from 1."""
    return target.vision.num_hidden_layers + 1 + target.vision_layer


class Packer(nn.Module):
    """Layers of the tower, [K, tokens, C] each with CLS first -> rows [K, 1 + (G / scale) ** 2, D], squares in raster order.

    CLS stays, ahead of its frame's rows: it is no place of the grid, so no query covers it, and the frozen language model has
    learned to find it where a frame begins. It goes through the MLP alone.
    """

    def __init__(self, config: PackerConfig, target: VideoLlavaConfig) -> None:
        super().__init__()
        width, read = target.vision.hidden_size, len(config.layers) * target.vision.hidden_size
        self.config, self.side, self.heads = config, grid(target), target.vision.num_attention_heads
        self.asking_norm = nn.LayerNorm(width)
        self.asking = Linear(width, width)
        self.reading_norm = nn.LayerNorm(read)
        self.reading = Linear(read, width)
        self.keys_values = Linear(width, 2 * width)
        self.out = Linear(width, width)
        self.projector = Projector(width, target.language.hidden_size)

    def begin_as(self, target: VideoLlava) -> None:
        """Start as the target's projector on the down-sampled grid: what the queries find has weight 0 yet."""
        self.projector.load_state_dict(target.projector.state_dict())
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        grids = layers[-1][:, 1:].transpose(1, 2).unflatten(2, (self.side, self.side))
        small = F.interpolate(grids.float(), scale_factor=1 / self.config.scale, mode="bilinear", align_corners=False)
        down = small.flatten(2).transpose(1, 2).to(layers[-1].dtype)
        queries = self._headed(self.asking(self.asking_norm(down))[:, :, None])
        patches = torch.cat([layer[:, 1:] for layer in layers], -1)
        inner = F.gelu(self.reading(self.reading_norm(patches)))
        keys, values = (self._headed(self.squares(part)) for part in self.keys_values(inner).chunk(2, -1))
        attended = F.scaled_dot_product_attention(queries, keys, values)
        found = self.out(attended.transpose(-2, -3).flatten(-2)[:, :, 0])
        rows: Tensor = self.projector(torch.cat((layers[-1][:, :1], down + found), 1))
        return rows

    def squares(self, patches: Tensor) -> Tensor:
        """[K, G * G, C] in raster order -> [K, (G / scale) ** 2, scale ** 2, C], the squares in raster order."""
        scale = self.config.scale
        split = patches.unflatten(1, (self.side // scale, scale, self.side // scale, scale))
        squares: Tensor = split.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return squares

    def _headed(self, rows: Tensor) -> Tensor:
        """[..., T, C] -> [..., heads, T, C / heads]."""
        headed: Tensor = rows.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return headed


def packed_rows(model: VideoLlava, packer: Packer, pixels: Tensor) -> Tensor:
    """Frames float [K, 3, S, S] -> packed rows [K * rows, D] in frame order."""
    layers = model.tower.outputs(pixels, packer.config.layers)
    return projected(lambda last: packer(layers).flatten(0, 1), layers[-1])
