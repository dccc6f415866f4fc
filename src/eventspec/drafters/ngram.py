"""Prompt lookup: continue the answer as the same last tokens were continued before, in the question or in the answer itself.

A control: it sees no picture and no model (Saxena 2023, prompt lookup decoding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from eventspec.core import Budget, DraftSession, Proposal, Request, TargetPrompt, Trace
from eventspec.drafters.answer_draft import AnswerDraft


class NgramDrafter:
    """`encode` turns the question into token ids; the longest match of up to `longest` tokens wins, the latest one first."""

    name = "ngram"
    taps: tuple[int, ...] = ()
    needs_target = False
    concurrent = False
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
