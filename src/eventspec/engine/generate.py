"""The loop: both lanes start at once, then propose, score, verify, commit, round by round. The output is the target's own.

Nothing here reads a file, the environment or a global. What a drafter can do to a request stands in ``engine.draft_worker``,
what rounding can do to it in ``engine.numerics``.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from eventspec.core import Drafter, Proposal, Request, Round, Target, TargetSession, Trace, Update
from eventspec.engine.display import Display, Emit
from eventspec.engine.distribution import advanced, no_admissible_root, position_rng
from eventspec.engine.draft_worker import DraftWorker
from eventspec.engine.lanes import Lanes
from eventspec.engine.numerics import Numerics, PlainDecoding
from eventspec.engine.plan import NO_TAIL, Plan
from eventspec.engine.tree import depths
from eventspec.engine.verify import verify

Stopped = Callable[[Sequence[int], int], int | None]
"""(answer so far, how many were checked before) -> how many tokens to keep when the answer ends there, else None."""


@dataclass
class Outcome:
    """The answer: token ids (the stop token included), and why it ended: stop, length or cancelled."""

    token_ids: list[int]
    finish_reason: str


def run(
    target: Target,
    drafter: Drafter,
    request: Request,
    plan: Plan,
    lanes: Lanes,
    trace: Trace,
    stopped: Stopped,
    emit: Emit = lambda update: None,
    cancelled: Callable[[], bool] = bool,
) -> Outcome:
    """Answer one request; call it on the target's lane. `emit` hears every update, `cancelled` is asked once a round."""
    limits, sampling = target.limits, request.sampling
    worker = DraftWorker(drafter, request, lanes, plan, limits, trace)
    display = Display(emit, sampling, limits.vocabulary, trace)
    try:
        state = None if sampling.constraint is None else sampling.constraint.start()
        show, longest = display.behind((), state, worker.name), max(1, sampling.max_new_tokens - 1)
        ahead = worker.head_start(plan.head_start(lambda: worker.enough, show, longest))
        session = target.prefill(request, plan.tail if ahead else NO_TAIL, trace, worker.taps)
        worker.enough = True
        worker.attach(session)
        settle = PlainDecoding(session).logits if plan.settle else None
        return _rounds(session, worker, display, Numerics(limits.rounding, settle), ahead, stopped, cancelled)
    finally:
        worker.end()
        display.end()


def _rounds(
    session: TargetSession,
    worker: DraftWorker,
    display: Display,
    numerics: Numerics,
    in_parts: bool,
    stopped: Stopped,
    cancelled: Callable[[], bool],
) -> Outcome:
    """`in_parts`: the prompt was not read in one forward, as plain decoding reads it."""
    plan, trace, sampling = worker.plan, worker.trace, worker.request.sampling
    rng, most = position_rng(sampling.seed), sampling.max_new_tokens
    answer: list[int] = []
    state = None if sampling.constraint is None else sampling.constraint.start()

    proposal, first = worker.collect(), True
    while True:
        worker.go_on(most - len(answer))
        began = trace.now()
        read = Proposal.empty() if no_admissible_root(proposal, state) else worker.fitting(proposal, session.room)
        in_parts |= len(read) > 0
        scores, scored = session.score(read), trace.now()
        # Until something was drafted, this is plain decoding itself: there is nothing to settle.
        trusted = numerics if in_parts else replace(numerics, settle=None)
        verdict = verify(scores.logits, read, sampling, answer, rng, state, trusted)
        session.commit(verdict)
        fresh = verdict.tokens.tolist()
        kept = stopped([*answer, *fresh[: most - len(answer)]], len(answer))
        fresh = fresh[: (most if kept is None else kept) - len(answer)]
        answer += fresh
        for token in fresh:
            state = advanced(state, token, sampling)
        display.commit(fresh)
        trace.near_ties += sum(place < len(fresh) for place in verdict.near_ties)
        trace.span("prefill" if first else "verify" if len(read) else "decode", "target", began)
        rounded, drafted = trace.now(), trace.forwards.get("drafter", 0.0)
        over = kept is not None or len(answer) >= most or cancelled()
        show = display.behind(answer, state, worker.name)
        budget = None if over else plan.later(most - len(answer) - 1, show)
        following = worker.follow(verdict, scores, budget)
        levels = max(depths(proposal.parents.tolist()), default=-1) + 1
        counts = (len(proposal), levels, min(len(verdict.path), len(fresh)), len(fresh), proposal.origin, first)
        drafted = trace.forwards.get("drafter", 0.0) - drafted
        trace.rounds.append(Round(*counts, scored - began, rounded - began, trace.now() - rounded, drafted))
        if over:
            break
        proposal, first = following, False
    reason = "stop" if kept is not None else "length" if len(answer) >= most else "cancelled"
    return Outcome(answer, reason)


def stream(work: Callable[[Emit], Outcome], lanes: Lanes) -> Iterator[Update]:
    """Run `work` on the target's lane and yield its updates as they happen; an error in it is raised here."""
    updates: queue.SimpleQueue[Update | None] = queue.SimpleQueue()

    def whole() -> Outcome:
        try:
            return work(updates.put)
        finally:
            updates.put(None)

    process, pending = os.getpid(), lanes.lane("target").start(whole)
    while True:
        if os.getpid() != process:
            raise RuntimeError("this answer was begun before a fork, and its threads stayed behind: ask again in the child")
        if (update := updates.get()) is None:
            break
        yield update
    pending.result()
