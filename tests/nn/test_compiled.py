"""The decoding pass really is TorchScript here: falling back to the function would cost speed silently."""

from __future__ import annotations

import torch

from eventspec.nn.decode import compiled


def test_the_decoding_pass_compiles() -> None:
    assert isinstance(compiled(), torch.jit.ScriptFunction)
