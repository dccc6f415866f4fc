"""One drafter during one request: its lane, its deadline, what waiting for it may cost. All its failures end here.

A drafter is anybody's code. Whatever it raises is caught, BaseException included; whatever it hands over is copied and checked
before the target sees it; what hangs is left behind. Each of these costs the request its drafts, never its answer, and the
trace says what happened.
"""

from __future__ import annotations

import operator
import threading
from typing import Any

from eventspec.core import Budget, Drafter, DraftSession, Limits, Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.engine.lanes import Lanes, Pending
from eventspec.engine.plan import Plan
from eventspec.engine.tree import BadProposal, check, fit


class DraftWorker:
    """`drafter` on its own lane, or inline where lanes do not overlap.

    Waiting is paid from a credit that grows with what was accepted, so a drafter that is slow and wrong costs no more than the
    plan's patience; one wait takes half of it at most, so that a drafter may be late once. A late draft is left: the target
    goes on, and the drafter catches up with what was committed. A drafter that hung in several requests is left alone
    (`engine.breaker`).
    """

    def __init__(self, drafter: Drafter, request: Request, lanes: Lanes, plan: Plan, limits: Limits, trace: Trace) -> None:
        self.drafter, self.request, self.lanes, self.plan = drafter, request, lanes, plan
        self.limits, self.trace = limits, trace
        self.name, self.concurrent, self.alive = "", False, True
        self.taps: tuple[int, ...] = ()
        self.session: DraftSession | None = None
        self.target: TargetSession | None = None  # for a drafter with taps, from `attach` on
        self.enough = False  # the target waits, or the request is over: what drafts ahead ends with the step it is in
        self._pending_verdicts: list[tuple[Verdict, Scores]] = []
        self._pending: Pending[Proposal] | None = None
        self._late = False  # what is pending was waited for once, and is not again
        self._credit = plan.wait  # seconds the target may still wait
        self._deadline = lanes.breaker.deadline(drafter, plan.deadline)
        self._answered = False
        self._introduce()

    def _introduce(self) -> None:
        """Ask the drafter, once, what it is."""
        try:
            self.name = str(self.drafter.name)[:80]
            self.concurrent = bool(self.drafter.concurrent)
            self.taps = _usable_taps(self.drafter.taps, self.limits.layers)
        except BaseException as error:
            self._failed(error)
        if self.alive and self.concurrent:
            self._leave_hanging_lane()  # it may be an earlier request's, even another drafter's
            if rest := self.lanes.breaker.resting(self.drafter):
                self._give_up(f"hung in the requests before and is left alone for {rest:.0f} s")

    @property
    def overlaps(self) -> bool:
        return self.concurrent and self.lanes.concurrent

    def head_start(self, budget: Budget) -> bool:
        """Begin to encode and draft while the target does the same; whether a draft is there or may still come."""
        if self.taps or not self.alive:
            return False
        self._begin(budget)
        return self._pending is not None and (self.overlaps or bool(self._pending.value))

    def attach(self, target: TargetSession) -> None:
        """The target's prompt is being read: a drafter with taps may open from now on, which it does with its first draft."""
        self.target = target

    def follow(self, verdict: Verdict, scores: Scores, budget: Budget | None) -> Proposal:
        """Tell the drafter what was committed and let it draft the next round (budget None = no more drafts are wanted)."""
        if not self.alive or budget is None or budget.nodes < 1:
            return Proposal.empty()
        self._pending_verdicts.append((verdict, scores))
        self._credit = min(self.plan.wait, self._credit + len(verdict.path) * self.plan.worth * self.plan.step_seconds)
        self.enough = True
        if not self._late:
            self.collect()
        if not self._free():
            return Proposal.empty()
        self._begin(budget)
        return self.collect()

    def go_on(self, left: int) -> None:
        """Let the drafter deepen its tree while the target verifies; what it foresaw rightly is there at once."""
        wanted = self.plan.ahead and self.plan.nodes > 0 and left > 2
        if wanted and self.overlaps and self.alive and self._pending is None and self.session is not None:
            self.enough = False
            self._begin(Budget(self.plan.head_nodes, lambda: self.enough, self.plan.floor, levels=left))

    def collect(self) -> Proposal:
        """The draft in the making, if it comes while the target is patient; else nothing, and the drafter catches up later."""
        if self._pending is None:
            return Proposal.empty()
        began = self.trace.now()
        ready = self._pending.wait(max(0.0, self._credit / 2))
        self._credit -= self.trace.now() - began
        if not ready:
            self._late = True
            self.trace.note(f"drafter {self.name} was late; the target did not wait")
            return Proposal.empty()
        return self._taken()

    def end(self) -> None:
        """The request is over: what is drafted ahead ends with the step it is in."""
        self.enough = True
        if self.concurrent and self.alive and self._answered:
            self.lanes.breaker.came_back(self.drafter)  # a whole request long: one good call does not excuse the next

    def fitting(self, proposal: Proposal, room: int) -> Proposal:
        """What the target can read of a proposal; a drafter whose tokens the target does not have is given up."""
        try:
            return fit(proposal, self.limits, room)
        except BadProposal as error:
            self._failed(error)
            return Proposal.empty()

    def _begin(self, budget: Budget) -> None:
        """Start a draft beside the target, or have it made first."""
        self._late = False
        if not self.concurrent:
            self._pending = self._made(budget)
            return
        try:
            self._pending = self.lanes.lane("drafter").start(lambda: self._draft(budget), self.drafter)
        except RuntimeError as error:  # no thread to be had
            self._failed(error)
            return
        # A model of its own has a thread of its own also where it shares the device, because it may hang.
        if not self.overlaps and not self._pending.wait(self._deadline):
            self._pending = None
            self.lanes.breaker.hung(self.drafter)
            self.lanes.abandon("drafter")
            self._give_up(f"did not answer within {self._deadline:g} s")

    def _made(self, budget: Budget) -> Pending[Proposal]:
        """A draft that was made on this thread."""
        pending: Pending[Proposal] = Pending()
        try:
            pending.set(self._draft(budget), None)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user's own: signals reach this thread only
            pending.set(None, error)
        return pending

    def _draft(self, budget: Budget) -> Proposal:
        """What runs on the drafter's lane: open, catch up with what was committed, propose."""
        if self.session is None:
            self.session = self.drafter.open(self.request, self.target if self.taps else None, self.trace)
        while self._pending_verdicts:
            self.session.observe(*self._pending_verdicts.pop(0))
        began = self.trace.now()
        proposal = self.session.propose(budget)
        self.trace.span("draft", "drafter" if self.concurrent else "target", began)
        return check(proposal, budget)

    def _taken(self) -> Proposal:
        """The pending draft, which is ready."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        if pending.error is not None:
            self._failed(pending.error)
            return Proposal.empty()
        self._answered = True
        assert pending.value is not None
        return pending.value

    def _free(self) -> bool:
        """Whether the drafter can take new work; one that is past its deadline is given up."""
        if self._pending is None:
            return self.alive
        if self._pending.done():
            self._taken()  # it drafted for a prefix that has been left behind; only its failure matters now
            return self.alive
        if self._leave_hanging_lane():
            self._give_up(f"did not answer within {self._deadline:g} s")
        return False

    def _leave_hanging_lane(self) -> bool:
        """Leave the drafter's lane when what runs there is past the deadline."""
        left = self.lanes.leave_hanging("drafter", self._deadline)
        if left is not None:
            self.lanes.breaker.hung(left.serving)
        return left is not None

    def _failed(self, error: BaseException) -> None:
        self._give_up(_told(error))

    def _give_up(self, why: str) -> None:
        self.alive, self.taps = False, ()
        self.trace.note(f"drafter {self.name} {why}; the target went on alone")


def _usable_taps(taps: Any, layers: int) -> tuple[int, ...]:
    """The layers that a drafter reads; ValueError for one that the target does not have."""
    found = tuple(operator.index(layer) for layer in taps)
    if wrong := [layer for layer in found if not -1 <= layer <= layers]:
        raise ValueError(f"taps layer {wrong[0]}: the target's are 0 (embeddings) to {layers}, and -1 (behind the final norm)")
    return found


def _told(error: BaseException) -> str:
    """What happened, one line: behind a traceback of other code, as TorchScript's texts have it, it stands last."""
    kind = f"{type(error).__name__}: "
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except BaseException:  # even its text may be the drafter's own code
        lines = []
    return f"failed: {kind}{lines[-1].removeprefix(kind)[:300] if lines else '(no text)'}"
