"""A text that an answer may follow, as a draft: inference with a reference (LLMA, arXiv 2304.04487).

After a wrong token most of a text may still be right: another colour, and the sentence goes on. So a text is not given up
where the target disagrees; it is searched for the answer's last tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventspec.core import Budget, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict

NEAR = 48
"""Tokens to either side in which a text is searched."""
LONGEST = 6
"""Tokens that are compared there, at most."""
SHORTEST = 2
"""A single token that agrees is chance."""


class ReferenceDrafter:
    """`text` gives the tokens that an answer to a question about a recording may follow ([]: none are known); it is called when
    the target has read its prompt."""

    taps: tuple[int, ...] = ()
    needs_target = True
    concurrent = False

    def __init__(self, name: str, text: Callable[[Media, str], Sequence[int]]) -> None:
        self.name, self.text = name, text

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return ReferenceDraft(self.name, self.text(request.media, request.question))


class ReferenceDraft(DraftSession):
    """The tokens of a text, and how far the answer has come in them."""

    def __init__(self, name: str, text: Sequence[int]) -> None:
        self.name, self.text, self.at, self.answer = name, list(text), 0, list[int]()

    def propose(self, budget: Budget) -> Proposal:
        tokens = self.text[self.at : self.at + min(budget.max_nodes, budget.max_depth)]
        if budget.show is not None:
            budget.show(tokens)
        return Proposal.chain(tokens, self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        for token in verdict.tokens.tolist():
            self.answer.append(token)
            self.at = self._place()

    def _place(self) -> int:
        """The place after the answer's last token: one step on where it is the expected one; else after the longest match
        nearby, the nearest of several; else one token was replaced by another."""
        text, expected, answer = self.text, self.at, self.answer
        if expected < len(text) and text[expected] == answer[-1]:
            return expected + 1
        best = (SHORTEST - 1, 0, expected + 1)
        for end in range(max(1, expected - NEAR), min(len(text), expected + NEAR) + 1):
            size = 0
            while size < min(LONGEST, end, len(answer)) and text[end - 1 - size] == answer[-1 - size]:
                size += 1
            if size >= SHORTEST:
                best = max(best, (size, -abs(end - expected), end))
        return min(best[2], len(text))
