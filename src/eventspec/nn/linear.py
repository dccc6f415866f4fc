"""Matrix products on the fastest exact path of the machine.

On CPUs torch sends fp32 products to MKL, which on processors of other makers than its own uses no AVX512; oneDNN, which torch
also carries, does, and is faster still on a weight that was packed into its own layout once. Measured on one Zen 5 core
(AVX512), the products of an 8-layer decoder of width 192: 13 rows 1.14 ms through MKL, 0.68 ms packed; 540 rows 2.1 times
faster. Without AVX512 there is nothing to gain: on one Zen 3 core 13 rows take 3.7 ms either way, 540 rows 47 and 55 ms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_ROWS = 4
"""Below this many rows MKL's call is cheaper."""
_PACKED_FOR = 64
"""The row count that oneDNN is told to pack for; its layout is the same from 4 to 600 rows."""


def onednn_works() -> bool:
    """Whether this torch carries oneDNN's packed products."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        x = torch.ones(2, 4)
        packed = torch.ops.mkldnn._reorder_linear_weight(x, 2)
        return bool(torch.equal(torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), F.linear(x, x)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


_ONEDNN = torch.backends.cpu.get_cpu_capability() == "AVX512" and onednn_works()


def usable_for(weight: Tensor) -> bool:
    """Whether oneDNN's packed products are used: fp32 on a CPU that has AVX512."""
    return _ONEDNN and weight.dtype == torch.float32 and weight.device.type == "cpu"


def packed_weight(weight: Tensor) -> Tensor:
    """A weight [O, I] in oneDNN's layout, where `usable_for` it."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR)
    return packed


class Linear(nn.Linear):
    """As nn.Linear, exact in fp32. In evaluation mode its weight is taken to be final: it is packed on first use."""

    _packed: Tensor | None = None
    _packed_from = 0

    def packed(self) -> Tensor:
        """The weight in oneDNN's layout (itself where that cannot be used)."""
        if not usable_for(self.weight):
            return self.weight.detach()
        if self._packed is None or self._packed_from != self.weight.data_ptr():
            self._packed = packed_weight(self.weight)
            self._packed_from = self.weight.data_ptr()
        return self._packed

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        rows = x.shape[0] if x.dim() == 2 else x.numel() // x.shape[-1]
        if self.training or rows < FEW_ROWS or torch.is_grad_enabled() or x.dtype != self.weight.dtype or not usable_for(x):
            return F.linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed(), self.bias, "none", [], "")
        return product

    def train(self, mode: bool = True) -> Linear:
        """As nn.Module.train; training forgets the packed weight."""
        if mode:
            self._packed = None
        super().train(mode)
        return self
