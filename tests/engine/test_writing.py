"""A drafter writes on behind its head start: the target never waits for it, and nothing that it does costs an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from eventspec.core import Budget, Proposal
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers

EAGER = DraftPolicy(head_nodes=6, max_nodes=6, patience=100, step_seconds=1)


@dataclass
class Told:
    """What a writer did, in order, and when it was told to stop."""

    did: list[str] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class Writer:
    """A drafter, and its own session, that calls `write(budget)` behind its head start; all else is `drafter`'s."""

    def __init__(self, drafter: Any, write: Callable[[Budget], None], told: Told) -> None:
        self.drafter, self.write, self.told = drafter, write, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def open(self, *asked: Any) -> Any:
        return self

    def propose(self, budget: Budget) -> Any:
        self.told.did.append(f"{self.drafter.name} proposed")
        return self.drafter.propose(budget)

    def write_on(self, budget: Budget) -> None:
        self.told.did.append(f"{self.drafter.name} wrote")
        self.told.budgets.append(budget)
        self.told.begun.set()
        try:
            self.write(budget)
        finally:
            self.told.ended.set()


@pytest.fixture
def writer(oracle: Any) -> Callable[..., Writer]:
    """writer(truth, write, told) -> an oracle that writes."""

    def make(truth: list[int], write: Callable[[Budget], None], told: Told, name: str = "writer", **more: Any) -> Writer:
        return Writer(oracle(truth, name=name, **more), write, told)

    return make


@pytest.fixture
def slow(wrapped: Any) -> Callable[..., Any]:
    """slow(world, event, told) -> its target, which reads no prompt before the event; then whoever writes was told to stop."""

    def make(world: Any, event: threading.Event, told: Told | None = None) -> Any:
        def waits(session: Any, tail: int) -> Any:
            assert event.wait(5)
            score = session.score

            def scored(proposal: Proposal) -> Any:
                assert all(budget.until() for budget in (told.budgets if told else ())), "from here on the target is beside it"
                return score(proposal)

            session.score = scored
            return session

        return wrapped(world.target, waits)

    return make


def until_told(budget: Budget) -> None:
    while not budget.until():
        time.sleep(0.001)


@pytest.mark.parametrize("behind", [True, False])
def test_a_drafter_writes_until_the_target_has_read_its_prompt(
    behind: bool, tiny: Any, oracle: Any, writer: Any, slow: Any, decoded: Any, two: Workers
) -> None:
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=20)
    truth = world.answer(request)
    one = writer(truth, until_told, told)
    after = one if behind else oracle(truth, concurrent=False, name="after")
    ran = decoded(world, Drafts((one,), (after,), writing=(one,)), request, EAGER, two, slow(world, told.begun, told))
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].accepted == 6
    assert sum(r.accepted for r in ran.trace.rounds[1:]) > 8
    assert ran.trace.notes == []
    assert told.ended.wait(5)
    assert [budget.max_depth for budget in told.budgets] == [20]


def test_the_target_does_not_wait_for_what_is_written(
    tiny: Any, oracle: Any, writer: Any, slow: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    """A step of the writer takes longer than the whole answer."""
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=20)
    truth = world.answer(request)
    one = writer(truth, lambda budget: gate.wait(20) and None, told)
    after = oracle(truth, concurrent=False, name="after")
    ran = decoded(world, Drafts((one,), (after,), writing=(one,)), request, EAGER, two, slow(world, told.begun, told))
    assert not told.ended.is_set()
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].accepted == 6
    assert ran.trace.notes == []
    gate.set()
    assert told.ended.wait(5)
    assert told.budgets[0].until(), "it was told to stop"


def test_where_nobody_wants_it_no_drafter_writes_on(tiny: Any, writer: Any, decoded: Any, two: Workers) -> None:
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    one = writer(truth, until_told, told)
    assert decoded(world, Drafts((one,), (one,)), request, EAGER, two).outcome.token_ids == truth
    two.drain()
    assert "writer wrote" not in told.did


@pytest.mark.parametrize("concurrent", [True, False])
def test_where_the_target_would_wait_nothing_is_written(
    concurrent: bool, tiny: Any, writer: Any, decoded: Any, two: Workers
) -> None:
    """On one device, and inline, the time is the target's."""
    world, told, one_lane = tiny(1), Told(), Workers("one")
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    one = writer(truth, until_told, told, concurrent=concurrent)
    ran = decoded(world, Drafts((one,), (one,), writing=(one,)), request, EAGER, one_lane if concurrent else two)
    assert ran.outcome.token_ids == truth
    one_lane.drain()
    two.drain()
    assert "writer wrote" not in told.did
    one_lane.close()


def test_other_head_starts_on_the_lane_come_first(
    tiny: Any, oracle: Any, writer: Any, slow: Any, decoded: Any, two: Workers
) -> None:
    world, told = tiny(2), Told()
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    one, other = (writer(truth, until_told, told, name) for name in ("one", "other"))
    after = oracle(truth, concurrent=False, name="after")
    drafts = Drafts((one, other), (after,), writing=(one,))
    ran = decoded(world, drafts, request, EAGER, two, slow(world, told.begun, told))
    assert ran.outcome.token_ids == truth
    assert told.did[:3] == ["one proposed", "other proposed", "one wrote"]


@pytest.mark.parametrize("behind", [True, False])
def test_a_writer_that_fails_keeps_its_head_start(
    behind: bool, tiny: Any, oracle: Any, writer: Any, slow: Any, decoded: Any, two: Workers
) -> None:
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=20)
    truth = world.answer(request)

    def fails(budget: Budget) -> None:
        raise MemoryError("no room")

    one = writer(truth, fails, told)
    after = one if behind else oracle(truth, concurrent=False, name="after")
    ran = decoded(world, Drafts((one,), (after,), writing=(one,)), request, EAGER, two, slow(world, told.ended))
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].accepted == 6, "what was drafted before is none the worse"
    assert ran.trace.notes[0] == "drafter writer, writing on, failed: MemoryError: no room"
    assert ran.trace.given_up == (["writer"] if behind else []), "its session may be anywhere"


def test_a_writer_whose_head_start_failed_is_not_asked(tiny: Any, writer: Any, decoded: Any, two: Workers) -> None:
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=8)
    truth = world.answer(request)

    def breaks(at: int, budget: Budget) -> Proposal:
        raise OSError("gone")

    one = writer(truth, until_told, told, draft=breaks)
    ran = decoded(world, Drafts((one,), (), writing=(one,)), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    two.drain()
    assert told.did == ["writer proposed"]


def test_a_writer_that_nobody_stops_ends_within_its_deadline(
    tiny: Any, writer: Any, slow: Any, decoded: Any, two: Workers
) -> None:
    """The target reads its prompt for so long that the lane would be taken for a hanging one."""
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=8)
    truth = world.answer(request)
    one = writer(truth, until_told, told)

    policy = DraftPolicy(head_nodes=6, max_nodes=6, patience=100, step_seconds=1, deadline=0.2)
    began = time.monotonic()
    ran = decoded(world, Drafts((one,), (), writing=(one,)), request, policy, two, slow(world, told.ended))
    assert ran.outcome.token_ids == truth
    assert 0.1 <= time.monotonic() - began < 4
    assert ran.trace.given_up == []


def test_a_writer_that_hangs_is_left_with_its_lane(
    tiny: Any, writer: Any, slow: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    """The request goes on without it; the next one leaves the lane, and its drafter gets another."""
    world, told = tiny(1), Told()
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    policy = DraftPolicy(head_nodes=6, max_nodes=6, patience=0.001, step_seconds=1, deadline=0.05)
    one = writer(truth, lambda budget: gate.wait(20) and None, told)
    hanging = two.worker("drafter")
    ran = decoded(world, Drafts((one,), (), writing=(one,)), request, policy, two, slow(world, told.begun))
    assert ran.outcome.token_ids == truth
    assert two.worker("drafter") is hanging
    time.sleep(0.1)
    good = writer(truth, until_told, Told(), "good")
    ran = decoded(world, Drafts((good,), (), writing=(good,)), request, replace(EAGER, deadline=0.05), two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].accepted == 6
    assert two.worker("drafter") is not hanging
