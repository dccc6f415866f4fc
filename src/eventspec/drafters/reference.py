"""A text that an answer may follow, as a draft: inference with a reference (LLMA, arXiv 2304.04487).

Behind a wrong token most of a text may still be right: another colour, and the sentence goes on. So a text is not given up
where the target says otherwise; it is searched for what was said last.
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
    """`text` gives the tokens that an answer to a question about a recording may follow; it is asked when the target has read
    its prompt, and knows none where it gives []."""

    taps: tuple[int, ...] = ()
    needs_target = True
    concurrent = False

    def __init__(self, name: str, text: Callable[[Media, str], Sequence[int]]) -> None:
        self.name, self.text = name, text

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`."""
        return _Following(self.name, Reference(self.text(request.media, request.question)))


class _Following(DraftSession):
    def __init__(self, name: str, reference: Reference) -> None:
        self.name, self.reference, self.said = name, reference, list[int]()

    def propose(self, budget: Budget) -> Proposal:
        """What comes next in the text, a chain."""
        tokens = self.reference.following(min(budget.max_nodes, budget.max_depth))
        if budget.show is not None:
            budget.show(tokens)
        return Proposal.chain(tokens, self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Go on in the text."""
        for token in verdict.tokens.tolist():
            self.said.append(token)
            self.reference.follow(self.said)


class Reference:
    """Tokens, and how far an answer has come in them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.at = list(tokens), 0

    def following(self, most: int) -> list[int]:
        """What comes next, at most so many tokens."""
        return self.tokens[self.at : self.at + most]

    def follow(self, said: Sequence[int]) -> None:
        """Go behind the last token of what was `said`: one step where it is the one expected; else behind the longest match
        nearby, the nearest of several; else one token was replaced by another."""
        text, expected = self.tokens, self.at
        if expected < len(text) and text[expected] == said[-1]:
            self.at += 1
            return
        best = (SHORTEST - 1, 0, expected + 1)
        for end in range(max(1, expected - NEAR), min(len(text), expected + NEAR) + 1):
            size = 0
            while size < min(LONGEST, end, len(said)) and text[end - 1 - size] == said[-1 - size]:
                size += 1
            if size >= SHORTEST:
                best = max(best, (size, -abs(end - expected), end))
        self.at = min(best[2], len(text))
