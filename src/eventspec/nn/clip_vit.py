"""CLIP's vision transformer in plain torch, each image on its own. Checked against transformers' CLIPVisionModel to 1e-4
in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn.cpu.products import product
from eventspec.nn.decode import compiled
from eventspec.nn.linear import Linear
from eventspec.nn.weights import Sizes, VisionWeights


@dataclass(frozen=True)
class ClipConfig:
    """Sizes of a vision tower, in the words of transformers' CLIPVisionConfig."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int
    layer_norm_eps: float = 1e-5
    hidden_act: str = "quick_gelu"

    @property
    def tokens(self) -> int:
        """Rows per image: the patches and CLS."""
        return (self.image_size // self.patch_size) ** 2 + 1


class Block(nn.Module):
    """The weights of a pre-norm transformer block with biases."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.LayerNorm(width, config.layer_norm_eps)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.norm2 = nn.LayerNorm(width, config.layer_norm_eps)
        self.fc1 = Linear(width, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, width)

    def weights(self, final: bool) -> VisionWeights:
        """For `vision_pass`; `final`: in the layout that is fastest here."""
        first, second, parts = self.norm1, self.norm2, (self.qkv, self.out, self.fc1, self.fc2)
        qkv, out, fc1, fc2 = ((part.final() if final else part.weight, part.bias) for part in parts)
        return VisionWeights(first.weight, first.bias, *qkv, *out, second.weight, second.bias, *fc1, *fc2)


def vision_pass(x: Tensor, layers: list[VisionWeights], kept: list[int], sizes: Sizes, quick: bool) -> list[Tensor]:
    """x [B, T, D] through several blocks in turn: the outputs [B, T, D] of the blocks `kept`, counted from 1; 0 is what goes
    into the first. As one TorchScript call it does not hold Python's lock: the other lane goes on meanwhile."""
    found, width, heads, eps, packed = [x], x.size(2), sizes.heads, sizes.eps, sizes.packed
    for number, layer in enumerate(layers):
        normed = torch.layer_norm(x, [width], layer.norm1, layer.norm1_bias, eps)
        mixed = product(normed, layer.qkv, packed, layer.qkv_bias)
        parts = mixed.unflatten(-1, [3, heads, width // heads]).permute(2, 0, 3, 1, 4)
        attended = torch._C._nn.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + product(attended.transpose(1, 2).flatten(2), layer.out, packed, layer.out_bias)
        inner = product(torch.layer_norm(x, [width], layer.norm2, layer.norm2_bias, eps), layer.fc1, packed, layer.fc1_bias)
        inner = inner * torch.sigmoid(1.702 * inner) if quick else F.gelu(inner)
        x = x + product(inner, layer.fc2, packed, layer.fc2_bias)
        if number + 1 in kept:
            found.append(x)
    return found if 0 in kept else found[1:]


class ClipViT(nn.Module):
    """Patches, CLS and positions through pre-norm blocks."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.config = config
        self.cls = nn.Parameter(torch.zeros(config.hidden_size))
        self.patch = nn.Conv2d(3, config.hidden_size, config.patch_size, config.patch_size, bias=False)
        self.positions = nn.Parameter(torch.zeros(config.tokens, config.hidden_size))
        self.pre_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.post_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)  # CLIP has it, our models do not apply it

    def forward(self, pixels: Tensor, layer: int = -1) -> Tensor:
        """pixels float [B, 3, S, S] -> the output of encoder block `layer` (-1 last, -2 the one before), [B, tokens, D].

        As in CLIP's `hidden_states`: CLS at row 0 and no final norm. Later blocks are not run at all.
        """
        return self.outputs(pixels, (len(self.blocks) + 1 + layer,))[0]

    def outputs(self, pixels: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
        """As `forward`, of several blocks: `layers` ascending from 1, 0 is what goes into the first."""
        size = self.config.patch_size
        batch, _, height, width = pixels.shape
        # Equal to the strided convolution, and on a CPU two to three times faster: one matrix product over unfolded patches.
        patches = pixels.unflatten(3, (width // size, size)).unflatten(2, (height // size, size))
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, 3 * size * size)
        x: Tensor = F.linear(patches, self.patch.weight.flatten(1))
        x = torch.cat((self.cls.to(x.dtype).expand(batch, 1, -1), x), 1) + self.positions
        x = self.pre_norm(x)
        at_once = not self.training and not torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)
        blocks, final = cast("list[Block]", self.blocks[: layers[-1]]), at_once and x.dtype == self.cls.dtype
        weights = [block.weights(final) for block in blocks]
        config, packed = self.config, final and all(block.qkv.packs for block in blocks)
        sizes = Sizes(config.num_attention_heads, config.layer_norm_eps, packed)
        through = compiled(vision_pass) if at_once else vision_pass
        found: list[Tensor] = through(x, weights, list(layers), sizes, config.hidden_act == "quick_gelu")
        return found
