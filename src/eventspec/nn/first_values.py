"""The numbers a parameter has before training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def first_values(parameter: Tensor, values: Callable[[], Tensor]) -> None:
    """Fill a parameter with `values()` of its shape. One on the meta device, whose numbers come from a checkpoint, stays as it
    is: arithmetic there imports torch's compiler, which takes a second or two."""
    if not parameter.is_meta:
        with torch.no_grad():
            parameter.copy_(values())
