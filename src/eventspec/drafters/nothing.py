"""The drafter of the baseline: it proposes nothing, so every round is one plain decoding step."""

from __future__ import annotations

from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, TargetSession, Trace, Verdict


class Nothing:
    """Autoregressive decoding is the loop with this drafter."""

    name = "nothing"
    taps: tuple[int, ...] = ()
    concurrent = False

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        return self

    def propose(self, budget: Budget) -> Proposal:
        return Proposal.empty()

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        pass
