"""An independent drafter's own draft of the whole answer, looked up again after the place where the target disagreed.

A head start ends at the first token that the target would not have chosen. Mostly the rest of it is right all the same: a
colour was another, and the side and the distance after it are as they were drafted. So later rounds get it without a forward:
the drafter wrote the answer to its end while the target still read its prompt (`Drafts.writing`), and this finds the place in
it where the target's answer has arrived: prompt lookup (Saxena 2023) in a text about this recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from eventspec.core import Budget, DraftSession, Proposal, Request, TargetPrompt, Trace
from eventspec.drafters.answer_draft import AnswerDraft
from eventspec.drafters.model_reading import Written

LONGEST = 6
"""Tokens before a place that are compared, at most; more are no better evidence."""


class ReusedDrafter:
    """`written` gives what was written of the answer to a request so far."""

    name = "reused"
    taps: tuple[int, ...] = ()
    needs_target = False
    concurrent = False

    def __init__(self, written: Callable[[Request], Written]) -> None:
        self.written = written

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return AnswerDraft(partial(self._draft, request))

    def _draft(self, request: Request, answer: list[int], budget: Budget) -> Proposal:
        written = self.written(request)
        at, sure = place([token for token, _ in written], answer)
        found = written[at : at + min(budget.max_nodes, budget.max_depth)] if sure > 0 else ()
        if not found:
            return Proposal.empty(self.name)
        tokens, shares = zip(*found, strict=True)
        # Whether the place is right counts once; how sure the drafter was of each token is its own probability.
        return replace(Proposal.chain(tokens, self.name), values=np.minimum(1.0, sure * np.cumprod(shares)))


def place(text: Sequence[int], answer: Sequence[int]) -> tuple[int, float]:
    """Where in a text the answer has arrived, and how sure that is, from 0 (nowhere) to 1: after the longest match of the
    answer's last tokens, or, where the last one is another, after the token in its place. Of several matches the one nearest
    to where the answer would be if it had as many tokens."""
    length = len(answer)
    size, found = _longest(text, answer, length)
    if size > 1:
        return min(found, key=lambda at: abs(at - length)), 1 - 0.5 / size
    size, found = _longest(text[:-1], answer, length - 1)  # whose last token stands for the answer's last one at the latest
    if size > 0:
        return min((at + 1 for at in found), key=lambda at: abs(at - length)), 0.75 - 0.25 / size
    return len(text), 0.0


def _longest(text: Sequence[int], answer: Sequence[int], end: int) -> tuple[int, list[int]]:
    """The longest match of the answer's tokens before `end`, `LONGEST` at most: its length, and the places after it."""
    longest, places = 0, list[int]()
    last = answer[end - 1] if end > 0 else None
    for at, token in enumerate(text, 1):
        if token != last:
            continue
        size, most = 1, min(LONGEST, at, end)
        while size < most and text[at - 1 - size] == answer[end - 1 - size]:
            size += 1
        if size > longest:
            longest, places = size, []
        if size == longest:
            places.append(at)
    return longest, places
