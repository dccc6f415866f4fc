"""What differs between devices: how a decoder's weights are laid out, and what a device's attention knows.

`nn.cpu` and `nn.cuda` each have a class of this kind; `nn.runner` runs the same passes (`nn.decode`) on either.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from eventspec.nn.weights import LayerWeights


class LaidOut(NamedTuple):
    """The layers for some number of rows; `packed`: their matrices are, in oneDNN's layout. query, remembered: the last layer's
    rows for queries, and for keys and values, in that layout (None: they are slices of its matrix)."""

    layers: list[LayerWeights]
    packed: bool
    query: Tensor | None = None
    remembered: Tensor | None = None


class Backend(Protocol):
    """A decoder's layers on one kind of device; their weights are final."""

    plain: list[LayerWeights]
    """As `F.linear` takes them."""
    chains: bool
    """Whether attention takes several rows after cached ones for a chain where no mask says otherwise."""

    def weights(self, rows: int) -> LaidOut:
        """In the layout that is fastest for so many rows."""

    def whole(self, rows: int) -> int:
        """A number of rows, `rows` or some 15 more, whose products are not filled up with rows of zeros."""
