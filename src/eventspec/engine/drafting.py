"""The drafters of one request: some draft while the target encodes, some from the first verified token on, and what they draft
for one place becomes one tree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from eventspec.core import Budget, Drafter, Limits, Proposal, Request, Scores, TargetSession, Verdict, never
from eventspec.engine.answer import Answer
from eventspec.engine.display import Display
from eventspec.engine.draft_worker import DraftWorker
from eventspec.engine.drafts import Drafts
from eventspec.engine.executor import Executor, Pending
from eventspec.engine.guard import described
from eventspec.engine.policy import DraftPolicy, Show
from eventspec.engine.writing import Writing
from eventspec.tree import BadProposal, best_chain, check, fit

Merged = tuple[list[Proposal], Proposal]
"""Several drafts, and one tree of them."""
WIDER = 3.0
"""What the floor for nodes is divided by for each of several drafters, see `wider`."""


class Drafting:
    """Each drafter has its own worker; `policy` says how much they may draft. Nothing here waits: see `waits`."""

    def __init__(
        self, drafts: Drafts, request: Request, policy: DraftPolicy, executor: Executor, limits: Limits, display: Display
    ) -> None:
        made, trace = dict[int, DraftWorker](), display.trace
        if policy.concurrent and not executor.has_room:  # looked up once: who overlaps stays so for the whole request
            policy = replace(policy, concurrent=False)

        def working(drafter: Drafter) -> DraftWorker:
            if id(drafter) not in made:
                made[id(drafter)] = DraftWorker(drafter, request, executor, policy, limits.layers, trace)
            return made[id(drafter)]

        self.policy, self.display, self.trace, self._limits, self._merge = policy, display, trace, limits, drafts.merge
        self._ahead, self._after = [working(one) for one in drafts.ahead], [working(one) for one in drafts.later(policy)]
        self._writers, self._writing = [working(one) for one in drafts.writing], list[Writing]()
        self._workers = list(made.values())
        self._declined = [drafter.name for drafter in drafts.after if id(drafter) not in made]  # whose drafts cost too much
        for worker in self._after:
            worker.awaited = not any(not other.overlaps for other in self._after if other is not worker)
        self._current, self._executor = self._ahead, executor
        self._budget: Budget | None = None  # of the latest drafts
        self._early: Pending[Merged] | None = None  # the head start, merged on the drafter's lane
        self._waited: Callable[[], None] | None = None  # ends what the trace counts as waiting for a draft
        self.taps = self._agreed_taps()

    @property
    def overlaps(self) -> bool:
        """Whether any of them drafts beside the target."""
        return any(worker.overlaps for worker in self._workers)

    @property
    def coming(self) -> bool:
        """Whether more of the head start may come while the target reads its prompt."""
        return any(worker.coming for worker in self._ahead)

    def start(self, answer: Answer) -> None:
        """Begin the head start, before the target encodes. Beside it also texts draft on the drafter's lane, and what all of
        them drafted becomes one tree there: none of it delays the target. A lane that is still at work for an earlier request
        would delay texts instead."""
        beside = [worker for worker in self._ahead if worker.overlaps]
        on_lane, left = bool(beside) and self._executor.idle("drafter"), max(1, answer.remaining - 1)
        for worker in sorted(self._ahead, key=lambda worker: worker.concurrent):  # what takes least comes first
            show = self._shown_by(worker, answer) if worker is self._ahead[0] else None
            free = worker.overlaps or not worker.concurrent
            self._budget = self.policy.head_start(worker.should_stop, show, left, free)
            worker.head_start(wider(self._budget) if len(self._ahead) > 1 and free else self._budget, on_lane)
        if beside and len(self._ahead) > 1:
            with suppress(RuntimeError):  # the lane was closed just now
                self._early = self._executor.start("drafter", partial(self._merged_early, self._budget), beside[0].drafter)
        # After the head starts of all, which may share a lane.
        self._writing = [Writing(worker, self.policy, answer.remaining) for worker in self._writers if worker.alive]

    def come_first(self) -> float:
        """Seconds for which the target reads nothing yet, because a drafter drafts on its device."""
        return max([worker.comes_first() for worker in self._ahead], default=0.0)

    def attach(self, session: TargetSession) -> None:
        """The target waits for the head start from here on, and a drafter that reads its prompt may begin."""
        self._stop_writing()  # what goes on beside the target costs it more than what is written there saves
        for worker in self._ahead:
            worker.enough = True
        for worker in self._after:
            worker.attach(session)

    def waits(self) -> float:
        """Seconds for which the round may still wait for drafts; 0: they are there, or are not waited for."""
        return max([worker.waits() for worker in self._current], default=0.0)

    def collected(self, answer: Answer) -> Proposal:
        """The drafts that are there, as one tree of tokens that the target has; from two on they are merged, of a head start
        that several were asked for a single one too."""
        fewest = 1 if self._current is self._ahead and len(self._ahead) > 1 else 2
        found = [proposal for worker in self._current if len(proposal := self._fitting(worker))]
        merged = found[0] if found else Proposal.empty()
        if len(found) >= fewest:
            merged = self._merged(found)
            if not len(merged) and self.policy.guessed:
                merged = found[0]
            self._declined += [] if len(merged) else [proposal.origin for proposal in found]
            self.display.shows_after(answer.tokens, answer.state, merged.origin)(best_chain(merged))
        if self._waited is not None:
            self._waited()
        return merged

    def look_ahead(self, left: int) -> None:
        """The target verifies now: let drafters go on after what they proposed."""
        for worker in self._after:
            worker.look_ahead(left)

    def next(self, verdict: Verdict, scores: Scores, answer: Answer) -> None:
        """Begin the draft after what was just committed. Those that draft beside the target begin first, and draft until the
        others are done, which the target's own thread works for."""
        self._current, self._waited = self._after, self.trace.drafting()
        beside = [worker for worker in self._after if worker.overlaps]
        rest = [worker for worker in self._after if not worker.overlaps]
        for worker in (*beside, *rest):
            show = self._shown_by(worker, answer) if len(self._after) == 1 else None
            until = worker.should_stop if rest and worker.overlaps else never
            self._budget = self.policy.later(answer.remaining - 1, show, until)
            worker.follow(verdict, scores, self._budget)
        if rest:
            for worker in beside:
                worker.enough = True

    def end(self) -> None:
        """The request is over."""
        self._stop_writing()
        for worker in self._workers:
            worker.end()
            self._declined += [worker.name] * bool(worker.declined)
        if not self.trace.drafted:
            self.trace.declined = list(dict.fromkeys(self._declined))

    def _stop_writing(self) -> None:
        for writing in self._writing:
            writing.stop()

    def _agreed_taps(self) -> tuple[int, ...]:
        """The target's layers that drafters read; a drafter that wants others than the one before it is given up."""
        found: tuple[int, ...] = ()
        for worker in self._after:
            if found and worker.taps and worker.taps != found:
                worker.failed(ValueError(f"it reads layers {worker.taps}, a drafter before it {found}: mix those that agree"))
            found = found or worker.taps
        return found

    def _shown_by(self, worker: DraftWorker, answer: Answer) -> Show:
        return self.display.shows_after(answer.tokens, answer.state, worker.name)

    def _fitting(self, worker: DraftWorker) -> Proposal:
        """What a drafter proposed; one whose tokens the target does not have is given up."""
        try:
            return fit(worker.collect(), self._limits)
        except BadProposal as error:
            worker.failed(error)
            return Proposal.empty()

    def _merged_early(self, budget: Budget | None) -> Merged:
        """What runs on the drafter's lane after the head starts: those that are there, and one tree of them."""
        there = [worker.ahead for worker in self._ahead if worker.ahead is not None and worker.ahead.done()]
        found = [fit(made.result(), self._limits) for made in there if made.exception() is None and len(made.result())]
        return found, self._one_of(found, budget) if found else Proposal.empty()

    def _merged(self, found: list[Proposal]) -> Proposal:
        """One tree; what was drawn at random is not merged, because the rule has to know from what it was drawn."""
        early, self._early = self._early, None
        if early is not None and early.done() and early.exception() is None:
            merged, tree = early.result()
            if len(merged) == len(found) and all(one is two for one, two in zip(merged, found, strict=True)):
                return tree
        try:
            return self._one_of(found, self._budget)
        except Exception as error:
            self.trace.note(f"drafts could not be merged ({described(error)}); one of them was taken")
            return found[0]

    def _one_of(self, found: list[Proposal], budget: Budget | None) -> Proposal:
        """The merge's tree, checked like any drafter's; see `_merged`."""
        if budget is None or any(proposal.probs is not None for proposal in found):
            return found[0]
        return fit(check(self._merge(found, budget), budget), self._limits)


def wider(budget: Budget) -> Budget:
    """What each of several drafters is asked for, for a tree of this budget: the merge knows better what a node is worth. Only
    while drafting is free: where the target waits for it, it costs more than it gives."""
    return replace(budget, min_path_prob=budget.min_path_prob / WIDER)
