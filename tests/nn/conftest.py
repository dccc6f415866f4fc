"""Random tiny models. One thread: the tests compare numbers, and a machine's other cores belong to others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.cpu import products as layouts

TinyLlama = Callable[..., Llama]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, params=["rows", "columns", "packed"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every layout of weights, whichever this machine would use."""
    if request.param == "packed" and not layouts.onednn_works():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(layouts, "layout", lambda: request.param)
    return str(request.param)


def randomise(model: nn.Module, seed: int) -> None:
    """Every parameter, norms included, so that none can hide behind its initial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.25, generator=generator)
            if "norm" in name and not name.endswith("bias"):
                parameter.add_(1.0)


@pytest.fixture(scope="session")
def tiny_llama() -> TinyLlama:
    """tiny_llama(kv_heads=4, tied=False, seed=0, context=64): four heads of eight over two layers."""

    def make(kv_heads: int = 4, tied: bool = False, seed: int = 0, context: int = 64) -> Llama:
        config = LlamaConfig(50, 32, 48, 2, 4, kv_heads, max_position_embeddings=context, tie_word_embeddings=tied)
        model = Llama(config).requires_grad_(False).eval()
        randomise(model, seed)
        return model

    return make


@pytest.fixture(scope="session")
def randomised() -> Callable[[nn.Module, int], None]:
    return randomise
