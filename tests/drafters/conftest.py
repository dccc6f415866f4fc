"""Tiny real language models as drafters and targets. Their prompts are numbers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from eventspec.core import Media, Request, Sampling
from eventspec.drafters import LanguageDrafter
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.nn import Llama, LlamaConfig

END = 0


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def language_model(seed: int = 0, sure: float = 1.0) -> Llama:
    """A random Llama over 30 tokens in fp64; `sure` scales its logits."""
    with torch.inference_mode(False):
        config = LlamaConfig(30, 16, 24, 2, 4, 2, max_position_embeddings=80)
        model = Llama(config).double().requires_grad_(False).eval()
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.6, generator=generator)
        model.head.weight.mul_(sure)
        return model


def drafter_of(model: Llama, name: str = "tiny", natively: bool = False) -> LanguageDrafter:
    def reading(question: str) -> Prompt:
        return Prompt(model.embed(torch.tensor([int(word) for word in question.split()])), (0, 0))

    return LanguageDrafter(name, TextEncoder(model, reading), END, natively=natively)


@pytest.fixture(scope="session")
def model() -> Callable[..., Llama]:
    return language_model


@pytest.fixture(scope="session")
def drafting() -> Callable[..., LanguageDrafter]:
    return drafter_of


@pytest.fixture(scope="session")
def asked() -> Callable[..., Request]:
    """asked(ids, **sampling) -> a request whose prompt is these ids."""

    def make(ids: list[int], **sampling: object) -> Request:
        return Request(Media(), " ".join(map(str, ids)), Sampling(**sampling))  # type: ignore[arg-type]

    return make
