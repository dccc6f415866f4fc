"""Linear layers whose weights are laid out for inference on the device at hand: `nn.cpu.products` on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.nn.cpu import products
from eventspec.nn.cpu.products import Layout

Model = TypeVar("Model", bound=nn.Module)


class Linear(nn.Linear):
    """As nn.Linear, exact in fp32. In evaluation mode its weight is taken to be final: it is laid out on first use."""

    reduced = False
    """Whether its products may be of bfloat16, see `in_reduced_precision`."""
    _laid_out: Tensor | None = None
    _laid_out_from: tuple[int, Layout, bool] = (0, "rows", False)

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, which lays its weight out itself: oneDNN's layout cannot be copied."""
        return {**self.__dict__, "_laid_out": None}

    @property
    def in_bfloat16(self) -> bool:
        """Whether its products are of bfloat16, whatever the number of rows."""
        return self.reduced and products.fp32_on_cpu(self.weight) and products.bfloat16_pays()

    @property
    def packs(self) -> bool:
        """Whether `final` gives a weight in oneDNN's layout."""
        return self.in_bfloat16 or products.usable_for(self.weight)

    def final(self) -> Tensor:
        """The weight [O, I] in the layout that is fastest here; packed where `packs` says so."""
        weight, reduced = self.weight.detach(), self.in_bfloat16
        if not products.fp32_on_cpu(weight) or (products.layout() == "rows" and not reduced):
            return weight
        made_from = (weight.data_ptr(), products.layout(), reduced)
        if self._laid_out is None or self._laid_out_from != made_from:
            self._laid_out = products.packed_weight(weight.to(torch.bfloat16)) if reduced else products.laid_out(weight)
            self._laid_out_from = made_from
        return self._laid_out

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        if self.training or torch.is_grad_enabled() or x.dtype != self.weight.dtype or not products.fp32_on_cpu(x):
            return F.linear(x, self.weight, self.bias)
        if not self.packs:
            return F.linear(x, self.final(), self.bias)
        rows = x.flatten(0, -2) if x.dim() > 2 else x
        if x.dim() < 2 or (len(rows) < products.FEW_ROWS and not self.in_bfloat16):
            return F.linear(x, self.weight, self.bias)
        return products.product(rows, self.final(), True, self.bias).view(*x.shape[:-1], -1)

    def train(self, mode: bool = True) -> Linear:
        """As nn.Module.train; training forgets the laid out weight."""
        if mode:
            self._laid_out = None
        super().train(mode)
        return self


class Projector(nn.Module):
    """The two layers between a vision tower and a language model (LLaVA 1.5: linear, erf GELU, linear): [..., vision width] ->
    [..., language width]."""

    def __init__(self, vision: int, language: int) -> None:
        super().__init__()
        self.linear_1 = Linear(vision, language)
        self.linear_2 = Linear(language, language)

    def forward(self, features: Tensor) -> Tensor:
        projected: Tensor = self.linear_2(self.inner(features))
        return projected

    def inner(self, features: Tensor) -> Tensor:
        """What the second layer reads, [..., language width]: after it everything is linear."""
        return F.gelu(self.linear_1(features))


def in_reduced_precision(model: Model) -> Model:
    """A model on the same parameters, which are final, whose products are of bfloat16 where `bfloat16_pays`: for drafts, which
    may be wrong. What lies between the products stays in fp32."""
    products.bfloat16_pays()  # timed now, and not within the first answer
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = deepcopy(model, shared)
    for part in twin.modules():
        if isinstance(part, Linear):
            part.reduced = True
    return twin


def unpacked(layer: nn.Linear) -> Tensor:
    """Its weight [O, I] as `F.linear` is fastest with it: never packed, and of a module of torch's own as it is."""
    return layer.final() if isinstance(layer, Linear) and not layer.packs else layer.weight.detach()


def first_values(parameter: Tensor, values: Callable[[], Tensor]) -> None:
    """Fill a parameter with `values()` of its shape. One on the meta device, whose numbers come from a checkpoint, stays as it
    is: arithmetic there imports torch's compiler, which takes a second or two."""
    if not parameter.is_meta:
        with torch.no_grad():
            parameter.copy_(values())
