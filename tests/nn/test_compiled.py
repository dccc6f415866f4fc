"""The decoding pass really is TorchScript here: falling back to the function would cost speed silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eventspec.nn.decode import block, compiled, decode, decode_together
from eventspec.nn.draft import crossed_read, grow


@pytest.mark.parametrize("function", [decode, decode_together, block, grow, crossed_read])
def test_the_hot_path_compiles(function: Callable[..., Any]) -> None:
    assert isinstance(compiled(function), torch.jit.ScriptFunction)
