"""Matrix products on the fastest exact path of the machine.

On CPUs torch sends fp32 products to MKL, which on processors of other makers than its own runs at half their width;
oneDNN, which
torch also carries, uses it all. Measured on one Zen 5 core, 540 x 192 x 1024: 1.88 ms through MKL, 0.86 ms through oneDNN.
For fewer than about 16 rows MKL's call is cheaper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_FEW_ROWS = 12


def _onednn_works() -> bool:
    try:
        x = torch.ones(2, 4)
        return bool(torch.equal(torch.ops.mkldnn._linear_pointwise(x, x, None, "none", [], ""), F.linear(x, x)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


_ONEDNN = torch.backends.mkldnn.is_available() and _onednn_works()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch.nn.functional.linear: x [..., I], weight [O, I], bias [O] or None -> [..., O]; exact in fp32."""
    if _ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled():
        rows = x.shape[0] if x.dim() == 2 else x.numel() // x.shape[-1]
        if rows >= _FEW_ROWS:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            return product
    return F.linear(x, weight, bias)
