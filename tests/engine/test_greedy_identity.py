"""Whatever is drafted, the greedy answer is the one of plain decoding: no cache, no tree, no engine."""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from eventspec.core import Proposal, Sampling
from eventspec.engine.distribution import position_rng
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.verify import verify
from eventspec.lanes.workers import Workers
from eventspec.models.weights import llama_sources
from eventspec.nn import Llama

V = 40
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=200,
)


@pytest.fixture(scope="module")
def lanes() -> dict[str, Workers]:
    return {placement: Workers(placement) for placement in ("one", "two")}


@FIXED
@given(
    model=st.integers(0, 4),
    seed=st.integers(0, 10_000),
    most=st.integers(1, 14),
    nodes=st.integers(1, 12),
    tail=st.integers(1, 12),
    stop_at=st.none() | st.integers(0, 10),
    penalty=st.sampled_from([1.0, 1.0, 1.4]),
    placement=st.sampled_from(["one", "one", "two"]),
)
def test_hostile_trees_never_change_the_answer(
    model: int,
    seed: int,
    most: int,
    nodes: int,
    tail: int,
    stop_at: int | None,
    penalty: float,
    placement: str,
    tiny: Any,
    oracle: Any,
    hostile: Any,
    decoded: Any,
    lanes: dict[str, Workers],
) -> None:
    world = tiny(model)
    free = world.request(max_new_tokens=most, repetition_penalty=penalty)
    truth = world.answer(free, beyond=8)
    stop_ids = () if stop_at is None else (truth[min(stop_at, len(truth) - 1)],)
    request = world.request(max_new_tokens=most, repetition_penalty=penalty, stop_ids=stop_ids)
    drafter = oracle(truth, hostile(truth, np.random.default_rng(seed)))
    patient = DraftPolicy(tail=tail, head_nodes=nodes, max_nodes=nodes, patience=0.5, step_seconds=1)
    ran = decoded(world, drafter, request, patient, lanes[placement])
    expected = world.answer(request)
    assert ran.outcome.token_ids == expected
    assert ran.outcome.finish_reason == ("stop" if expected[-1] in stop_ids else "length")
    assert ran.trace.notes == []
    assert sum(r.accepted for r in ran.trace.rounds) <= len(expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_transformers_greedy_answer(
    seed: int, tiny: Any, oracle: Any, hostile: Any, decoded: Any, lanes: Any
) -> None:
    world = tiny(seed)
    request = world.request(max_new_tokens=24)
    ids = torch.tensor([[int(word) for word in world.prompt.split()]])
    theirs = as_transformers(world.language)
    whole = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0)
    expected = whole[0, ids.shape[1] :].tolist()
    assert decoded(world, Drafts(), request, DraftPolicy(), lanes["one"]).outcome.token_ids == expected
    drafter = oracle(expected, hostile(expected, np.random.default_rng(seed)))
    assert decoded(world, drafter, request, DraftPolicy(), lanes["one"]).outcome.token_ids == expected


def as_transformers(model: Llama) -> LlamaForCausalLM:
    c, own, state = model.config, dict(model.named_parameters()), {}
    sizes = {name: getattr(c, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    heads = {name: getattr(c, name) for name in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps")}
    for name, parts in llama_sources(c, "", "model.", "lm_head.weight").items():
        pieces = own[name].split([rows or len(own[name]) for _, rows in parts])
        state.update(zip((part for part, _ in parts), pieces, strict=True))
    theirs = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=None, eos_token_id=None)).double().eval()
    theirs.load_state_dict(state)
    return theirs


def test_a_drafter_that_knows_the_answer_needs_few_rounds(tiny: Any, oracle: Any, decoded: Any, lanes: Any) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=21)
    truth = world.answer(request)
    ran = decoded(world, oracle(truth, concurrent=False), request, DraftPolicy(head_nodes=8, max_nodes=5), lanes["one"])
    assert ran.outcome.token_ids == truth
    assert [r.accepted for r in ran.trace.rounds] == [8, 5, 5]  # and a bonus token each


trees = st.integers(0, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 3), min_size=count, max_size=count),
        st.tuples(*(st.integers(-1, node - 1) for node in range(count))),
        st.lists(st.integers(0, 3), min_size=count + 1, max_size=count + 1),
    )
)


@FIXED
@given(case=trees, drawn=st.booleans())
def test_following_the_argmax_is_the_general_walk_with_one_hot_p(
    case: tuple[list[int], tuple[int, ...], list[int]], drawn: bool
) -> None:
    tokens, parents, best = case
    probs = torch.full((len(tokens), 4), 0.25) if drawn else None
    proposal = Proposal(np.array(tokens, np.int64), np.array(parents, np.int64), probs)
    logits = torch.nn.functional.one_hot(torch.tensor(best), 4).double()
    greedy = Sampling(temperature=0)
    short = verify(logits, proposal, greedy, [], position_rng(0))
    with mock.patch.object(importlib.import_module("eventspec.engine.verify"), "plain_greedy", lambda sampling: False):
        general = verify(logits, proposal, greedy, [], position_rng(0))
    assert short.path.tolist() == general.path.tolist()
    assert short.tokens.tolist() == general.tokens.tolist()
