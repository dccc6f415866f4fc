"""The processed distribution is what transformers' processors make of the logits, in their order."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eventspec.core import BadInput, Sampling
from eventspec.engine.distribution import allowed, plain_greedy, processed

V = 60


class Odd:
    """A constraint: odd tokens behind an even number of tokens, and no token above 51."""

    def __repr__(self) -> str:
        return "Odd()"  # the same in every worker of a parallel run

    def __init__(self, path: tuple[int, ...] = ()) -> None:
        self.path = path

    def start(self) -> Odd:
        return self

    def mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.arange(52) % 2 != len(self.path) % 2

    def after(self, token: int) -> Odd:
        return Odd((*self.path, token))


NOT_PLAIN: dict[str, object] = {
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "logit_bias": {1: 1.0},
    "bad_words": ((1,),),
    "min_new_tokens": 1,
    "constraint": Odd(),
}


def changed(sampling: Sampling) -> list[Any]:
    return [f for f in fields(Sampling) if getattr(sampling, f.name) != getattr(Sampling(), f.name)]


def theirs(logits: torch.Tensor, path: list[int], s: Sampling) -> torch.Tensor:
    """transformers' processors, in the order in which its `generate` puts them."""
    chain = LogitsProcessorList()
    if s.logit_bias:
        chain.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in s.logit_bias.items()]))
    if s.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.bad_words:
        chain.append(NoBadWordsLogitsProcessor([list(word) for word in s.bad_words]))
    if s.min_new_tokens:
        chain.append(MinNewTokensLengthLogitsProcessor(0, s.min_new_tokens, list(s.stop_ids)))
    if s.constraint:
        chain.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: np.flatnonzero(Odd(tuple(ids)).mask()).tolist(), 1))
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
        Sampling(temperature=1.0, logit_bias={3: 4.0, 11: -2.5}),
        Sampling(temperature=1.0, logit_bias={5: -9.0, 3: 9.0}, repetition_penalty=1.5),
        Sampling(temperature=1.0, bad_words=((7,), (11, 8), (59, 11, 9), (3, 59, 11, 10), (5, 11, 12), (5, 3, 5, 59, 11, 13))),
        Sampling(temperature=1.0, bad_words=((1, 5, 3, 5, 59, 11, 14),)),
        Sampling(temperature=1.0, min_new_tokens=5, stop_ids=(2, 9)),
        Sampling(temperature=1.0, min_new_tokens=6, stop_ids=(2, 9)),
        Sampling(temperature=1.0, constraint=Odd()),
        Sampling(
            temperature=0.7,
            top_k=20,
            top_p=0.9,
            min_p=0.01,
            repetition_penalty=1.3,
            logit_bias={6: 3.0, 12: -1.0},
            bad_words=((59, 11, 4), (14,)),
            min_new_tokens=9,
            stop_ids=(16, 18),
            constraint=Odd(),
            banned_ids=(20,),
        ),
    ],
    ids=lambda sampling: " ".join(f"{f.name}={getattr(sampling, f.name)}" for f in changed(sampling)),
)
def test_processing_equals_transformers(sampling: Sampling, seed: int) -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    path = [5, 3, 5, 59, 11]
    mine = processed(logits, path, sampling, Odd(tuple(path)) if sampling.constraint else None)
    assert mine.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(mine, theirs(logits, path, sampling).numpy(), atol=1e-10)


def test_temperature_zero_is_one_hot_at_the_first_best_token() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0])
    assert processed(logits, [], Sampling()).tolist() == [0, 1, 0, 0]
    assert int(logits.argmax()) == 1  # the greedy shortcut breaks ties the same way


def test_a_low_temperature_comes_close_to_greedy_without_overflow() -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(0)) * 30
    for temperature in (1e-5, 1e-30, 1e-308, 5e-324):
        found = processed(logits, [], Sampling(temperature=temperature, banned_ids=(3,)))
        assert found.argmax() == int(logits.argmax()) and found.sum() == 1 and found[3] == 0


def test_penalty_and_bans_act_at_temperature_zero_too() -> None:
    logits = torch.tensor([1.0, 3.0, 2.9, -1.0])
    assert processed(logits, [1], Sampling(repetition_penalty=2.0)).argmax() == 2
    assert processed(logits, [], Sampling(banned_ids=(1, 2))).argmax() == 0
    assert not plain_greedy(Sampling(repetition_penalty=2.0))
    assert plain_greedy(Sampling(banned_ids=(1,)))
    assert plain_greedy(Sampling(top_k=5, top_p=0.3, min_p=0.2))


def test_frequency_and_presence_penalty_are_openais() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, over the answer's own tokens."""
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    sampling = Sampling(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.25)
    wanted = (logits - torch.tensor([3 * 0.5 + 0.25, 0.0, 1 * 0.5 + 0.25, 0.0])).softmax(-1)
    np.testing.assert_allclose(processed(logits, [0, 2, 0, 0], sampling), wanted.numpy(), atol=1e-12)
    np.testing.assert_allclose(processed(logits, [], sampling), logits.softmax(-1).numpy(), atol=1e-12)


def test_every_branch_of_a_tree_sees_its_own_path() -> None:
    logits = torch.zeros(4, dtype=torch.float64)
    once, twice = (processed(logits, path, Sampling(temperature=1.0, frequency_penalty=1.0)) for path in ([1], [1, 1]))
    assert once[1] > twice[1]
    banned = Sampling(bad_words=((1, 2), (1, 1, 3)))
    found = [processed(torch.tensor([0.0, 1.0, 3.0, 2.0]), path, banned).argmax() for path in ([], [1], [1, 1], [2, 1], [1, 2])]
    assert found == [2, 3, 1, 3, 2]


def test_an_end_that_is_held_back_comes_when_nothing_else_may() -> None:
    held = Sampling(min_new_tokens=3, stop_ids=(1, 99), banned_ids=(0, 2))
    logits = torch.tensor([3.0, 0.0, 2.0, 1.0])
    assert processed(logits, [3], held).argmax() == 3
    assert processed(logits, [3], replace(held, banned_ids=(0, 2, 3))).argmax() == 1


def test_nothing_left_to_say_is_told() -> None:
    with pytest.raises(BadInput, match="nothing may be said after 2 tokens"):
        processed(torch.zeros(3), [1, 1], Sampling(banned_ids=(0, 1), bad_words=((1, 2),)))


def test_what_depends_on_the_path_is_not_plain_greedy() -> None:
    assert not any(plain_greedy(Sampling(**{name: value})) for name, value in NOT_PLAIN.items())  # type: ignore[arg-type]
    assert plain_greedy(Sampling(stop_ids=(1,), stop_strings=("x",)))


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_without_a_logit_change_nothing(temperature: float) -> None:
    """Of a tokenizer with more ids than the model has rows; an id that has one still counts."""
    logits = torch.randn(V, generator=torch.Generator().manual_seed(5))
    best = int(logits.argmax())
    settings: dict[str, Any] = {
        "logit_bias": {V: 50.0, V + 7: -50.0},
        "banned_ids": (V, V + 9),
        "bad_words": ((V,), (1, V + 3)),
    }
    beyond = Sampling(temperature, **settings)
    plain = processed(logits, (1,), Sampling(temperature))
    assert np.array_equal(processed(logits, (1,), beyond), plain)
    assert allowed(logits, beyond) is logits
    both = Sampling(temperature, banned_ids=(V, best))
    assert processed(logits, (1,), both)[best] == 0.0
    assert int(allowed(logits, both).argmax()) != best
