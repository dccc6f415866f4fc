"""A drafter that fails, hangs, is late or talks nonsense costs speed only: the answer stays, and the trace says why."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import BadInput, Budget, Proposal, Scores, Trace, never
from eventspec.engine.answer import Outcome
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.text import StopDetector

SOON = 1e-6
"""Seconds: a deadline that every work still running has missed."""
NEVER = 1e6


@pytest.fixture
def watched(wrapped: Any) -> Callable[..., Any]:
    """watched(target, before) -> the target, with `before(how many were scored)` done before each score."""

    def make(target: Any, before: Callable[[int], None]) -> Any:
        def change(session: Any, tail: int) -> Any:
            score, scored = session.score, list[int]()

            def watching(proposal: Proposal) -> Scores:
                before(len(scored))
                scored.append(len(proposal))
                return score(proposal)

            session.score = watching
            return session

        return wrapped(target, change)

    return make


def settled(lanes: Workers) -> None:
    """Wait until the drafter's lane has done all it was given."""
    lanes.drain()


# ------------------------------------------------------------------------------------------------------- drafters that fail
@pytest.mark.parametrize("placement", ["one", "two"])
@pytest.mark.parametrize("where", ["open", "first propose", "later propose", "observe"])
def test_a_drafter_that_raises_costs_speed_only(where: str, placement: str, tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    drafter = oracle(truth)
    good = drafter.propose

    def broken(*parts: Any) -> Any:
        if where == "later propose" and not drafter.seen:
            return good(*parts)
        raise OSError("the socket is gone")

    setattr(drafter, where.split()[-1], broken)
    ran = decoded(
        world, drafter, request, DraftPolicy(head_nodes=3, patience=1, step_seconds=1, look_ahead=False), Workers(placement)
    )
    assert ran.outcome.token_ids == truth
    assert ran.trace.notes == ["drafter oracle failed: OSError: the socket is gone; the target went on alone"]
    assert ran.trace.accepted == (3 if where in ("later propose", "observe") else 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "The following operation failed.\nTraceback of TorchScript:\n  x + y\n  ~~~~~ <--- HERE\nOSError: no room\n\n",
            "no room",
        ),
        ("first\n  last  \n", "last"),
        ("", "(no text)"),
        ("\n \n", "(no text)"),
    ],
)
def test_the_note_of_a_failure_is_one_line(text: str, told: str, tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=4)
    drafter = oracle(world.answer(request))

    def broken(*parts: Any) -> Any:
        raise OSError(text)

    drafter.propose = broken
    ran = decoded(
        world, drafter, request, DraftPolicy(head_nodes=3, patience=1, step_seconds=1, look_ahead=False), Workers("one")
    )
    assert ran.trace.notes == [f"drafter oracle failed: OSError: {told}; the target went on alone"]


GARBAGE: dict[str, Callable[[int, Budget], Any]] = {
    "parents behind children": lambda at, budget: Proposal(np.array([1, 2]), np.array([1, -1])),
    "a loop": lambda at, budget: Proposal(np.array([1]), np.array([0])),
    "a negative token": lambda at, budget: Proposal.chain([3, -1]),
    "a token just out of the vocabulary": lambda at, budget: Proposal.chain([40]),
    "a token far out of the vocabulary": lambda at, budget: Proposal.chain([3, 1 << 40]),
    "more nodes than asked for": lambda at, budget: Proposal(np.ones(900, np.int64), np.full(900, -1)),
    "numbers that are no ids": lambda at, budget: Proposal(np.array([0.5]), np.array([-1])),
    "columns of unequal length": lambda at, budget: Proposal(np.array([1, 2]), np.array([-1])),
    "no proposal at all": lambda at, budget: None,
}


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("kind", GARBAGE)
def test_a_malformed_proposal_costs_speed_only(
    kind: str, later: bool, tiny: Any, oracle: Any, decoded: Any, two: Workers
) -> None:
    world = tiny(1)
    request = world.request(max_new_tokens=10)
    truth = world.answer(request)

    def draft(at: int, budget: Budget) -> Any:
        return Proposal.chain(truth[:3]) if later and at == 0 else GARBAGE[kind](at, budget)

    ran = decoded(
        world, oracle(truth, draft), request, DraftPolicy(max_nodes=30, head_nodes=30, patience=1, step_seconds=1), two
    )
    assert ran.outcome.token_ids == truth
    assert ran.trace.accepted == (3 if later else 0)
    assert len(ran.trace.notes) == 1
    assert ran.trace.notes[0].startswith("drafter oracle failed: ")


@pytest.mark.parametrize("shape", [(2, 41), (2, 39), (1, 40), (2,)])
def test_probabilities_over_another_vocabulary_cost_speed_only(
    shape: tuple[int, ...], tiny: Any, oracle: Any, decoded: Any, two: Workers
) -> None:
    world = tiny(1)
    request = world.request(max_new_tokens=10, temperature=1.0, seed=5)
    alone = decoded(world, Drafts(), request, DraftPolicy(), two).outcome.token_ids
    drafter = oracle([], lambda at, budget: Proposal.chain([3, 4], probs=torch.full(shape, 0.02)))
    ran = decoded(world, drafter, request, DraftPolicy(patience=1, step_seconds=1), two)
    assert ran.outcome.token_ids == alone  # the same draws: the bad proposal used none
    assert len(ran.trace.notes) == 1


# -------------------------------------------------------------------------------------------------------- drafters that hang
@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited for nothing."""
    spent: list[float] = []
    wait = Workers.wait

    def recorded(self: Workers, seconds: float) -> bool:
        if wait(self, seconds):
            return True
        spent.append(seconds)
        return False

    monkeypatch.setattr(Workers, "wait", recorded)
    return spent


@pytest.mark.parametrize("deadline", [SOON, NEVER])
@pytest.mark.parametrize("where", ["open", "first propose", "later propose", "observe"])
def test_the_target_does_not_wait_for_a_drafter_that_hangs(
    where: str,
    deadline: float,
    tiny: Any,
    oracle: Any,
    decoded: Any,
    two: Workers,
    gate: threading.Event,
    waits: list[float],
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    drafter = oracle(truth)
    good = drafter.propose

    def hanging(*parts: Any) -> Any:
        if where == "later propose" and not drafter.seen:
            return good(*parts)
        gate.wait(60)
        return drafter if where == "open" else Proposal.empty()

    setattr(drafter, where.split()[-1], hanging)
    policy = DraftPolicy(head_nodes=3, patience=0.02, step_seconds=1, deadline=deadline, look_ahead=False)
    ran = decoded(world, drafter, request, policy, two)
    assert ran.outcome.token_ids == truth
    assert not gate.is_set()
    assert len(waits) == 1
    late, gone = "was late; the target did not wait", f"did not answer within {deadline:g} s; the target went on alone"
    assert ran.trace.notes == [f"drafter oracle {text}" for text in (late, gone) if deadline == SOON or text == late]


@pytest.mark.parametrize("where", ["open", "propose", "observe"])
def test_a_drafter_that_hangs_on_a_shared_device_is_left_at_the_deadline(
    where: str, tiny: Any, oracle: Any, decoded: Any, gate: threading.Event
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=8)
    truth = world.answer(request)
    drafter = oracle(truth)
    setattr(drafter, where, lambda *parts: gate.wait(60) and drafter)
    ran = decoded(world, drafter, request, DraftPolicy(head_nodes=3, deadline=SOON), Workers("one"))
    assert ran.outcome.token_ids == truth
    assert not gate.is_set()
    assert ran.trace.notes == [f"drafter oracle did not answer within {SOON:g} s; the target went on alone"]


def test_a_slow_drafter_that_is_always_wrong_costs_no_more_than_the_patience(
    tiny: Any, oracle: Any, decoded: Any, two: Workers, waits: list[float]
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=24)
    truth = world.answer(request)

    def draft(at: int, budget: Budget) -> Proposal:
        time.sleep(0.02)
        return Proposal.chain([(truth[at] + 1) % 40])

    ran = decoded(world, oracle(truth, draft), request, DraftPolicy(patience=0.05, step_seconds=1, look_ahead=False), two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.notes == ["drafter oracle was late; the target did not wait"]
    assert sum(r.draft_seconds for r in ran.trace.rounds) < 0.05 + 24 * 0.005
    assert sum(waits) <= 0.05


def test_a_lane_that_hangs_does_not_keep_the_next_request_from_drafting(
    tiny: Any, oracle: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=8)
    truth = world.answer(request)
    before = set(threading.enumerate())
    stuck = oracle(truth, lambda at, budget: gate.wait(60) and Proposal.empty())
    decoded(world, stuck, request, DraftPolicy(patience=0.001, step_seconds=1, deadline=NEVER), two)
    (hanging,) = set(threading.enumerate()) - before
    ran = decoded(world, oracle(truth), request, DraftPolicy(patience=1, step_seconds=1, deadline=SOON), two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.accepted > 0
    assert ran.trace.notes == []
    gate.set()
    hanging.join(10)
    assert not hanging.is_alive(), "an abandoned lane ends when its work does"


def test_a_drafter_that_is_late_for_the_head_start_catches_up(
    watched: Any, tiny: Any, oracle: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    world = tiny(3)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)
    drafter = oracle(truth)
    drafter.open = lambda *parts: gate.wait(60) and drafter

    def release(count: int) -> None:
        if count == 3:
            gate.set()
            settled(two)

    policy = DraftPolicy(max_nodes=4, patience=0.5, step_seconds=1, deadline=NEVER)
    ran = decoded(world, drafter, request, policy, two, watched(world.target, release))
    assert ran.outcome.token_ids == truth
    assert [r.accepted for r in ran.trace.rounds] == [0, 0, 0, 0, 4, 4, 1]
    assert ran.trace.notes == ["drafter oracle was late; the target did not wait"]


def test_drafting_ahead_ends_with_the_request(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    """The last round drafts ahead too; nobody asks for that draft any more, and it must not keep the lane."""
    world = tiny(3)
    request, endless = world.request(max_new_tokens=8), list[bool]()

    def draft(at: int, budget: Budget) -> Proposal:
        if budget.until is not never:  # the head start, or ahead
            ends = time.perf_counter() + 20
            while not budget.until() and time.perf_counter() < ends:
                time.sleep(0.001)
            endless.append(not budget.until())
        return Proposal.empty()

    decoded(world, oracle([], draft), request, DraftPolicy(patience=1, step_seconds=1), two)
    settled(two)
    assert len(endless) > 2
    assert not any(endless)


def test_without_later_drafts_nothing_is_drafted_ahead(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(3)
    request = world.request(max_new_tokens=8)
    truth, asked = world.answer(request), list[Budget]()
    drafter = oracle(truth, lambda at, budget: asked.append(budget) or Proposal.chain(truth[:2]))
    ran = decoded(world, drafter, request, DraftPolicy(max_nodes=0, patience=1, step_seconds=1), two)
    assert ran.outcome.token_ids == truth
    assert [r.accepted for r in ran.trace.rounds] == [2, 0, 0, 0, 0, 0]
    assert len(asked) == 1


# ------------------------------------------------------------------------------------------------- ends that come from outside
def test_cancelling_ends_after_the_round_with_what_is_committed(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=30)
    truth = world.answer(request)
    policy = DraftPolicy(head_nodes=2, max_nodes=2, patience=1, step_seconds=1)
    ran = decoded(world, oracle(truth), request, policy, two, cancelled=lambda reader: len(reader.committed) >= 5)
    assert ran.outcome == Outcome(truth[:6], "cancelled")


def test_an_error_of_the_target_is_the_callers_and_withdraws_what_was_shown(
    tiny: Any, oracle: Any, reader: Any, two: Workers
) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=500)  # more than the context
    shown = reader()

    def failing() -> Outcome:
        asked = Asking(world.target, request, StopDetector(()), Drafts.by(oracle([1, 2])), emit=shown)
        return run(Decoding(asked, two, Trace()), two)

    with pytest.raises(BadInput, match="exceed the context of 96"):
        two.start("target", failing).result(10)
    settled(two)
    assert shown.provisional == []


def test_a_stream_yields_what_happens_and_raises_what_goes_wrong(tiny: Any, oracle: Any, reader: Any, two: Workers) -> None:
    world = tiny(0)
    request = world.request(max_new_tokens=9)
    truth, screen = world.answer(request), reader()

    def work(asked: Any) -> Callable[[Any], Outcome]:
        drafts = Drafts.by(oracle(truth))
        return lambda emit: run(Decoding(Asking(world.target, asked, StopDetector(()), drafts, emit=emit), two, Trace()), two)

    for update in two.stream(work(request)):
        screen(update)
    assert screen.committed == truth
    too_long = replace(request, sampling=replace(request.sampling, max_new_tokens=500))
    with pytest.raises(BadInput, match="context"):
        list(two.stream(work(too_long)))
