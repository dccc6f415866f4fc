"""The loop: both lanes start at once, then propose, score, verify, commit, round by round. The output is the target's own.

A drafter that raises, hangs past its deadline or dies costs speed only: the loop goes on with an empty proposal and the
trace says why. Nothing here reads a file, the environment or a global.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eventspec.core import (
    Budget,
    Committed,
    Drafter,
    DraftSession,
    Proposal,
    Provisional,
    Request,
    Retracted,
    Round,
    Scores,
    Target,
    TargetSession,
    Trace,
    Update,
    Verdict,
)
from eventspec.engine.distribution import advanced, hopeless
from eventspec.engine.lanes import Lanes, Late, Pending
from eventspec.engine.plan import NO_TAIL, Plan
from eventspec.engine.tree import BadProposal, check, depths
from eventspec.engine.verify import chance, verify

Emit = Callable[[Update], None]
Stopped = Callable[[Sequence[int], int], int | None]
"""(answer so far, how many were checked before) -> how many tokens to keep when the answer ends there, else None."""


@dataclass
class Outcome:
    """The answer: token ids (the stop token included), and why it ended: stop, length or cancelled."""

    token_ids: list[int]
    finish_reason: str


class _Drafting:
    """One drafter during one request, on its own lane or inline; all its failures end here.

    Waiting is paid from a credit that grows with what was accepted, so a drafter that is slow and wrong costs no more than the
    plan's patience; one wait takes half of it at most, so that a drafter may be late once. A late draft is left: the target
    goes on, and the drafter catches up with what was committed.
    """

    def __init__(self, drafter: Drafter, request: Request, lanes: Lanes, plan: Plan, trace: Trace) -> None:
        self.drafter, self.request, self.lanes, self.plan, self.trace = drafter, request, lanes, plan, trace
        self.overlaps = drafter.concurrent and lanes.concurrent
        self.session: DraftSession | None = None
        self.alive = True
        self.unseen: list[tuple[Verdict, Scores]] = []
        self.enough = False  # the target waits, or the request is over: what drafts ahead ends with the step it is in
        self._pending: Pending[Proposal] | None = None
        self._late = False  # what is pending was waited for once, and is not again
        self._credit = plan.wait  # seconds the target may still wait

    def head_start(self, budget: Budget) -> bool:
        """Begin to encode and draft while the target does the same; whether a draft is there or may still come."""
        if self.drafter.taps:
            return False
        self._leave_hanging_lane()

        def work() -> Proposal:
            self.session = self.drafter.open(self.request, None, self.trace)
            return self._propose(budget)

        return self._begin(work)

    def open(self, target: TargetSession) -> None:
        """Start a drafter that reads the target's layers."""
        if self.drafter.taps:
            try:
                self.session = self.drafter.open(self.request, target, self.trace)
            except Exception as error:
                self._give_up(_failed(error))

    def follow(self, verdict: Verdict, scores: Scores, budget: Budget | None) -> Proposal:
        """Tell the drafter what was committed and let it draft the next round (budget None = no more drafts are wanted)."""
        if not self.alive or budget is None or budget.nodes < 1:
            return Proposal.empty()
        self.unseen.append((verdict, scores))
        self._credit = min(self.plan.wait, self._credit + len(verdict.path) * self.plan.worth * self.plan.step_seconds)
        self.enough = True
        if not self._late:
            self.collect()
        if not self._free():
            return Proposal.empty()

        def work() -> Proposal:
            session = self.session
            assert session is not None
            while self.unseen:
                session.observe(*self.unseen.pop(0))
            return self._propose(budget)

        self._begin(work)
        return self.collect()

    def go_on(self, left: int) -> None:
        """Let the drafter deepen its tree while the target verifies; what it foresaw rightly is there at once."""
        wanted = self.plan.ahead and self.plan.nodes > 0 and left > 2
        if wanted and self.overlaps and self.alive and self._pending is None and self.session is not None:
            self.enough = False
            budget = Budget(self.plan.head_nodes, lambda: self.enough, self.plan.floor, levels=left)
            self._begin(lambda: self._propose(budget))

    def _free(self) -> bool:
        """Whether the drafter can take new work; one that is past its deadline is given up."""
        if self._pending is None:
            return True
        if self._pending.done():
            self.collect()  # it drafted for a prefix that has been left behind; only its failure matters now
            return self.alive
        if self._leave_hanging_lane():
            self._give_up(f"did not answer within {self.plan.deadline:g} s")
        return False

    def _leave_hanging_lane(self) -> bool:
        """Abandon the drafter's lane when what runs there is past the deadline; it may be an earlier request's work."""
        if not self.drafter.concurrent or self.lanes.lane("drafter").busy_seconds <= self.plan.deadline:
            return False
        self.lanes.abandon("drafter")
        return True

    def collect(self) -> Proposal:
        """The draft in the making, if it comes while the target is patient; else nothing, and the drafter catches up later."""
        if self._pending is None:
            return Proposal.empty()
        began = self.trace.now()
        try:
            proposal = self._pending.result(max(0.0, self._credit / 2))
        except Late:
            self._late = True
            self.trace.note(f"drafter {self.drafter.name} was late; the target did not wait")
            return Proposal.empty()
        except Exception as error:
            self._give_up(_failed(error))
            return Proposal.empty()
        finally:
            self._credit -= self.trace.now() - began
        self._pending = None
        return proposal

    def refused(self, why: BadProposal) -> Proposal:
        """The target cannot read what was drafted: the drafter is given up, and this is the proposal to go on with."""
        self._give_up(_failed(why))
        return Proposal.empty()

    def _propose(self, budget: Budget) -> Proposal:
        began = self.trace.now()
        assert self.session is not None
        proposal = self.session.propose(budget)
        self.trace.span("draft", "drafter" if self.drafter.concurrent else "target", began)
        return check(proposal, budget)

    def _begin(self, work: Callable[[], Proposal]) -> bool:
        """Start it beside the target, or have it done first; whether a draft is there or may still come."""
        self._late = False
        if self.overlaps:
            self._pending = self.lanes.lane("drafter").start(work)
            return True
        self._pending = Pending()
        try:
            # A model of its own has a thread of its own also where it shares the device, because it may hang.
            alone = self.drafter.concurrent
            proposal = self.lanes.lane("drafter").start(work).result(self.plan.deadline) if alone else work()
            self._pending.set(proposal, None)
            return len(proposal) > 0
        except Late:
            self.lanes.abandon("drafter")
            self._pending = None
            self._give_up(f"did not answer within {self.plan.deadline:g} s")
        except Exception as error:
            self._pending.set(None, error)
        return False

    def _give_up(self, why: str) -> None:
        self.alive = False
        self.trace.note(f"drafter {self.drafter.name} {why}; the target went on alone")


def _failed(error: Exception) -> str:
    """What happened, one line: behind a traceback of other code, as TorchScript's texts have it, it stands last."""
    kind, lines = f"{type(error).__name__}: ", [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"failed: {kind}{lines[-1].removeprefix(kind) if lines else '(no text)'}"


class _Display:
    """What the reader has been shown: keeps provisional tokens in step with committed ones. Both lanes come here."""

    def __init__(self, emit: Emit, trace: Trace) -> None:
        self.emit, self.trace, self.shown = emit, trace, list[int]()
        self._committed = 0
        self._lock = threading.Lock()

    def behind(self, committed: int) -> Callable[[list[int]], None]:
        """What shows a drafter's best chain behind so many committed tokens. A late draft, behind fewer, is not shown."""

        def show(chain: list[int]) -> None:
            with self._lock:
                if chain and committed == self._committed:
                    self._provisional(chain)

        return show

    def _provisional(self, chain: list[int]) -> None:
        self.trace.mark("first_provisional")
        self._withdraw_to(_common(self.shown, chain))
        if len(chain) > len(self.shown):
            self.trace.provisional += len(chain) - len(self.shown)
            self.emit(Provisional(tuple(chain[len(self.shown) :])))
            self.shown = list(chain)

    def committed(self, tokens: list[int]) -> None:
        """Commit; what was shown and does not fit is withdrawn before."""
        with self._lock:
            self.trace.mark("first_committed")
            same = _common(self.shown, tokens)
            if same < len(tokens):
                self._withdraw_to(same)
            self.shown = self.shown[len(tokens) :]
            self._committed += len(tokens)
            self.emit(Committed(tuple(tokens)))

    def end(self) -> None:
        """Withdraw what was never committed; a draft that is still in the making is shown to nobody."""
        with self._lock:
            self._committed = -1
            self._withdraw_to(0)

    def _withdraw_to(self, count: int) -> None:
        if len(self.shown) > count:
            self.trace.retracted += len(self.shown) - count
            self.emit(Retracted(len(self.shown) - count))
            self.shown = self.shown[:count]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
    drafting, display = _Drafting(drafter, request, lanes, plan, trace), _Display(emit, trace)
    try:
        most = request.sampling.max_new_tokens
        ahead = drafting.head_start(plan.head_start(lambda: drafting.enough, display.behind(0), max(1, most - 1)))
        session = target.prefill(request, plan.tail if ahead else NO_TAIL, trace, drafter.taps)
        drafting.enough = True
        drafting.open(session)
        return _rounds(session, drafting, display, stopped, cancelled)
    finally:
        drafting.enough = True
        display.end()


def _rounds(
    session: TargetSession, drafting: _Drafting, display: _Display, stopped: Stopped, cancelled: Callable[[], bool]
) -> Outcome:
    plan, trace, sampling = drafting.plan, drafting.trace, drafting.request.sampling
    draws, most = chance(sampling.seed), sampling.max_new_tokens
    answer: list[int] = []
    state = None if sampling.constraint is None else sampling.constraint.start()

    def judged(proposal: Proposal) -> tuple[Scores, float, Verdict]:
        proposal = Proposal.empty() if hopeless(proposal, state) else proposal
        scores = session.score(proposal)
        return scores, trace.now(), verify(scores.logits, proposal, sampling, answer, draws, state)

    proposal, first = drafting.collect(), True
    while True:
        drafting.go_on(most - len(answer))
        began = trace.now()
        try:
            scores, scored, verdict = judged(proposal)
        except BadProposal as error:
            proposal = drafting.refused(error)
            scores, scored, verdict = judged(proposal)
        session.commit(verdict)
        fresh = verdict.tokens.tolist()
        kept = stopped([*answer, *fresh[: most - len(answer)]], len(answer))
        fresh = fresh[: (most if kept is None else kept) - len(answer)]
        answer += fresh
        for token in fresh:
            state = advanced(state, token, sampling)
        display.committed(fresh)
        trace.span("prefill" if first else "verify" if len(proposal) else "decode", "target", began)
        rounded, drafted = trace.now(), trace.forwards.get("drafter", 0.0)
        over = kept is not None or len(answer) >= most or cancelled()
        budget = None if over else plan.later(most - len(answer) - 1, display.behind(len(answer)))
        following = drafting.follow(verdict, scores, budget)
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

    pending = lanes.lane("target").start(whole)
    while (update := updates.get()) is not None:
        yield update
    pending.result()
