"""Weights by name, as the compiled passes take them, and what differs between devices: how a decoder's are laid out. (No
postponed annotations here: TorchScript reads these fields' types.)"""

from typing import NamedTuple, Protocol

from torch import Tensor


class LayerWeights(NamedTuple):
    """One decoder layer: norms [D], matrices [O, I]; or the same with matrices in oneDNN's layout."""

    input_norm: Tensor  # empty: none
    qkv: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Place(NamedTuple):
    """Where T new rows of one sequence go: `start` cached rows lie before them. cos, sin float [T, 1, head_dim] of their
    positions; keys and values of every layer [kv_heads, capacity, head_dim]; mask and causal as in `decode.attention`."""

    cos: Tensor
    sin: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    start: int
    mask: Tensor | None
    causal: int


class Sizes(NamedTuple):
    """Of layers: query heads, the norm's epsilon, and whether their matrices are `packed` in oneDNN's layout."""

    heads: int
    eps: float
    packed: bool


class VisionWeights(NamedTuple):
    """One block of a vision tower: norms and biases [D], matrices [O, I]; or the same with matrices in oneDNN's layout."""

    norm1: Tensor
    norm1_bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm2: Tensor
    norm2_bias: Tensor
    fc1: Tensor
    fc1_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor


class CrossWeights(NamedTuple):
    """What DREAM's crossing has besides the weights of a layer: norms [head_dim], gates [2] (after tanh), the final norm [D];
    the crossing's own rows for queries and those for keys and values, and the last layer's for keys and values."""

    query_norm: Tensor
    key_norm: Tensor
    gates: Tensor
    final_norm: Tensor
    queries: Tensor
    features: Tensor
    remembered: Tensor


class TreeGrowth(NamedTuple):
    """How a tree grows: the `width` likeliest children of a node, down to `levels`; see `draft.grow` for the others."""

    width: int
    levels: int
    floor: float
    mass: float
    end: int
    position: int
    shape: list[Tensor]


class HeadWeights(NamedTuple):
    """A head on the target's features. reduction [D, 2 D] with its bias [D]: EAGLE-1; hidden_norm [D]: EAGLE-3, `norm_residual`
    if the residual is normed too; cross: DREAM; none of the three: a language model, with which only machine code drafts.
    out_norm [D] before `head` [V', D]; ids int64 [V'] of the head's rows, None: they are the target's."""

    layers: list[LayerWeights]
    head: Tensor
    heads: int
    eps: float
    reduction: Tensor | None = None
    bias: Tensor | None = None
    hidden_norm: Tensor | None = None
    norm_residual: bool = False
    cross: CrossWeights | None = None
    out_norm: Tensor | None = None
    ids: Tensor | None = None


class LaidOut(NamedTuple):
    """The layers for some number of rows; `packed`: their matrices are, in oneDNN's layout. query, remembered: the last layer's
    rows for queries, and for keys and values, in that layout (None: they are slices of its matrix)."""

    layers: list[LayerWeights]
    packed: bool
    query: Tensor | None = None
    remembered: Tensor | None = None


class Backend(Protocol):
    """A decoder's layers on one kind of device; their weights are final. `nn.cpu` and `nn.cuda` each have a class of this kind,
    `nn.runner` runs the same passes (`nn.decode`) on either."""

    plain: list[LayerWeights]
    """As `F.linear` takes them."""
    chains: bool
    """Whether attention takes several rows after cached ones for a chain where no mask says otherwise."""

    def weights(self, rows: int) -> LaidOut:
        """In the layout that is fastest for so many rows."""

    def whole(self, rows: int) -> int:
        """A number of rows, `rows` or some 15 more, whose products are not filled up with rows of zeros."""
