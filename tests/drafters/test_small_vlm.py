"""A small model behind the target's vision encoder: lossless with any weights, and it sees what it is meant to see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from eventspec.core import Drafter, Media, Request, Sampling, TappedPrompt, Trace
from eventspec.drafters.heads.massv import Pruned, SmallConfig, SmallVlm, SmallVlmDrafter
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.text import StopDetector

SIZES = LlamaConfig(40, 16, 24, 3, 2, 1, max_position_embeddings=128)
SMALL = replace(SIZES, hidden_size=8, num_hidden_layers=2, tie_word_embeddings=True)
END = 3


def randomised(module: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.6, generator=generator)
    return module.double().requires_grad_(False).eval()


def target(seed: int = 0) -> LanguageTarget:
    language = randomised(Llama(SIZES), seed)
    picture = torch.randn(20, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def reading(question: str) -> Prompt:
        before, after = ids(question)
        return Prompt(torch.cat((language.embed(torch.tensor(before)), picture, language.embed(torch.tensor(after)))), (2, 22))

    return LanguageTarget(TextEncoder(language, reading))


def ids(question: str) -> tuple[list[int], list[int]]:
    return [1, 5], [int(word) for word in question.split()]


def drafter(model: LanguageTarget, pruned: bool, seed: int = 1) -> SmallVlmDrafter:
    small = randomised(SmallVlm(SmallConfig(SMALL, 16)), seed)
    return SmallVlmDrafter("eagle", small, ids, END, Pruned(model.language, 0.2, 1) if pruned else None)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def answered(model: LanguageTarget, by: Drafter | None, request: Request) -> tuple[list[int], Trace]:
    trace, policy = Trace(), DraftPolicy(max_nodes=20, node_cost=1e-9, level_cost=0.0)
    workers, stop = Workers("one"), StopDetector(request.sampling.stop_ids)
    found = run(Decoding(Asking(model, request, stop, Drafts((), (by,)), policy), workers, trace), workers)
    return found.token_ids, trace


@pytest.mark.parametrize("pruned", [False, True])
def test_it_never_changes_the_answer(pruned: bool) -> None:
    drafted = 0
    for seed in range(3):
        model = target(seed)
        by = drafter(model, pruned)
        for sampling in (Sampling(max_new_tokens=24, stop_ids=(END,)), Sampling(1.0, max_new_tokens=20, seed=seed)):
            request = Request(Media(), "9 2 14 7", sampling)
            found, trace = answered(model, by, request)
            assert found == answered(model, None, request)[0]
            assert not trace.notes
            drafted += trace.drafted
    assert drafted > 0


@pytest.mark.parametrize("pruned", [False, True])
def test_its_prompt_is_the_targets_in_its_own_rows(pruned: bool) -> None:
    model = target()
    by = drafter(model, pruned)
    rows = model.encoder.make("9 2 14 7").rows
    features = torch.randn(len(rows), 16, dtype=torch.float64)
    prompt = by.prompt("9 2 14 7", TappedPrompt(rows, features, (2, 22))).rows
    before, after = ids("9 2 14 7")
    seen = len(prompt) - len(before) - len(after)
    assert seen == (4 if pruned else 20)
    torch.testing.assert_close(prompt[:2], by.model.language.embed(torch.tensor(before)))
    torch.testing.assert_close(prompt[-4:], by.model.language.embed(torch.tensor(after)))
    every = by.head.projected(rows[2:22])
    assert all(bool((every == row).all(1).any()) for row in prompt[2:-4])
    if not pruned:
        torch.testing.assert_close(by.head.rows(torch.tensor([*before, *[-1] * 20, *after]), rows), prompt)
