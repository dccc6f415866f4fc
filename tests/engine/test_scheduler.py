"""The scheduler, driven step by step: no thread runs, nobody sleeps, and the clock is the test's."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eventspec.breaker import Breaker
from eventspec.core import BadInput, Budget, Proposal, Scores, Trace
from eventspec.engine.decoding import Asking, Decoding, Due
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.scheduler import Scheduler
from eventspec.text import StopDetector

EAGER = DraftPolicy(head_nodes=5, max_nodes=5, patience=4, step_seconds=1, deadline=100)


class Clock(Trace):
    """A trace on the test's own clock."""

    seconds = 0.0

    def now(self) -> float:
        return Clock.seconds


class Work(Future[Any]):
    """As `executor.Pending`: done when the test says so."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> Work:
        try:
            self.set_result(self.work())
        except BaseException as error:
            self.set_exception(error)
        return self


class Stepped:
    """As `engine.executor.Executor`: work for the drafter's lane waits until the test runs it; waiting moves the clock."""

    def __init__(self, concurrent: bool = True, drafts_come: bool = True) -> None:
        self.concurrent = self.has_room = concurrent
        self.uniform = self.as_plain = True
        self.breaker, self.queue, self.waited, self.drafts_come = (
            Breaker(lambda: Clock.seconds),
            deque[Work](),
            [0.0],
            drafts_come,
        )
        self.shared: list[bool] = []

    def share(self, beside: bool) -> str:
        self.shared.append(beside)
        return "two" if beside else "one"

    @contextmanager
    def plainly(self) -> Iterator[None]:
        yield

    def start(self, name: str, work: Callable[[], Any], serving: object = None) -> Work:
        self.queue.append(Work(work))
        return self.queue[-1]

    def here(self, work: Callable[[], Any]) -> Work:
        return Work(work).run()

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if self.drafts_come and self.queue:
            Clock.seconds += 0.25
            self.queue.popleft().run()
            return True
        Clock.seconds += seconds
        return False

    def lock(self) -> Any:
        return nullcontext()

    def idle(self, name: str) -> bool:
        return not self.queue

    def serving(self, name: str) -> None:
        return None

    def leave_hanging(self, name: str, seconds: float) -> bool:
        return False

    def abandon(self, name: str) -> None:
        self.queue.clear()


@pytest.fixture
def making() -> Callable[..., Decoding]:
    """making(target, request, drafter, executor, **fields of Asking) -> an answer in the making."""
    Clock.seconds = 0.0

    def make(
        target: Any, request: Any, drafts: Drafts, executor: Stepped, policy: DraftPolicy = EAGER, **more: Any
    ) -> Decoding:
        sampling = request.sampling
        stop = StopDetector(sampling.stop_ids, sampling.stop_strings, lambda ids: "".join(f"<{i}>" for i in ids))
        return Decoding(Asking(target, request, stop, drafts, policy, **more), executor, Clock())  # type: ignore[arg-type]

    return make


def test_an_answer_says_what_it_waits_for(tiny: Any, oracle: Any, making: Any) -> None:
    world, executor = tiny(1), Stepped()
    request = world.request(max_new_tokens=9)
    truth = world.answer(request)
    one = making(world.target, request, Drafts((oracle(truth),)), executor)
    assert one.due() is Due.PROMPT
    one.start("two")
    assert one.due() is Due.PROMPT, "the target encodes while the drafter drafts"
    one.read()
    assert (one.due(), one.waits()) == (Due.DRAFT, 2.0), "half of the patience, four steps of a second"
    Clock.seconds = 1.5
    assert (one.due(), one.waits()) == (Due.DRAFT, 0.5)
    executor.queue.popleft().run()
    assert (one.due(), one.waits()) == (Due.FORWARD, 0.0)
    proposal = one.proposal()
    assert proposal.tokens.tolist() == truth[:5]
    one.take(*world.target.score([(one.session, proposal)]))
    assert one.answer.tokens == truth[:6]
    while one.due() is Due.FORWARD:
        one.take(*world.target.score([(one.session, one.proposal())]))
    assert one.due() is Due.NOTHING
    assert one.outcome().token_ids == truth


def test_a_draft_that_is_late_is_left_and_the_next_one_is_not_waited_for(tiny: Any, oracle: Any, making: Any) -> None:
    world, executor = tiny(1), Stepped(drafts_come=False)
    request = world.request(max_new_tokens=4)
    truth = world.answer(request)
    scheduler, one = Scheduler(executor), making(world.target, request, Drafts.by(oracle(truth)), executor)
    scheduler.add(one)
    while scheduler.running:
        scheduler.step()
    assert one.outcome().token_ids == truth
    assert executor.waited[1:] == [2.0]
    assert [r.proposed for r in one.trace.rounds] == [0] * 4
    assert one.trace.notes == ["drafter oracle was late; the target did not wait"]


def test_on_one_device_the_draft_comes_before_the_prompt(tiny: Any, oracle: Any, making: Any) -> None:
    world, executor = tiny(1), Stepped(concurrent=False)
    request = world.request(max_new_tokens=9)
    truth = world.answer(request)
    one = making(world.target, request, Drafts((oracle(truth),)), executor)
    one.start("one")
    assert (one.due(), one.waits()) == (Due.DRAFT, 100.0), "its deadline"
    Clock.seconds = 101.0
    assert one.due() is Due.PROMPT
    assert one.trace.notes == ["drafter oracle did not answer within 100 s; the target went on alone"]
    assert executor.breaker.deadline(one.drafting._ahead[0].drafter, 4.0) == 1.0


class Counting:
    """A target that counts its forwards and how many rounds each had."""

    lossless = True

    def __init__(self, inner: Any) -> None:
        self.inner, self.limits, self.batches = inner, inner.limits, list[int]()

    def encode(self, media: Any, trace: Trace) -> Any:
        return self.inner.encode(media, trace)

    def score(self, batch: Sequence[Any]) -> list[Scores]:
        self.batches.append(len(batch))
        return list(self.inner.score(batch))


def mixed(world: Any, oracle: Any, hostile: Any, count: int, seed: int) -> list[tuple[Any, Drafts]]:
    """Requests of all kinds with drafters of all kinds."""
    rng, found = np.random.default_rng(seed), list[tuple[Any, Drafts]]()
    for number in range(count):
        drawn = {"temperature": 1.0, "seed": number} if number % 3 == 0 else {}
        request = world.request(max_new_tokens=int(rng.integers(1, 30)), **drawn)
        truth = world.answer(request, beyond=8)
        drafter = oracle(truth, hostile(truth, rng) if number % 2 else None, concurrent=number % 4 < 2)
        found.append((request, Drafts() if number % 5 == 0 else Drafts.by(drafter)))
    return found


@pytest.mark.parametrize("most", [2, 5, 8])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_answers_together_are_answers_alone(most: int, seed: int, tiny: Any, oracle: Any, hostile: Any, making: Any) -> None:
    """Methods, settings and lengths of all kinds, trees among them; as one ends another one joins."""
    world = tiny(seed)
    target, executor = Counting(world.target), Stepped()
    asked = mixed(world, oracle, hostile, 24, seed)
    waiting = deque(making(target, request, drafts, executor) for request, drafts in asked)
    everyone, scheduler = list(waiting), Scheduler(executor)
    while waiting or scheduler.running:
        while waiting and len(scheduler.running) < most:
            scheduler.add(waiting.popleft())
        scheduler.step()
    wanted = [world.answer(request)[: request.sampling.max_new_tokens] for request, _ in asked]
    assert [one.outcome().token_ids for one in everyone] == wanted
    rounds = sum(len(one.trace.rounds) for one in everyone)
    assert sum(target.batches) == rounds
    assert max(target.batches) == most
    assert scheduler.forwards == len(target.batches) < 1.6 * rounds / most
    assert Counter(one.trace.shared for one in everyone)[True] > 20


def test_two_targets_have_a_forward_each(tiny: Any, making: Any) -> None:
    worlds, executor = [tiny(0), tiny(1)], Stepped()
    targets = [Counting(world.target) for world in worlds]
    scheduler, made = Scheduler(executor), []
    for world, target in zip(worlds, targets, strict=True):
        made += [scheduler.add(making(target, world.request(max_new_tokens=6), Drafts(), executor)) for _ in range(2)]
    while scheduler.running:
        scheduler.step()
    assert [target.batches for target in targets] == [[2] * 6, [2] * 6]
    wanted = [world.answer(world.request(max_new_tokens=6)) for world in worlds for _ in range(2)]
    assert [one.outcome().token_ids for one in made] == wanted


def test_an_answer_that_fails_or_is_cancelled_leaves_the_others_alone(tiny: Any, oracle: Any, making: Any) -> None:
    world, executor = tiny(2), Stepped()
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)
    too_long = replace(request, sampling=request.sampling.but(max_new_tokens=500))

    def fails(at: int, budget: Budget) -> Proposal:
        raise OSError("gone")

    scheduler, counted = Scheduler(executor), iter(range(100))
    good, bad, left, broken = (
        scheduler.add(making(world.target, asked, Drafts.by(drafter), executor, **more))
        for asked, drafter, more in (
            (request, oracle(truth), {}),
            (too_long, oracle(truth), {}),
            (request, oracle([]), {"cancelled": lambda: next(counted) == 2}),
            (request, oracle(truth, fails), {}),
        )
    )
    ended = []
    while scheduler.running:
        ended += scheduler.step()
    assert set(ended) == {good, bad, left, broken}
    assert good.outcome().token_ids == broken.outcome().token_ids == truth
    assert (left.outcome().token_ids, left.outcome().finish_reason) == (truth[:3], "cancelled")
    assert broken.trace.given_up == ["oracle"]
    with pytest.raises(BadInput, match="exceed the context"):
        bad.outcome()


def test_a_forward_that_fails_ends_the_answers_that_shared_it(tiny: Any, making: Any) -> None:
    world, executor = tiny(2), Stepped()

    class Failing(Counting):
        def score(self, batch: Sequence[Any]) -> list[Scores]:
            raise MemoryError("no room")

    scheduler, failing = Scheduler(executor), Failing(world.target)
    request = world.request(max_new_tokens=4)
    lost = [scheduler.add(making(failing, request, Drafts(), executor)) for _ in range(2)]
    kept = scheduler.add(making(world.target, request, Drafts(), executor))
    while scheduler.running:
        scheduler.step()
    assert kept.outcome().token_ids == world.answer(request)
    for one in lost:
        with pytest.raises(MemoryError):
            one.outcome()


def test_a_target_that_scores_too_few_rounds_is_an_error(tiny: Any, making: Any) -> None:
    world, executor = tiny(2), Stepped()

    class Short(Counting):
        def score(self, batch: Sequence[Any]) -> list[Scores]:
            return super().score(batch)[1:]

    scheduler, short = Scheduler(executor), Short(world.target)
    made = [scheduler.add(making(short, world.request(max_new_tokens=4), Drafts(), executor)) for _ in range(2)]
    while scheduler.running:
        scheduler.step()
    for one in made:
        with pytest.raises(ValueError, match="scores for 1 of 2 rounds"):
            one.outcome()


def test_what_shared_a_forward_is_not_plain_decoding_and_is_settled(tiny: Any, making: Any, wrapped: Any) -> None:
    """A baseline among others: its logits are off by noise, a decision closer than that is read again alone."""
    world, executor, noise = tiny(0), Stepped(), 1e-3

    class Noisy(Counting):
        def score(self, batch: Sequence[Any]) -> list[Scores]:
            found = self.inner.score(batch)
            if len(batch) == 1:
                return list(found)
            for scores in found:
                scores.logits[:, 1::2] += noise
            return list(found)

    target = Noisy(world.target)
    target.limits = replace(target.limits, rounding=4 * noise)
    plain = world.request(max_new_tokens=20)
    truth = world.answer(plain)
    # A bias that leaves the two best tokens half a noise apart, at every one of some positions in turn.
    changed = again = 0
    for place in range(1, 9):
        session = world.target.encode(plain.media, Trace()).open(plain.question, plain.sampling, 1, Trace())
        row = session.score(Proposal.chain(truth[:place])).logits[-1]
        values, tokens = row.topk(2)
        bias = {int(tokens[1]): float(values[0] - values[1]) - noise / 2}
        request = replace(plain, sampling=plain.sampling.but(logit_bias=bias))
        wanted = world.answer(request)
        for settle in (True, False):
            scheduler = Scheduler(executor)
            made = [making(target, request, Drafts(), executor, replace(EAGER, settle=settle)) for _ in range(3)]
            for one in made:
                scheduler.add(one)
            while scheduler.running:
                scheduler.step()
            if settle:
                assert [one.outcome().token_ids for one in made] == [wanted] * 3
                again += scheduler.forwards - 20
            changed += not settle and made[0].outcome().token_ids != wanted
    assert changed > 0, "without settling the noise shows"
    assert again > 0, "what is read again is counted"


def test_the_target_has_fewer_cores_while_any_drafter_works_beside_it(tiny: Any, oracle: Any, making: Any) -> None:
    world, executor = tiny(1), Stepped()
    request = world.request(max_new_tokens=4)
    scheduler = Scheduler(executor)
    for drafts in (Drafts(), Drafts.by(oracle(world.answer(request))), Drafts()):
        scheduler.add(making(world.target, request, drafts, executor))
    assert executor.shared == [False, True, True]
    while scheduler.running:
        scheduler.step()
        assert executor.shared[-1] == any(one.drafting.overlaps for one in scheduler.running) or not scheduler.running
    scheduler.add(making(world.target, request, Drafts(), executor))
    scheduler.end()
    assert scheduler.running == []
