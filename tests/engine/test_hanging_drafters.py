"""A drafter that hangs or is slow: whose deadline it is, who is to blame, and what becomes of its lane."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from eventspec.breaker import ENOUGH, LONGEST, REST, Breaker
from eventspec.core import Budget, Proposal
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.worker import LaneTimeout, Worker
from eventspec.lanes.workers import Workers

PLAN = DraftPolicy(head_nodes=3, max_nodes=4, patience=1, step_seconds=1)


class Hostile:
    """An honest drafter of the truth; a test overwrites one of its parts."""

    name, taps, concurrent = "hostile", (), True

    def __init__(self, truth: list[int]) -> None:
        self.truth, self.n = truth, 0

    @property
    def needs_target(self) -> bool:
        return bool(self.taps)

    def open(self, *parts: Any) -> Any:
        return self

    def propose(self, budget: Budget) -> Any:
        return Proposal.chain(self.ahead(budget))

    def observe(self, verdict: Any, scores: Any) -> None:
        self.n += len(verdict.tokens)

    def ahead(self, budget: Budget) -> np.ndarray[Any, Any]:
        return np.array(self.truth[self.n : self.n + min(budget.max_nodes, budget.max_depth)], np.int64)


@pytest.mark.parametrize("taps", [(), (1,)], ids=["independent", "tapped"])
@pytest.mark.parametrize("where", ["open", "propose", "observe"])
def test_a_drafter_that_hangs_again_and_again_is_left_alone(
    where: str, taps: tuple[int, ...], tiny: Any, decoded: Any, gate: threading.Event
) -> None:
    """On one device every hang costs a deadline and a thread: two of them, however many requests there are."""
    world, lanes = tiny(2), Workers("one")
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)
    drafter = type("Hanging", (Hostile,), {where: lambda *parts: gate.wait(60), "taps": taps})(truth)
    before, began, notes = threading.active_count(), time.monotonic(), []
    for _ in range(8):
        drafter.n = 0
        ran = decoded(world, drafter, request, DraftPolicy(head_nodes=3, deadline=0.2, patience=1, step_seconds=1), lanes)
        assert ran.outcome.token_ids == truth
        notes += ran.trace.notes
    assert time.monotonic() - began < 5
    assert threading.active_count() - before <= ENOUGH + 1
    assert sum("did not answer" in note for note in notes) == ENOUGH
    assert sum("is left alone" in note for note in notes) == 8 - ENOUGH
    honest = decoded(world, Hostile(truth), request, PLAN, lanes)
    assert honest.trace.accepted > 0, "another drafter is not to blame"


def test_a_drafter_that_answers_once_and_then_hangs_is_left_alone(
    tiny: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    """Its requests are over before the deadline: that it answered once in each is no excuse."""
    world = tiny(2)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)
    drafter = type("Hanging", (Hostile,), {"observe": lambda *parts: gate.wait(60)})(truth)
    policy = DraftPolicy(head_nodes=3, deadline=0.1, patience=1, step_seconds=0.01)
    before, ends, notes = threading.active_count(), time.monotonic() + 20, list[str]()
    while not any("is left alone" in note for note in notes) and time.monotonic() < ends:
        drafter.n = 0
        ran = decoded(world, drafter, request, policy, two)
        assert ran.outcome.token_ids == truth
        notes += ran.trace.notes
        time.sleep(0.12)  # past the deadline
    assert any("is left alone" in note for note in notes)
    assert threading.active_count() - before <= ENOUGH + 2


def test_who_hangs_is_to_blame_and_not_who_waits_behind_it(
    tiny: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)
    hanging = type("Hanging", (Hostile,), {"propose": lambda *parts: gate.wait(60)})(truth)
    policy = DraftPolicy(head_nodes=3, deadline=0.2, patience=1, step_seconds=0.001)
    decoded(world, hanging, request, policy, two)
    decoded(world, Hostile(truth), request, policy, two)  # its work is queued behind the hanging call
    time.sleep(0.25)
    honest = Hostile(truth)
    assert decoded(world, honest, request, policy, two).outcome.token_ids == truth
    assert two.breaker.deadline(hanging, 1.0) == 0.25
    assert two.breaker.deadline(honest, 1.0) == 1.0


def test_what_waited_behind_a_hanging_call_is_let_go(two: Workers, gate: threading.Event) -> None:
    two.start("drafter", lambda: gate.wait(60))
    done: list[int] = []
    waiting = [two.start("drafter", lambda: done.append(1)) for _ in range(3)]
    two.abandon("drafter")
    for pending in waiting:
        with pytest.raises(LaneTimeout, match="the work before it hung"):
            pending.result(5)
    gate.set()
    assert two.start("drafter", lambda: 7).result(5) == 7
    assert done == []


def test_work_for_a_closed_worker_is_refused() -> None:
    worker = Worker("test")
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.start(lambda: 1)


@pytest.mark.parametrize("placement", ["one", "two"])
def test_a_drafter_that_is_slow_and_wrong_costs_no_more_than_the_patience(placement: str, tiny: Any, decoded: Any) -> None:
    world, workers = tiny(2), Workers(placement)
    request = world.request(max_new_tokens=24)
    truth = world.answer(request)

    def wrong(self: Hostile, budget: Budget) -> Proposal:
        time.sleep(0.05)
        return Proposal.chain((self.ahead(budget) + 1) % 40)

    drafter = type("Slow", (Hostile,), {"propose": wrong})(truth)
    began = time.monotonic()
    ran = decoded(world, drafter, request, DraftPolicy(head_nodes=3, patience=1, step_seconds=0.02), workers)
    assert ran.outcome.token_ids == truth
    assert time.monotonic() - began < 0.8, "24 tokens at 50 ms each"
    assert not ran.trace.given_up
    workers.close()


def test_the_breaker_gives_another_try_and_then_rests_longer() -> None:
    now = [0.0]
    breaker, one, other = Breaker(lambda: now[0]), object(), object()
    for wanted in (0.0, REST, 2 * REST, 4 * REST):
        assert breaker.resting(one) == 0
        breaker.hung(one)
        assert breaker.resting(one) == wanted
        now[0] += wanted
    assert breaker.resting(other) == 0
    assert breaker.deadline(one, 5.0) == 1.25
    for _ in range(20):
        breaker.hung(one)
    assert breaker.resting(one) == LONGEST
    breaker.came_back(one)
    assert (breaker.resting(one), breaker.deadline(one, 5.0)) == (0.0, 5.0)
