"""The session of a drafter that needs nothing but the answer so far."""

from __future__ import annotations

from collections.abc import Callable

from eventspec.core import Budget, DraftSession, Proposal, Scores, Verdict
from eventspec.tree import best_chain


class AnswerDraft(DraftSession):
    """`draft` proposes after an answer; siblings of its trees lie in order of their probability."""

    def __init__(self, draft: Callable[[list[int], Budget], Proposal]) -> None:
        self.draft, self.answer = draft, list[int]()

    def propose(self, budget: Budget) -> Proposal:
        proposal = self.draft(self.answer, budget)
        if budget.show is not None and len(proposal):
            budget.show(best_chain(proposal))
        return proposal

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.answer += verdict.tokens.tolist()
