"""What an independent drafter wrote of the whole answer, taken up again behind the place where the target said otherwise.

A head start ends at the first token that the target would not have said; the rest of it was for a prefix that is left behind.
Mostly it goes on to be right all the same: a colour was another, and the side and the distance behind it are as they were
drafted. So later rounds get it without a forward: the drafter wrote the answer to its end while the target still read its
prompt (`LanguageDrafter.writing_on`), and this finds the place in it where the target's answer has arrived. A text that
is looked up, like prompt lookup (Saxena 2023), but the drafter's own, about this recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.language_model import Written
from eventspec.drafters.mixture import SourceWeights

LONGEST = 6
"""Tokens before a place that are compared, at most; more are no better evidence."""
USUAL = SourceWeights(named=-0.26, slope=0.55, depth=0.09, silent=-0.97)
"""For a mixture that was fitted before there was this drafter: as fitted on the bundled pair, 400 questions."""


class ReusedDrafter:
    """`written` tells what was written of the answer to a request so far."""

    name = "reused"
    taps: tuple[int, ...] = ()
    needs_target = False
    concurrent = False

    def __init__(self, written: Callable[[Request], Written]) -> None:
        self.written = written

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return _Reusing(self.written, request)


class _Reusing:
    def __init__(self, written: Callable[[Request], Written], request: Request) -> None:
        self.written, self.request, self.answer = written, request, list[int]()

    def propose(self, budget: Budget) -> Proposal:
        """What was written behind the place that is found."""
        written = self.written(self.request)
        at, sure = place([token for token, _ in written], self.answer)
        found = written[at : at + min(budget.max_nodes, budget.max_depth)] if sure > 0 else ()
        if not found:
            return Proposal.empty(ReusedDrafter.name)
        tokens = [token for token, _ in found]
        if budget.show is not None:
            budget.show(tokens)
        # Whether the place is right is one question, asked once; how sure the drafter was of each token, it said itself.
        values = np.minimum(1.0, sure * np.cumprod([share for _, share in found]))
        return replace(Proposal.chain(tokens, ReusedDrafter.name), values=values)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.answer += verdict.tokens.tolist()


def place(text: Sequence[int], answer: Sequence[int]) -> tuple[int, float]:
    """Where in a text the answer has arrived, and how sure that is, from 0 (nowhere) to 1: behind the longest match of the
    answer's last tokens, or, where the last one is another, behind the token in its place. Of several matches the one nearest
    to where the answer would be if it had as many tokens."""
    length = len(answer)
    for size in range(min(LONGEST, length), 1, -1):
        if found := _behind(text, answer[length - size :]):
            return min(found, key=lambda at: abs(at - length)), 1 - 0.5 / size
    for size in range(min(LONGEST, length - 1), 0, -1):
        if found := [at + 1 for at in _behind(text, answer[length - 1 - size : length - 1]) if at < len(text)]:
            return min(found, key=lambda at: abs(at - length)), 0.75 - 0.25 / size
    return len(text), 0.0


def _behind(text: Sequence[int], some: Sequence[int]) -> list[int]:
    """The places right behind every occurrence."""
    size = len(some)
    return [at + size for at in range(len(text) - size + 1) if text[at : at + size] == some]
