"""One drafter during one request: its lane, its deadline, what waiting for it may cost. All its failures end here.

A drafter is anybody's code. Whatever it raises is caught, BaseException included; whatever it hands over is copied and checked
before the target sees it; what hangs is left behind. Each of these costs the request its drafts, never its answer, and the
trace says what happened.
"""

from __future__ import annotations

from eventspec.core import Budget, Drafter, DraftSession, Proposal, Request, Scores, TargetPrompt, TargetSession, Verdict
from eventspec.engine.guard import DrafterFailed, PromptOf, described, usable_taps
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.worker import Pending, done_here
from eventspec.engine.workers import Workers
from eventspec.trace import Lane, Trace
from eventspec.tree import check, exact_text


class DraftWorker:
    """`drafter` on its own lane, or inline where the lanes do not overlap.

    Waiting is paid from a credit that grows with what was accepted, so a drafter that is slow and wrong costs no more than the
    policy's patience; one wait takes half of it at most, so that a drafter may be late once. A late draft is left: the target
    goes on, and the drafter catches up with what was committed. One that hung often is left alone (`engine.breaker`).
    """

    def __init__(
        self, drafter: Drafter, request: Request, workers: Workers, policy: DraftPolicy, layers: int, trace: Trace
    ) -> None:
        self.drafter, self.request, self.workers, self.policy, self.trace = drafter, request, workers, policy, trace
        self.own = trace.beside()  # what the drafter writes to
        self.name, self.needs_target, self.concurrent, self.any_thread, self.alive = "", False, False, False, True
        self.taps: tuple[int, ...] = ()
        self.session: DraftSession | None = None
        self.target: TargetPrompt | None = None  # from `attach` on
        self.awaited = True  # else other drafts will do in later rounds: what is not there at once is left
        self.enough = False  # the target waits, or the request is over: what drafts ahead ends with the step it is in
        self._pending_verdicts: list[tuple[Verdict, Scores]] = []
        self._pending: Pending[Proposal] | None = None
        self.ahead: Pending[Proposal] | None = None  # the head start
        self._lane: Lane = "target"  # where the latest draft was made
        self._wanted = False  # what is pending is a draft for the next round
        self._late = False  # what is pending was waited for once, and is not again
        self._later = False  # the first round is over: from then on the target waits for drafts
        self._credit = policy.wait  # seconds the target may still wait
        self.deadline, self._answered = workers.breaker.deadline(drafter, policy.deadline), False
        self._introduce(layers)

    def _introduce(self, layers: int) -> None:
        """Ask the drafter, once, what it is."""
        try:
            self.name = exact_text(self.drafter.name, 80)
            self.needs_target, self.concurrent = bool(self.drafter.needs_target), bool(self.drafter.concurrent)
            self.any_thread = getattr(self.drafter, "any_thread", False) is True
            self.taps = usable_taps(self.drafter.taps, layers)
        except BaseException as error:
            self.failed(error)
        if self.alive and self.concurrent:
            self._leave_hanging_lane()  # it may be an earlier request's, even another drafter's
            if rest := self.workers.breaker.resting(self.drafter):
                self._give_up(f"hung in the requests before and is left alone for {rest:.0f} s")

    @property
    def overlaps(self) -> bool:
        """Whether it drafts beside the target."""
        return self.concurrent and self.policy.beside and self.workers.concurrent

    @property
    def coming(self) -> bool:
        """Whether it is drafting just now, beside the target."""
        return self.overlaps and self._pending is not None and not self._pending.done()

    def told_enough(self) -> bool:
        """Whether what is drafted ahead, or beside others, is to end with the step it is in."""
        return self.enough

    def head_start(self, budget: Budget, on_lane: bool = False) -> None:
        """Begin to encode and draft while the target does the same, or before it; `on_lane`: on the drafter's lane also where
        later drafts are made on the target's own thread, if the drafter runs on any."""
        if self.alive and not self.needs_target:
            self._begin(budget, on_lane and self.any_thread)
            self._wanted, self.ahead = True, self._pending

    def attach(self, target: TargetSession) -> None:
        """The target reads its prompt: a drafter that needs it may open from now on, and does with its first draft."""
        self.target = PromptOf(target)

    def follow(self, verdict: Verdict, scores: Scores, budget: Budget | None) -> None:
        """Tell the drafter what was committed and let it begin to draft the next round, see `collect` (budget None = no more
        drafts are wanted)."""
        if not self.alive or budget is None or budget.max_nodes < 1:
            return
        self._pending_verdicts.append((verdict, scores))
        self._credit = min(self.policy.wait, self._credit + len(verdict.path) * self.policy.worth * self.policy.step_seconds)
        self.enough = self._later = True
        if not self._late:
            self._waited_for()
        if not self._free():
            return
        if not self.overlaps and self._credit < 0:
            self.alive = False
            self.trace.note(f"drafter {self.name} took longer than its drafts save; the target goes on alone")
            return
        self.enough = False
        self._begin(budget)
        self._wanted = True

    def look_ahead(self, left: int) -> None:
        """Let the drafter deepen its tree while the target verifies; what it foresaw rightly is there at once."""
        wanted = self.policy.look_ahead and self.policy.max_nodes > 0 and left > 2
        if wanted and self.overlaps and self.alive and self._pending is None and self.session is not None:
            self.enough = False
            self._begin(self.policy.meanwhile(self.told_enough, left))

    def collect(self) -> Proposal:
        """The draft that was begun for this round, if it comes while the target is patient; else it catches up later."""
        wanted, self._wanted = self._wanted, False
        return self._waited_for() if wanted else Proposal.empty()

    def _waited_for(self) -> Proposal:
        """What is pending, if it comes while the target is patient."""
        if self._pending is None:
            return Proposal.empty()
        began, patient = self.trace.now(), self.awaited or not self._later
        ready = self._pending.wait(max(0.0, self._credit / 2) if patient else 0.0)
        self._credit -= self.trace.now() - began
        if ready:
            return self._taken()
        self._late = True
        if self.awaited:
            waits = self.concurrent and self.workers.serving("drafter") not in (None, self.drafter)
            behind = " behind another drafter that is still at work on its lane" if waits else ""
            self.trace.note(f"drafter {self.name} was late{behind}; the target did not wait")
        return Proposal.empty()

    def end(self) -> None:
        """The request is over: what is drafted ahead ends with the step it is in."""
        self.enough = True
        # What it still does may be hanging just now.
        done = (self._pending is None or self._pending.done()) and self.workers.serving("drafter") is not self.drafter
        if self.concurrent and self.alive and self._answered and done:
            self.workers.breaker.came_back(self.drafter)  # a whole request long: one good call does not excuse the next

    def _begin(self, budget: Budget, on_lane: bool = False) -> None:
        """Start a draft beside the target, or have it made first."""
        self._late, self._lane = False, "drafter" if self.concurrent or on_lane else "target"
        if self._lane == "target":
            self._pending = done_here(lambda: self._draft(budget))
            return
        try:
            self._pending = self.workers.start("drafter", lambda: self._told(budget), self.drafter)
        except RuntimeError as error:  # no thread to be had
            self.failed(error)
            return
        # A model of its own has a thread of its own also where it shares the device, because it may hang.
        if self.overlaps or on_lane:
            return
        began = self.trace.now()
        ready = self._pending.wait(self.deadline)
        self._credit -= self.trace.now() - began if self._later else 0.0
        if not ready:
            self._pending = None
            self.workers.breaker.hung(self.drafter)
            self.workers.abandon("drafter")
            self._give_up(f"did not answer within {self.deadline:g} s")

    def _told(self, budget: Budget) -> Proposal:
        """`_draft`, whose failure is put into words on the drafter's lane: an error's text is the drafter's code too."""
        try:
            return self._draft(budget)
        except BaseException as error:
            raise DrafterFailed(described(error)) from None

    def _draft(self, budget: Budget) -> Proposal:
        """What runs on the drafter's lane: open, catch up with what was committed, propose."""
        if self.session is None:
            self.session = self.drafter.open(self.request, self.target if self.needs_target else None, self.own)
        while self._pending_verdicts:
            self.session.observe(*self._pending_verdicts.pop(0))
        began = self.trace.now()
        proposal = self.session.propose(budget)
        self.trace.span("draft", self._lane, began)
        self.trace.take(self.own)
        return check(proposal, budget)

    def _taken(self) -> Proposal:
        """The pending draft, which is ready."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        if pending.error is not None:
            self.failed(pending.error)
            return Proposal.empty()
        self._answered = True
        return pending.result()

    def _free(self) -> bool:
        """Whether the drafter can take new work; one that is past its deadline is given up."""
        if self._pending is not None and self._pending.done():
            self._taken()  # it drafted for a prefix that has been left behind; only its failure matters now
        elif self._pending is not None and self._leave_hanging_lane():
            self._give_up(f"did not answer within {self.deadline:g} s")
        return self._pending is None and self.alive

    def _leave_hanging_lane(self) -> bool:
        """Leave the drafter's lane when what runs there is past the deadline."""
        if (left := self.workers.leave_hanging("drafter", self.deadline)) is not None:
            self.workers.breaker.hung(left.serving)
        return left is not None

    def failed(self, error: BaseException) -> None:
        """Give the drafter up, and say why."""
        self._give_up(error.args[0] if type(error) is DrafterFailed else described(error))

    def _give_up(self, why: str) -> None:
        self.alive, self.taps = False, ()
        self.trace.given_up.append(self.name)
        self.trace.note(f"drafter {self.name} {why}; the target went on alone")
