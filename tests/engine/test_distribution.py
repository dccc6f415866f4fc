"""The processed distribution is what transformers' processors make of the logits, in their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eventspec.core import Sampling
from eventspec.engine.distribution import plain_greedy, processed

V = 60


def theirs(logits: torch.Tensor, path: list[int], s: Sampling) -> torch.Tensor:
    chain = LogitsProcessorList()
    if s.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.banned_ids:
        chain.append(SuppressTokensLogitsProcessor(list(s.banned_ids)))
    chain.append(TemperatureLogitsWarper(s.temperature))
    if s.top_k:
        chain.append(TopKLogitsWarper(s.top_k))
    if s.top_p < 1:
        chain.append(TopPLogitsWarper(s.top_p))
    if s.min_p:
        chain.append(MinPLogitsWarper(s.min_p))
    return chain(torch.tensor([path], dtype=torch.long), logits[None].clone())[0].softmax(-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6),
        Sampling(temperature=1.0, top_k=1),
        Sampling(temperature=1.0, top_k=7),
        Sampling(temperature=1.0, top_k=V + 5),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=1.0, top_p=1e-9),
        Sampling(temperature=1.0, min_p=0.05),
        Sampling(temperature=1.0, repetition_penalty=1.4),
        Sampling(temperature=1.0, repetition_penalty=0.7),
        Sampling(temperature=1.0, banned_ids=(3, 4)),
        Sampling(temperature=1.3, top_k=30, top_p=0.8, min_p=0.02, repetition_penalty=1.2, banned_ids=(0, 59)),
    ],
    ids=repr,
)
def test_processing_equals_transformers(sampling: Sampling, seed: int) -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    path = [5, 3, 5, 59, 11]
    mine = processed(logits, path, sampling)
    assert mine.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(mine, theirs(logits, path, sampling).numpy(), atol=1e-10)


def test_temperature_zero_is_one_hot_at_the_first_best_token() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0])
    assert processed(logits, [], Sampling()).tolist() == [0, 1, 0, 0]
    assert int(logits.argmax()) == 1  # the greedy shortcut breaks ties the same way


def test_a_low_temperature_comes_close_to_greedy_without_overflow() -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(0)) * 30
    assert processed(logits, [], Sampling(temperature=1e-5)).argmax() == int(logits.argmax())


def test_penalty_and_bans_act_at_temperature_zero_too() -> None:
    logits = torch.tensor([1.0, 3.0, 2.9, -1.0])
    assert processed(logits, [1], Sampling(repetition_penalty=2.0)).argmax() == 2
    assert processed(logits, [], Sampling(banned_ids=(1, 2))).argmax() == 0
    assert not plain_greedy(Sampling(repetition_penalty=2.0))
    assert plain_greedy(Sampling(banned_ids=(1,)))
    assert plain_greedy(Sampling(top_k=5, top_p=0.3, min_p=0.2))


def test_processing_leaves_the_logits_alone() -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = logits.clone()
    processed(logits, [1, 2], Sampling(temperature=0.5, top_k=3, repetition_penalty=2.0, banned_ids=(9,)))
    assert torch.equal(logits, before)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    kept = [int((processed(logits, [], Sampling(temperature=1.0, top_p=p)) > 0).sum()) for p in (0.39, 0.41, 0.69, 0.71, 0.95)]
    assert kept == [1, 2, 2, 3, 4]
    assert all(a <= b for a, b in pairwise(kept))
