"""One drafter during one request: its lane, its deadline, what waiting for it may cost. All its failures end here.

A drafter may be any code. What it raises is caught, BaseException included; what it hands over is copied and checked before
the target sees it; what hangs is left. It costs the request its drafts, never its answer, and the trace says what happened.
Nothing here waits: `waits` says for how long the scheduler may.
"""

from __future__ import annotations

from eventspec.core import Budget, Drafter, DraftSession, Proposal, Request, Scores, TargetPrompt, TargetSession, Verdict
from eventspec.engine.executor import Executor, Pending
from eventspec.engine.guard import DrafterFailed, PromptOf, described, in_words, usable_taps
from eventspec.engine.policy import DraftPolicy
from eventspec.trace import Lane, Trace
from eventspec.tree import check, exact_text


class DraftWorker:
    """`drafter` on its own lane, or inline where the lanes do not overlap.

    Waiting is paid from a credit that grows with what was accepted, so a slow and wrong drafter costs no more than the policy's
    patience; one wait takes half of it at most. A late draft is left: the drafter catches up with what was committed. One that
    hung often is left alone (`eventspec.breaker`).
    """

    def __init__(
        self, drafter: Drafter, request: Request, executor: Executor, policy: DraftPolicy, layers: int, trace: Trace
    ) -> None:
        self.drafter, self.request, self.executor, self.policy, self.trace = drafter, request, executor, policy, trace
        self.own = trace.beside()  # what the drafter writes to
        self.name, self.needs_target, self.concurrent, self.any_thread, self.alive = "", False, False, False, True
        self.declined = self._asked = False  # whether it would have drafted at no cost, and whether that was asked
        self.taps: tuple[int, ...] = ()
        self.session: DraftSession | None = None
        self.broken = ""  # why the session drafts no more: it failed as it wrote on
        self.target: TargetPrompt | None = None  # from `attach` on
        self.awaited = True  # else other drafts will do in later rounds: what is not there at once is left
        self.enough = False  # the target waits, or the request is over: what drafts ahead ends with the step it is in
        self.ahead: Pending[Proposal] | None = None  # the head start
        self._pending_verdicts: list[tuple[Verdict, Scores]] = []
        self._pending: Pending[Proposal] | None = None
        self._queued: Budget | None = None  # of a draft that begins when the one before it has ended
        self._lane: Lane = "target"  # where the latest draft was begun, and when
        self._began = 0.0
        # What is pending is for the next round; is made before the target goes on; is not waited for again.
        self._wanted = self._first = self._late = self._later = False  # the last: the first round is over
        self._since: float | None = None  # from when on it waits
        self._credit = policy.wait  # seconds for which it may still wait
        self.deadline, self._answered = executor.breaker.deadline(drafter, policy.deadline), False
        try:
            self.name = exact_text(self.drafter.name, 80)
            self.needs_target, self.concurrent = bool(self.drafter.needs_target), bool(self.drafter.concurrent)
            self.any_thread = getattr(self.drafter, "any_thread", False) is True
            self.taps = usable_taps(self.drafter.taps, layers)
        except BaseException as error:
            self.failed(error)
        if self.alive and self.concurrent:
            self.executor.leave_hanging("drafter", self.deadline)  # an earlier request's, even another drafter's
            if rest := self.executor.breaker.resting(self.drafter):
                self._give_up(f"hung in the requests before and is left alone for {rest:.0f} s")

    @property
    def overlaps(self) -> bool:
        """Whether it drafts beside the target."""
        return self.concurrent and self.policy.concurrent and self.executor.concurrent

    @property
    def coming(self) -> bool:
        """Whether it drafts beside the target just now."""
        return self.overlaps and self._pending is not None and not self._pending.done()

    def should_stop(self) -> bool:
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
        """Tell the drafter what was committed; it begins the next round's draft, see `collect` (budget None: no more)."""
        if not self.alive or budget is None or budget.max_nodes < 1:
            return
        self._pending_verdicts.append((verdict, scores))
        self._credit = min(self.policy.wait, self._credit + len(verdict.path) * self.policy.worth * self.policy.step_seconds)
        self.enough = self._later = True
        self._queued = budget
        self.go_on()

    def go_on(self) -> None:
        """Begin the draft that is queued, if the one before it has ended; a drafter that is past its deadline is given up."""
        if self._queued is None or not self.alive:
            return
        if self._pending is not None and self._pending.done():
            self._taken()  # it drafted for a prefix that is not the answer's; only its failure matters now
        elif self._pending is not None and self.executor.leave_hanging("drafter", self.deadline):
            self._give_up(f"did not answer within {self.deadline:g} s")
        if self._pending is not None or not self.alive:
            return
        if not self.overlaps and self._credit < 0:
            self.alive = False
            self.trace.note(f"drafter {self.name} took longer than its drafts save; the target goes on alone")
            return
        self._begin(self._queued)
        self._queued, self._wanted = None, True

    def look_ahead(self, left: int) -> None:
        """Let the drafter deepen its tree while the target verifies; what it foresaw rightly is there at once."""
        wanted = self.policy.look_ahead and self.policy.max_nodes > 0 and left > 2
        if wanted and self.overlaps and self.alive and self._pending is None and self.session is not None:
            self._begin(self.policy.meanwhile(self.should_stop, left))

    def comes_first(self) -> float:
        """Seconds for which the target waits for the device that it shares with this drafter, given up past its deadline."""
        if self._pending is None or not self._first or self._pending.done():
            return 0.0
        if (left := self._began + self.deadline - self.trace.now()) <= 0:
            self._pending = None
            self.executor.breaker.hung(self.drafter)
            self.executor.abandon("drafter")
            self._give_up(f"did not answer within {self.deadline:g} s")
        return max(0.0, left)

    def waits(self) -> float:
        """Seconds for which the round may still wait for this drafter; 0: its draft is there, or is not waited for."""
        self.go_on()
        if self._pending is None or self._pending.done() or self._late or not (self._wanted or self._queued):
            return 0.0
        self._since = self.trace.now() if self._since is None else self._since
        if self._first:
            return self.comes_first()
        patient = self.awaited or not self._later
        return max(0.0, self._since + self._credit / 2 - self.trace.now()) if patient else 0.0

    def collect(self) -> Proposal:
        """The draft that was begun for this round, if it is there; else the drafter catches up later."""
        awaited, self._queued = self._queued is not None, None
        wanted, self._wanted = self._wanted, False
        self._pay()
        if wanted and self._pending is not None and self._pending.done():
            return self._taken()
        if self._pending is None or not (wanted or awaited):
            return Proposal.empty()
        if not self._late and self.awaited:
            waits = self.concurrent and self.executor.serving("drafter") not in (None, self.drafter)
            after = " behind another drafter that is still at work on its lane" if waits else ""
            self.trace.note(f"drafter {self.name} was late{after}; the target did not wait")
        self._late = True
        return Proposal.empty()

    def end(self) -> None:
        """The request is over: what is drafted ahead ends with the step it is in."""
        self.enough = True
        idle = (self._pending is None or self._pending.done()) and self.executor.serving("drafter") is not self.drafter
        if self.concurrent and self.alive and self._answered and idle:  # what it still does may be hanging
            self.executor.breaker.came_back(self.drafter)  # a whole request long: one good call does not excuse the next

    def _begin(self, budget: Budget, on_lane: bool = False) -> None:
        """Start a draft beside the target, or have it made first."""
        self._pay()
        self.enough = False
        self._late, self._lane = False, "drafter" if self.concurrent or on_lane else "target"
        self._began, self._first = self.trace.now(), self._lane == "drafter" and not self.overlaps and not on_lane
        if self._lane == "target":
            self._pending = self.executor.here(lambda: self._draft(budget))
            return
        # A model of its own has a thread of its own also where it shares the device, because it may hang.
        try:
            self._pending = self.executor.start("drafter", lambda: in_words(lambda: self._draft(budget)), self.drafter)
        except RuntimeError as error:  # no thread to be had
            self.failed(error)

    def _pay(self) -> None:
        """Take from the credit what the target waited; a head start that is made first is free."""
        if self._since is not None and (self._later or not self._first):
            self._credit -= self.trace.now() - self._since
        self._since = None

    def _draft(self, budget: Budget) -> Proposal:
        """What runs on the drafter's lane: open, catch up with what was committed, propose."""
        if self.broken:
            raise DrafterFailed(self.broken)
        if self.session is None:
            self.session = self.drafter.open(self.request, self.target if self.needs_target else None, self.own)
        while self._pending_verdicts:
            self.session.observe(*self._pending_verdicts.pop(0))
        began = self.trace.now()
        proposal = check(self.session.propose(budget), budget)
        if not (self._asked or len(proposal)) and (anyway := self.policy.unlikely(budget, len(self.trace.rounds))):
            found, self._asked = check(self.session.propose(anyway), budget), not self.policy.guessed
            proposal, self.declined = (proposal, len(found) > 0) if self._asked else (found, False)
        self.trace.span("draft", self._lane, began)
        self.trace.take(self.own)
        return proposal

    def _taken(self) -> Proposal:
        """The pending draft, which is ready."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        if (error := pending.exception()) is not None:
            self.failed(error)
            return Proposal.empty()
        self._answered = True
        return pending.result()

    def failed(self, error: BaseException) -> None:
        """Give the drafter up, and say why."""
        self._give_up(error.args[0] if type(error) is DrafterFailed else described(error))

    def _give_up(self, why: str) -> None:
        self.alive, self.taps = False, ()
        self.trace.given_up.append(self.name)
        self.trace.note(f"drafter {self.name} {why}; the target went on alone")
