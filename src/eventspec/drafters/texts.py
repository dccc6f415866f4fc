"""Texts as drafts, looked up without a forward: where the answer's last tokens stand in the question or in the answer itself
(prompt lookup, Saxena 2023), in a text that it may follow (inference with a reference, LLMA, arXiv 2304.04487), and in what an
independent drafter wrote of the whole answer.

A head start ends at the first token that the target would not have chosen. Mostly the rest of it is right all the same: a
colour was another, and the side and the distance after it are as they were drafted. So a text is not given up where the target
disagrees; it is searched for the place where the answer has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from eventspec.core import Budget, Drafter, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.language_model import Written
from eventspec.tree import best_chain

LONGEST = 6
"""Tokens before a place that are compared, at most; more are no better evidence."""
SHORTEST = 2
"""A single token that agrees is chance."""


class AnswerDraft(DraftSession):
    """The session of a drafter that needs nothing but the answer so far: `draft` proposes after an answer; siblings of its
    trees lie in order of their probability."""

    def __init__(self, draft: Callable[[list[int], Budget], Proposal]) -> None:
        self.draft, self.answer = draft, list[int]()

    def propose(self, budget: Budget) -> Proposal:
        proposal = self.draft(self.answer, budget)
        if budget.show is not None and len(proposal):
            budget.show(best_chain(proposal))
        return proposal

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.answer += verdict.tokens.tolist()


class NgramDrafter(Drafter):
    """A control, which sees no picture and no model: it continues the answer as its last tokens were continued before. `encode`
    turns the question into token ids; the longest match of up to `longest` tokens wins, the latest one first."""

    name = "ngram"
    any_thread = True

    def __init__(self, encode: Callable[[str], Sequence[int]], longest: int = 3) -> None:
        self.encode, self.longest = encode, longest

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return AnswerDraft(partial(self._draft, list(self.encode(request.question))))

    def _draft(self, question: list[int], answer: list[int], budget: Budget) -> Proposal:
        text = question + answer
        for size in range(min(self.longest, len(text) - 1), 0, -1):
            tail = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at : at + size] == tail:
                    found = text[at + size : at + size + min(budget.max_nodes, budget.max_depth)]
                    # A longer match is better evidence; how good it is, a mixture is fitted to.
                    values = (size / (size + 1.0)) ** np.arange(1.0, len(found) + 1)
                    return replace(Proposal.chain(found, self.name), values=values)
        return Proposal.empty(self.name)


class ReferenceDrafter(Drafter):
    """`text` gives the tokens that an answer to a question about a recording may follow ([]: none are known); it is called when
    the target has read its prompt."""

    needs_target = True

    def __init__(self, name: str, text: Callable[[Media, str], Sequence[int]]) -> None:
        self.name, self.text = name, text

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return AnswerDraft(partial(self._draft, list(self.text(request.media, request.question))))

    def _draft(self, text: list[int], answer: list[int], budget: Budget) -> Proposal:
        at = len(answer) if text[: len(answer)] == answer else place(text, answer)[0]
        return Proposal.chain(text[at : at + min(budget.max_nodes, budget.max_depth)], self.name)


class ReusedDrafter(Drafter):
    """Looks up a drafter's own draft of the whole answer, which it wrote to its end while the target still read its prompt
    (`Drafts.writing`): `written` gives what was written of the answer to a request so far."""

    name = "reused"

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
    size, found = _longest(text, answer, length, range(1, len(text) + 1))
    if size >= SHORTEST:
        return min(found, key=lambda at: abs(at - length)), 1 - 0.5 / size
    size, found = _longest(text, answer, length - 1, range(1, len(text)))  # the text's last token stands for the answer's
    if size > 0:
        return min((at + 1 for at in found), key=lambda at: abs(at - length)), 0.75 - 0.25 / size
    return len(text), 0.0


def _longest(text: Sequence[int], answer: Sequence[int], end: int, within: range) -> tuple[int, list[int]]:
    """The longest match of the answer's tokens before `end`, `LONGEST` at most: its length, and the places after it, of those
    `within` the text."""
    longest, places = 0, list[int]()
    last = answer[end - 1] if end > 0 else None
    for at in within:
        if text[at - 1] != last:
            continue
        size, most = 1, min(LONGEST, at, end)
        while size < most and text[at - 1 - size] == answer[end - 1 - size]:
            size += 1
        if size > longest:
            longest, places = size, []
        if size == longest:
            places.append(at)
    return longest, places
