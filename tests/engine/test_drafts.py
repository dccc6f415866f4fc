"""Who drafts when: another drafter for the head start than for what follows."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from eventspec.core import Budget, Media, Proposal, Sampling, Target, Trace
from eventspec.engine.drafting import WIDER
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.lanes.workers import Workers

EAGER = DraftPolicy(head_nodes=6, max_nodes=6, patience=100, step_seconds=1)


@pytest.mark.parametrize("placement", ["one", "two"])
@pytest.mark.parametrize("concurrent", [False, True])
def test_one_drafts_ahead_and_another_one_after(placement: str, concurrent: bool, tiny: Any, oracle: Any, decoded: Any) -> None:
    world, workers = tiny(1), Workers(placement)
    request = world.request(max_new_tokens=20)
    truth = world.answer(request)
    ahead, after = oracle(truth, concurrent=concurrent, name="ahead"), oracle(truth, concurrent=False, name="after")
    ran = decoded(world, Drafts((ahead,), (after,)), request, EAGER, workers)
    assert ran.outcome.token_ids == truth
    first, *later = ran.trace.rounds
    assert (first.origin, first.accepted, first.first) == ("ahead", 6, True)
    assert {r.origin for r in later if r.proposed} == {"after"}
    assert sum(r.accepted for r in later) > 8
    assert ahead.seen == [], "who drafts ahead only is told of no verdict"
    assert after.seen == truth[: len(after.seen)]
    workers.close()


def test_one_may_draft_ahead_alone(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(1)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    ran = decoded(world, Drafts((oracle(truth),)), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert [r.accepted for r in ran.trace.rounds] == [6, *[0] * 5]


def test_one_that_reads_the_target_cannot_draft_ahead(tiny: Any, oracle: Any) -> None:
    reads = oracle([], needs_target=True)
    assert Drafts.by(reads) == Drafts((), (reads,))
    alone = oracle([])
    assert Drafts.by(alone).ahead == Drafts.by(alone).after == (alone,)


@pytest.mark.parametrize("broken", ["ahead", "after"])
def test_when_one_of_two_fails_the_other_goes_on(broken: str, tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)

    def fails(at: int, budget: Budget) -> Proposal:
        raise OSError("gone")

    parts = {name: oracle(truth, fails if name == broken else None, name=name) for name in ("ahead", "after")}
    ran = decoded(world, Drafts((parts["ahead"],), (parts["after"],)), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.given_up == [broken]
    assert ran.trace.accepted > 0


def test_tokens_that_the_target_lacks_are_the_fault_of_who_drafted_them(
    tiny: Any, oracle: Any, decoded: Any, two: Workers
) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    wrong = oracle(truth, lambda at, budget: Proposal(np.array([99]), np.array([-1])), name="wrong")
    ran = decoded(world, Drafts((wrong,), (oracle(truth, name="right"),)), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.given_up == ["wrong"]
    assert ran.trace.accepted > 0


def longest(proposals: Any, budget: Budget) -> Proposal:
    return max(proposals, key=len)


@pytest.mark.parametrize("placement", ["one", "two"])
def test_several_draft_for_one_place(placement: str, tiny: Any, oracle: Any, decoded: Any) -> None:
    world, workers = tiny(1), Workers(placement)
    request = world.request(max_new_tokens=24)
    truth = world.answer(request)
    short = oracle(truth, lambda at, budget: Proposal.chain(truth[at : at + 2], "short"), name="short", concurrent=False)
    beside = oracle(truth, lambda at, budget: Proposal.chain(truth[at : at + 5], "beside"), name="beside")
    ran = decoded(world, Drafts.by(short, beside, merge=longest), request, EAGER, workers)
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].named == {"beside": 5}
    # Behind the head start what is drafted beside is left where it is not there at once.
    assert sum(r.named.get("beside", 0) for r in ran.trace.rounds) > (8 if placement == "one" else 4)
    assert ran.trace.accepted > 8
    assert short.seen == truth[: len(short.seen)]
    workers.close()


@pytest.mark.parametrize("any_thread", [True, False])
def test_a_head_start_becomes_one_tree_beside_the_target(
    any_thread: bool, tiny: Any, oracle: Any, decoded: Any, two: Workers
) -> None:
    """Also texts draft on the drafter's lane then, if they run on any thread; behind the prefill they do on the target's."""
    world = tiny(1)
    request = world.request(max_new_tokens=24)
    truth, lanes = world.answer(request), dict[str, list[str]](merge=[], text=[])

    def merged(proposals: Any, budget: Budget) -> Proposal:
        lanes["merge"].append(threading.current_thread().name)
        return longest(proposals, budget)

    def drafted(at: int, budget: Budget) -> Proposal:
        lanes["text"].append(threading.current_thread().name)
        return Proposal.chain(truth[at : at + 2], "text")

    beside = oracle(truth, lambda at, budget: Proposal.chain(truth[at : at + 5], "beside"), name="beside")
    text = oracle(truth, drafted, name="text", concurrent=False)
    text.any_thread = any_thread
    ran = decoded(world, Drafts((beside, text), (text,), merged), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].named == {"beside": 5}
    assert lanes["merge"] == ["eventspec-drafter"], "once, and not when the target was ready"
    here = threading.current_thread().name
    assert lanes["text"][0] == ("eventspec-drafter" if any_thread else here)
    assert set(lanes["text"][1:]) == {here}


def test_texts_do_not_wait_for_a_lane_that_is_at_work(
    tiny: Any, oracle: Any, decoded: Any, two: Workers, gate: threading.Event
) -> None:
    world = tiny(1)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)
    two.start("drafter", lambda: gate.wait(10), object())
    beside, text = oracle(truth, name="beside"), oracle(truth, name="text", concurrent=False)
    text.any_thread = True
    ran = decoded(world, Drafts((beside, text), (text,), longest), request, replace(EAGER, patience=0.05), two)
    gate.set()
    assert ran.outcome.token_ids == truth
    assert "text" not in ran.trace.given_up
    assert sum(r.named.get("text", 0) for r in ran.trace.rounds) > 8


def test_a_draft_alone_is_cut_to_what_is_worth_its_cost(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    """Each of several is asked for more than the tree will have; where only one comes, the rest of it is too much."""
    world = tiny(1)
    request = world.request(max_new_tokens=12)
    truth, floors = world.answer(request), list[float]()

    def drafted(at: int, budget: Budget) -> Proposal:
        floors.append(budget.min_path_prob)
        return replace(Proposal.chain(truth[at : at + 4], "one"), values=np.array([0.9, 0.5, 0.15, 0.04]))

    one, none = oracle(truth, drafted, name="one"), oracle(truth, lambda at, budget: Proposal.empty(), name="none")
    policy = replace(EAGER, node_cost=0.13, worth=0.65)
    ran = decoded(world, Drafts((one, none), ()), request, policy, two)
    assert ran.trace.rounds[0].proposed == 2
    assert floors[0] == pytest.approx(policy.min_path_prob / WIDER)
    assert decoded(world, Drafts((one,), ()), request, policy, two).trace.rounds[0].proposed == 4, (
        "as it is asked for, so it is"
    )


@pytest.mark.parametrize("broken", ["short", "beside"])
def test_of_several_the_others_go_on(broken: str, tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(2)
    request = world.request(max_new_tokens=16)
    truth = world.answer(request)

    def fails(at: int, budget: Budget) -> Proposal:
        raise OSError("gone")

    parts = [oracle(truth, fails if n == broken else None, name=n, concurrent=n == "beside") for n in ("short", "beside")]
    ran = decoded(world, Drafts.by(*parts, merge=longest), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.given_up == [broken]
    assert ran.trace.accepted > 0


@pytest.mark.parametrize(
    "merge",
    [
        lambda proposals, budget: 1 / 0,
        lambda proposals, budget: None,
        lambda proposals, budget: Proposal.chain([99]),
        lambda proposals, budget: Proposal.chain([1] * 1000),
    ],
)
def test_a_merge_that_fails_costs_the_merge(merge: Any, tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(3)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    parts = [oracle(truth, name=name, concurrent=False) for name in ("one", "two")]
    ran = decoded(world, Drafts.by(*parts, merge=merge), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.given_up == []
    assert ran.trace.accepted > 0
    assert any("could not be merged" in note for note in ran.trace.notes)


def test_drafters_that_read_other_layers_are_not_mixed(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(3)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    one, other = (oracle(truth, name=name, concurrent=False, needs_target=True) for name in ("one", "other"))
    one.taps, other.taps = (1,), (0,)
    ran = decoded(world, Drafts.by(one, other, merge=longest), request, EAGER, two)
    assert ran.outcome.token_ids == truth
    assert ran.trace.given_up == ["other"]


@pytest.mark.parametrize("slow", ["drafter", "target"])
def test_a_draft_that_is_there_is_verified_in_the_forward_that_reads_the_prompt(
    slow: str, tiny: Any, oracle: Any, decoded: Any, two: Workers
) -> None:
    """Whose end nobody has seen yet gets until the last rows of the prompt, which are then a forward of their own."""
    world = tiny(1)
    request = world.request(max_new_tokens=12)
    truth, drafted, read = world.answer(request), threading.Event(), threading.Event()

    def draft(at: int, budget: Budget) -> Proposal:
        if slow == "drafter":
            read.wait(10)
        drafted.set()
        return Proposal.chain(truth[at : at + min(budget.max_nodes, budget.max_depth)])

    class Slow(Target):
        limits, lossless = world.target.limits, True

        def encode(self, media: Media, trace: Trace) -> Any:
            if slow == "target":
                drafted.wait(10)
                two.worker("drafter").finished().result(10)
            self.context = world.target.encode(media, trace)
            return self

        def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> Any:
            tails.append(tail)
            session = self.context.open(question, sampling, tail, trace, taps)
            read.set()
            return session

    tails: list[int] = []
    ran = decoded(world, oracle(truth, draft), request, replace(EAGER, tail=3), two, Slow())
    assert ran.outcome.token_ids == truth
    assert ran.trace.rounds[0].accepted == 6
    assert tails == ([3] if slow == "drafter" else [NO_TAIL])
    assert len([span for span in ran.trace.spans if span.stage == "prefill"]) == (2 if slow == "drafter" else 1)


def test_a_drafter_may_draft_before_the_target_though_it_could_beside_it(
    tiny: Any, oracle: Any, decoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, workers = tiny(1), Workers("auto")
    monkeypatch.setattr(workers._load, "taken", lambda: 0)
    request = world.request(max_new_tokens=20)
    truth = world.answer(request)
    for drafter, beside, plan in ((oracle(truth), True, "two"), (oracle(truth), False, "one"), (None, True, "one")):
        drafts = Drafts() if drafter is None else Drafts.by(drafter)
        policy = replace(EAGER, concurrent=beside, tail=3)
        ran = workers.start("target", partial(decoded, world, drafts, request, policy, workers)).result(30)
        assert ran.outcome.token_ids == truth
        assert ran.trace.device_plan == (plan if workers.free > 1 else "one")
        assert [r.accepted for r in ran.trace.rounds[:2]] == ([6, 6] if drafter else [0, 0])
    workers.close()


def test_nobody_drafts_beside_the_target_on_a_core_that_another_process_has(
    tiny: Any, oracle: Any, decoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, workers = tiny(1), Workers("auto")
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    for taken, plan in ((0, "two"), (len(workers._cores) - 1, "one")):
        monkeypatch.setattr(workers._load, "taken", lambda taken=taken: taken)
        drafts, policy = Drafts.by(oracle(truth)), DraftPolicy(head_nodes=6, max_nodes=6, patience=100, step_seconds=1)
        ran = workers.start("target", partial(decoded, world, drafts, request, policy, workers)).result(30)
        assert (ran.outcome.token_ids, ran.trace.device_plan) == (truth, plan if len(workers._cores) > 1 else "one")
    workers.close()
