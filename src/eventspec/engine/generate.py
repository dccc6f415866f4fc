"""The loop: both lanes start at once, then propose, score, verify, commit, round by round. The output is the target's own.

Nothing here reads a file, the environment or a global. What a drafter can do to a request stands in ``engine.draft_worker``,
what rounding can do to it in ``engine.numerics``.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from copy import copy
from typing import Protocol, runtime_checkable

from eventspec.core import Context, Request, Target, TargetSession, Trace, Update, never
from eventspec.engine.answer import Answer, Outcome, StopCheck
from eventspec.engine.display import Display, Emit, ignore
from eventspec.engine.drafting import Drafting
from eventspec.engine.drafts import Drafts
from eventspec.engine.numerics import Numerics, PlainDecoding
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.engine.workers import Workers
from eventspec.tree import named_by, within

Encode = Callable[[Trace], Context]


@runtime_checkable
class OnLanes(Protocol):
    """A context that can use the drafter's lane too, before the target has its first question."""

    def on_lanes(self, workers: Workers) -> None:
        """The lanes of the request whose question comes next."""


def run(
    target: Target,
    drafts: Drafts,
    request: Request,
    policy: DraftPolicy,
    workers: Workers,
    trace: Trace,
    stop: StopCheck,
    emit: Emit = ignore,
    cancelled: Callable[[], bool] = never,
    encode: Encode | None = None,
) -> Outcome:
    """Answer one request; call it on the target's lane. `emit` hears every update, `cancelled` is asked once a round;
    `encode` gives the recording as the target sees it, where it may have been encoded before."""
    limits = target.limits
    sampling = copy(request.sampling)  # drafters have the request
    answer = Answer(sampling, Numerics(limits.rounding), stop)
    display = Display(emit, sampling, limits.vocabulary, trace)
    drafting = Drafting(drafts, request, policy, workers, limits, display, trace)
    try:
        drafting.start(answer)
        context = target.encode(request.media, trace) if encode is None else encode(trace)
        if isinstance(context, OnLanes):
            context.on_lanes(workers)
        tail = policy.tail if drafting.coming else NO_TAIL  # what is there is verified in the forward that reads the prompt
        session = context.open(request.question, sampling, tail, trace, drafting.taps)
        drafting.attach(session)
        plainly = PlainDecoding(session)
        answer.numerics = Numerics(limits.rounding, plainly.settle if policy.settle else None)
        answer.plain = not session.chunked
        outcome = decode(session, drafting, answer, display, trace, cancelled)
        if plainly.failure:
            trace.note(f"near ties could not be settled ({plainly.failure}): another numerical path may decide them otherwise")
        return outcome
    finally:
        drafting.end()
        display.end()


def decode(
    session: TargetSession,
    drafting: Drafting,
    answer: Answer,
    display: Display,
    trace: Trace,
    cancelled: Callable[[], bool],
) -> Outcome:
    """Commit tokens round by round until the answer ends. What is committed is the target's own."""
    proposal = drafting.head_start(answer)
    while True:
        drafting.look_ahead(answer.remaining)
        proposal = within(proposal, session.room)
        with trace.round(len(proposal), proposal.depth, proposal.origin) as record:
            proposal = answer.admissible(proposal)
            scores = session.score(proposal)
            record.scored()
            verdict = answer.verify(scores.logits, proposal)
            session.commit(verdict)
            fresh = answer.extend(verdict)
            display.commit(fresh)
            record.decided(len(proposal), len(verdict.path), fresh, named_by(proposal, verdict.path[: len(fresh)]))
        if answer.finished or cancelled():
            trace.near_ties = answer.near_ties
            return answer.outcome()
        proposal = drafting.next(verdict, scores, answer)


def stream(work: Callable[[Emit], Outcome], workers: Workers) -> Iterator[Update]:
    """Run `work` on the target's lane and yield its updates as they happen; an error in it is raised here."""
    updates: queue.SimpleQueue[Update | None] = queue.SimpleQueue()

    def whole() -> Outcome:
        try:
            return work(updates.put)
        finally:
            updates.put(None)

    process, pending = os.getpid(), workers.start("target", whole)
    while True:
        if os.getpid() != process:
            raise RuntimeError("this answer was begun before a fork, and its threads stayed behind: ask again in the child")
        if (update := updates.get()) is None:
            break
        yield update
    pending.result()
