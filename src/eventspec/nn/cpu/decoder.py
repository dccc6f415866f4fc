"""A decoder's layers on a CPU: as they are for few rows, in oneDNN's layout for more where that is faster."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from eventspec.nn.backend import LaidOut
from eventspec.nn.cpu.products import FEW_ROWS, packed_weight, spare_rows
from eventspec.nn.layer import Layer, layer_weights
from eventspec.nn.linear import Linear
from eventspec.nn.weights import LayerWeights


class CpuLayers:
    """As `weights.Backend`."""

    chains = False

    def __init__(self, layers: Sequence[Layer]) -> None:
        first = layers[0]
        self.plain = [layer_weights(layer) for layer in layers]
        self.reduced, self.packed = first.qkv.in_bfloat16, LaidOut(self.plain, False)
        if first.qkv.packs:
            kind = torch.bfloat16 if self.reduced else self.plain[0].qkv.dtype
            own = layers[-1].qkv.weight.detach().to(kind).tensor_split([first.heads * first.head_dim])
            final = [layer_weights(layer, Linear.final) for layer in layers]  # each is laid out once
            self.packed = LaidOut(final, True, *(packed_weight(part) for part in own))

    def weights(self, rows: int) -> LaidOut:
        """As `Backend.weights`."""
        return LaidOut(self.plain, False) if rows < FEW_ROWS and not self.reduced else self.packed

    def whole(self, rows: int) -> int:
        """As `Backend.whole`; few rows stay as they are, since next to none are filled up."""
        return rows if not self.packed.packed or rows <= 64 else rows + spare_rows(rows)


def packed_layer(layer: LayerWeights, unused: Collection[str] = ()) -> LayerWeights:
    """The same with matrices in oneDNN's layout, but for those that are `unused`."""
    wanted = {"qkv", "out", "gate_up", "down"} - set(unused)
    return LayerWeights(**{name: packed_weight(part) if name in wanted else part for name, part in layer._asdict().items()})
