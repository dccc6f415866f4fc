"""Weights by name, as the compiled passes take them. (No postponed annotations here: TorchScript reads these fields' types.)"""

from typing import List, NamedTuple, Optional  # noqa: UP035

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
    keys: List[Tensor]  # noqa: UP006
    values: List[Tensor]  # noqa: UP006
    start: int
    mask: Optional[Tensor]  # noqa: UP045
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
    shape: List[Tensor]  # noqa: UP006


class HeadWeights(NamedTuple):
    """A head on the target's features. reduction [D, 2 D] with its bias [D]: EAGLE-1; hidden_norm [D]: EAGLE-3, `norm_residual`
    if the residual is normed too; cross: DREAM; none of the three: a language model, with which only machine code drafts.
    out_norm [D] before `head` [V', D]; ids int64 [V'] of the head's rows, None: they are the target's."""

    layers: List[LayerWeights]  # noqa: UP006
    head: Tensor
    heads: int
    eps: float
    reduction: Optional[Tensor] = None  # noqa: UP045
    bias: Optional[Tensor] = None  # noqa: UP045
    hidden_norm: Optional[Tensor] = None  # noqa: UP045
    norm_residual: bool = False
    cross: Optional[CrossWeights] = None  # noqa: UP045
    out_norm: Optional[Tensor] = None  # noqa: UP045
    ids: Optional[Tensor] = None  # noqa: UP045
