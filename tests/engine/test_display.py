"""Updates fold into the answer, and no wrong guess stands on the screen when its place is committed.

Every run of the other engine tests is folded by the same reader (conftest); here the drafter shows all it can think of.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import Budget, Committed, Proposal, Provisional
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers


@pytest.fixture(scope="module")
def lanes() -> dict[str, Workers]:
    return {placement: Workers(placement) for placement in ("one", "two")}


@settings(
    derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000), placement=st.sampled_from(["one", "two"]), most=st.integers(1, 12))
def test_whatever_a_drafter_shows_the_reader_ends_with_the_answer(
    seed: int, placement: str, most: int, tiny: Any, oracle: Any, decoded: Any, lanes: dict[str, Workers]
) -> None:
    world, rng = tiny(seed % 5), np.random.default_rng(seed)
    request = world.request(max_new_tokens=most)
    truth, shows = world.answer(request), list[Any]()

    def draft(at: int, budget: Budget) -> Proposal:
        if budget.show is not None:
            shows.append(budget.show)
        for _ in range(rng.integers(4)):
            guess = [*truth[at : at + int(rng.integers(4))], *rng.integers(40, size=rng.integers(3)).tolist()]
            shows[int(rng.integers(len(shows)))](guess)  # also those of rounds that are over
        return Proposal.chain(truth[at : at + min(budget.max_nodes, budget.max_depth, int(rng.integers(4)))])

    ran = decoded(world, oracle(truth, draft), request, DraftPolicy(patience=1, step_seconds=1), lanes[placement])
    assert ran.outcome.token_ids == truth
    for show in shows:
        show([1, 2, 3])
    assert ran.reader.provisional == []


def test_a_guess_that_grows_is_only_added_to(tiny: Any, oracle: Any, decoded: Any, lanes: dict[str, Workers]) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=6)
    a, b, c, *_ = truth = world.answer(request)

    def draft(at: int, budget: Budget) -> Proposal:
        if at == 0 and budget.show is not None:
            for chain in ([a], [a], [a, b], [a, b, c + 1]):
                budget.show(chain)
        return Proposal.chain(truth[at : at + 2]) if at == 0 else Proposal.empty()

    ran = decoded(world, oracle(truth, draft), request, DraftPolicy(), lanes["one"])
    told = [type(update).__name__ for update in ran.reader.updates]
    assert told[:5] == ["Provisional", "Provisional", "Provisional", "Retracted", "Committed"]
    assert ran.reader.updates[4] == Committed((a, b, c))
    assert ran.trace.marks["first_provisional"] < ran.trace.marks["first_committed"]


def test_a_draft_that_is_late_is_not_shown(tiny: Any, oracle: Any, decoded: Any, lanes: dict[str, Workers]) -> None:
    """It goes on showing what follows the empty answer, from its own thread, while the target commits and after the end."""
    world, over = tiny(0), threading.Event()
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    wrong = (truth[0] + 1) % 40

    def draft(at: int, budget: Budget) -> Proposal:
        ends = time.perf_counter() + 20
        while not over.is_set() and time.perf_counter() < ends:
            assert budget.show is not None
            budget.show([wrong, wrong])
            budget.show([wrong])
        return Proposal.empty()

    ran = decoded(world, oracle(truth, draft), request, DraftPolicy(patience=0.001, step_seconds=1), lanes["two"])
    over.set()
    lanes["two"].start("drafter", lambda: None).result(10)
    assert ran.outcome.token_ids == truth
    assert ran.reader.provisional == []
    first = next(i for i, update in enumerate(ran.reader.updates) if isinstance(update, Committed))
    assert not any(isinstance(update, Provisional) for update in ran.reader.updates[first:])
