"""Penalties, bias, bad words, least length and grammars leave every method lossless: with any drafts the answer is the one of
plain decoding, greedy and sampled, because what a node may say is asked of its own path."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Budget, Proposal, Request, Sampling
from eventspec.engine.distribution import choose
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers

V = 40
FEATURES: dict[str, dict[str, Any]] = {
    "frequency penalty": {"frequency_penalty": 1.7},
    "presence penalty": {"presence_penalty": 2.0},
    "a wish to repeat": {"frequency_penalty": -1.0, "presence_penalty": -2.0},
    "bias": {"logit_bias": {**dict.fromkeys(range(0, V, 3), -4.0), 7: 3.0}},
    "bad words": {"bad_words": ((5,), *((i, j) for i in range(V) for j in range(V) if (3 * i + j) % 4 == 0), (1, 2, 4))},
    "least length": {"min_new_tokens": 5, "stop_ids": tuple(range(0, V, 2))},
    "constraint": {"constraint": "maze"},
    "all": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": {3: 2.0},
        "bad_words": ((8,), (9, 10)),
        "min_new_tokens": 4,
        "stop_ids": (V - 1,),
        "banned_ids": (0, 1),
        "constraint": "maze",
    },
}
TRUTHFUL = DraftPolicy(head_nodes=8, max_nodes=8)
ONE = Workers("one")


@pytest.fixture(scope="module")
def lanes() -> dict[str, Workers]:
    return {placement: Workers(placement) for placement in ("one", "two")}


def asking(world: Any, maze: Any, **sampling: Any) -> Request:
    if sampling.get("constraint") == "maze":
        sampling["constraint"] = maze(sampling.get("seed", 0))
    return world.request(**sampling)  # type: ignore[no-any-return]


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=240,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    feature=st.sampled_from(sorted(FEATURES)),
    temperature=st.sampled_from([0.0, 1.0]),
    model=st.integers(0, 4),
    seed=st.integers(0, 10_000),
    most=st.integers(5, 12),
    nodes=st.integers(1, 12),
    placement=st.sampled_from(["one", "one", "two"]),
)
def test_hostile_trees_never_change_the_answer(
    feature: str,
    temperature: float,
    model: int,
    seed: int,
    most: int,
    nodes: int,
    placement: str,
    tiny: Any,
    oracle: Any,
    hostile: Any,
    maze: Any,
    decoded: Any,
    lanes: dict[str, Workers],
) -> None:
    world = tiny(model)
    request = asking(world, maze, temperature=temperature, seed=seed, max_new_tokens=most, **FEATURES[feature])
    truth = world.answer(request)
    drafter = oracle(truth, hostile(truth, np.random.default_rng(seed)))
    patient = DraftPolicy(head_nodes=nodes, max_nodes=nodes, patience=0.5, step_seconds=1)
    ran = decoded(world, drafter, request, patient, lanes[placement])
    assert ran.outcome.token_ids == truth
    assert ran.trace.notes == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_feature_changes_the_answer_and_true_drafts_are_accepted(
    feature: str, temperature: float, tiny: Any, oracle: Any, maze: Any, decoded: Any
) -> None:
    changed = 0
    for seed in range(4):
        plain = asking(tiny(seed), maze, temperature=temperature, seed=seed, max_new_tokens=16)
        request = asking(tiny(seed), maze, temperature=temperature, seed=seed, max_new_tokens=16, **FEATURES[feature])
        truth = tiny(seed).answer(request)
        free = tiny(seed).answer(replace(plain, sampling=replace(plain.sampling, stop_ids=request.sampling.stop_ids)))
        changed += truth != free
        ran = decoded(tiny(seed), oracle(truth, concurrent=False), request, TRUTHFUL, ONE)
        assert ran.outcome.token_ids == truth
        assert ran.trace.accepted >= len(truth) - len(ran.trace.rounds)
    assert changed


@pytest.mark.parametrize(
    ("feature", "mistake"),
    [
        ("constraint", ("advanced", lambda state, token, sampling: state)),
        # Positions are kept: what is drawn there depends on the position, and would differ by itself.
        ("frequency penalty", ("choose", lambda row, path, *more: choose(row, [-1] * len(path), *more))),
        ("bad words", ("choose", lambda row, path, *more: choose(row, [*path[:1], *[-1] * len(path[1:])], *more))),
        ("least length", ("choose", lambda row, path, *more: choose(row, [0] * 99, *more))),
    ],
    ids=["mask", "penalty", "bad words", "least length"],
)
def test_the_test_catches_what_ignores_the_path(
    feature: str, mistake: Any, tiny: Any, oracle: Any, maze: Any, decoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = importlib.import_module("eventspec.engine.verify")
    name, wrong = mistake
    request = asking(tiny(0), maze, temperature=1.0, max_new_tokens=16, **FEATURES[feature])
    truth = tiny(0).answer(request)
    monkeypatch.setattr(rule, name, wrong)
    try:
        same = decoded(tiny(0), oracle(truth, concurrent=False), request, TRUTHFUL, ONE).outcome.token_ids == truth
    except AssertionError as caught:
        same = "the mask forbids" not in str(caught)
    assert not same


@pytest.mark.parametrize("nodes", [1, 3, 9])
def test_a_dead_end_is_told_when_the_answer_stands_there_and_not_before(
    nodes: int, tiny: Any, oracle: Any, maze: Any, decoded: Any
) -> None:
    """The maze closes after six tokens; the draft runs into the wall long before."""

    class Closing(maze):  # type: ignore[misc]
        def mask(self) -> Any:
            return super().mask() & (len(self.path) < 6)

    world = tiny(2)
    ends = world.request(max_new_tokens=6, constraint=Closing())
    truth = world.answer(ends)
    chain = [*truth, 3, 4]
    policy = DraftPolicy(head_nodes=nodes, max_nodes=nodes)

    def beyond(at: int, budget: Budget) -> Proposal:
        return Proposal.chain(chain[at : at + budget.max_nodes])

    assert decoded(world, oracle(truth, concurrent=False), ends, policy, ONE).outcome.token_ids == truth
    stopped = world.request(max_new_tokens=12, constraint=Closing(), stop_strings=(f"<{truth[4]}><{truth[5]}>",))
    ran = decoded(world, oracle(chain, beyond, concurrent=False), stopped, policy, ONE)
    assert (ran.outcome.token_ids, ran.outcome.finish_reason) == (truth, "stop")
    for drafter in (Drafts(), oracle(chain, beyond, concurrent=False)):
        with pytest.raises(BadInput, match="nothing may be said after 6 tokens"):
            decoded(world, drafter, world.request(max_new_tokens=12, constraint=Closing()), policy, ONE)


def test_an_answer_ends_when_only_the_end_is_left(tiny: Any, oracle: Any, maze: Any, decoded: Any) -> None:
    """Also before its least length, and nothing is asked of the constraint behind the end."""

    class Word(maze):  # type: ignore[misc]
        def mask(self) -> Any:
            assert self.path[-1:] != (2,), "asked behind the end"
            return np.arange(V) == (*truth[:3], 2)[len(self.path)]

    world = tiny(1)
    truth = world.answer(world.request(max_new_tokens=3, banned_ids=(2,)))
    for least in (0, 3, 9):
        request = world.request(max_new_tokens=12, stop_ids=(2,), constraint=Word(), min_new_tokens=least)
        for drafter in (Drafts(), oracle([*truth, 2, 5, 5], concurrent=False)):
            ran = decoded(world, drafter, request, TRUTHFUL, ONE)
            assert ran.outcome.token_ids == [*truth, 2]
            assert ran.outcome.finish_reason == "stop"


@pytest.mark.parametrize("drawn", [False, True])
def test_a_draft_that_leaves_the_grammar_at_once_is_not_scored(
    drawn: bool, tiny: Any, oracle: Any, maze: Any, decoded: Any, wrapped: Any
) -> None:
    """Unless it was drawn: then the rule needs its refusal."""
    world, scored = tiny(0), list[int]()
    request = world.request(max_new_tokens=8, temperature=1.0, constraint=maze(2))

    def astray(at: int, budget: Budget) -> Proposal:
        state = request.sampling.constraint.start()
        for token in drafter.seen:
            state = state.after(token)
        wrong = np.flatnonzero(~state.mask())[: min(3, budget.max_nodes)]
        probs = torch.full((len(wrong), V), 1 / V, dtype=torch.float64) if drawn else None
        return Proposal(wrong, np.full(len(wrong), -1), probs)

    def counting(session: Any, tail: int) -> Any:
        score = session.score
        session.score = lambda proposal: scored.append(len(proposal)) or score(proposal)
        return session

    drafter = oracle([], astray, concurrent=False)
    ran = decoded(world, drafter, request, DraftPolicy(head_nodes=3, max_nodes=3), ONE, wrapped(world.target, counting))
    assert (max(scored) > 0) == drawn
    assert ran.trace.drafted > 0
    assert drawn or ran.outcome.token_ids == world.answer(request)


def test_a_mask_may_be_shorter_than_the_logits_and_longer(tiny: Any, oracle: Any, maze: Any, decoded: Any) -> None:
    for size in (20, V + 24):
        request = tiny(0).request(max_new_tokens=8, temperature=1.0, constraint=maze(3, 0.5, size))
        truth = tiny(0).answer(request)
        assert max(truth) < min(size, V)
        assert decoded(tiny(0), oracle(truth, concurrent=False), request, TRUTHFUL, ONE).outcome.token_ids == truth


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constrained_answer_can_be_cancelled(temperature: float, tiny: Any, oracle: Any, maze: Any, decoded: Any) -> None:
    request = tiny(0).request(max_new_tokens=16, temperature=temperature, constraint=maze(1))
    truth = tiny(0).answer(request)
    for drafter in (Drafts(), oracle(truth, concurrent=False)):
        ran = decoded(
            tiny(0),
            drafter,
            request,
            DraftPolicy(head_nodes=2, max_nodes=2),
            ONE,
            None,
            lambda reader: len(reader.committed) > 3,
        )
        assert ran.outcome.finish_reason == "cancelled"
        assert 3 < len(ran.outcome.token_ids) < 16
        assert ran.outcome.token_ids == truth[: len(ran.outcome.token_ids)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 2.5),
        ("presence_penalty", float("nan")),
        ("logit_bias", {3: float("inf")}),
        ("logit_bias", {3: float("nan")}),
        ("bad_words", ((1,), ())),
        ("min_new_tokens", -1),
        ("min_new_tokens", 257),
        ("stop_ids", (2, -1)),  # as an index it would hold back the last id
    ],
)
def test_settings_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadInput, match=field) as caught:
        Sampling(**{field: value})
    assert "\n" not in str(caught.value)
