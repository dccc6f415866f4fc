"""Who drafts when: one drafter while the target encodes, the same or another from the first verified token on."""

from __future__ import annotations

from eventspec.core import Drafter, Drafts, Limits, Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.engine.answer import Answer
from eventspec.engine.display import Display
from eventspec.engine.draft_worker import DraftWorker
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.workers import Workers
from eventspec.tree import BadProposal, fit


class Drafting:
    """The drafters of one request, each with its own worker; `policy` says how much they may draft."""

    def __init__(
        self,
        drafts: Drafts,
        request: Request,
        policy: DraftPolicy,
        workers: Workers,
        limits: Limits,
        display: Display,
        trace: Trace,
    ) -> None:
        def working(drafter: Drafter | None) -> DraftWorker | None:
            return None if drafter is None else DraftWorker(drafter, request, workers, policy, limits.layers, trace)

        self.policy, self.display, self.trace, self._limits = policy, display, trace, limits
        self._ahead = working(drafts.ahead)
        self._after = self._ahead if drafts.after is drafts.ahead else working(drafts.after)
        self._latest = self._ahead  # whose proposal is judged next

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers that a drafter reads."""
        return () if self._after is None else self._after.taps

    def start(self, answer: Answer) -> bool:
        """Begin the head start, before the target encodes; whether a draft is there or may still come."""
        if (worker := self._ahead) is None:
            return False
        show = self.display.behind(answer.tokens, answer.state, worker.name)
        return worker.head_start(self.policy.head_start(lambda: worker.enough, show, max(1, answer.remaining - 1)))

    def attach(self, session: TargetSession) -> None:
        """The target waits for the head start from here on, and a drafter that reads its prompt may begin."""
        if self._ahead is not None:
            self._ahead.enough = True
        if self._after is not None:
            self._after.attach(session)

    def head_start(self) -> Proposal:
        """What was drafted meanwhile."""
        return Proposal.empty() if self._ahead is None else self._ahead.collect()

    def fitting(self, proposal: Proposal, room: int) -> Proposal:
        """What the target can read of the latest proposal; a drafter whose tokens the target does not have is given up."""
        if self._latest is None:
            return proposal
        try:
            return fit(proposal, self._limits, room)
        except BadProposal as error:
            self._latest.failed(error)
            return Proposal.empty()

    def look_ahead(self, left: int) -> None:
        """The target verifies now: let the drafter go on behind what it proposed."""
        if self._after is not None:
            self._after.look_ahead(left)

    def next(self, verdict: Verdict, scores: Scores, answer: Answer) -> Proposal:
        """The draft behind what was just committed."""
        self._latest = worker = self._after
        if worker is None:
            return Proposal.empty()
        with self.trace.drafting():
            show = self.display.behind(answer.tokens, answer.state, worker.name)
            return worker.follow(verdict, scores, self.policy.later(answer.remaining - 1, show))

    def end(self) -> None:
        """The request is over."""
        for worker in (self._ahead, self._after):
            if worker is not None:
                worker.end()
