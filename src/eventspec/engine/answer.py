"""The answer in the making: its tokens, where its grammar stands, what may still be said, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from eventspec.core import NonFiniteLogits, Proposal, Sampling, Verdict
from eventspec.engine.admissible import advanced, no_admissible_root
from eventspec.engine.distribution import position_rng
from eventspec.engine.numerics import Numerics
from eventspec.engine.verify import verify

StopCheck = Callable[[Sequence[int]], int | None]
"""Given every token of an answer once, in order, as they are committed: how many of these belong to it when it ends among
them, else None."""
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass
class Outcome:
    """The answer: token ids (the stop token included), and why it ended."""

    token_ids: list[int]
    finish_reason: FinishReason


class Answer:
    """`plain`: so far the target was asked for nothing but what plain decoding asks for, so its logits are the baseline's."""

    def __init__(self, sampling: Sampling, numerics: Numerics, stop: StopCheck) -> None:
        self.sampling, self.numerics, self.plain = sampling, numerics, True
        self.tokens: list[int] = []
        self.state = None if sampling.constraint is None else sampling.constraint.start()
        self.near_ties = 0
        self._stop, self._rng = stop, position_rng(sampling.seed)
        self._ended: FinishReason | None = None

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.sampling.max_new_tokens - len(self.tokens)

    @property
    def finished(self) -> bool:
        return self._ended is not None

    def admissible(self, proposal: Proposal) -> Proposal:
        """The proposal, or an empty one where the grammar refuses all its first tokens."""
        return Proposal.empty() if no_admissible_root(proposal, self.state) else proposal

    def verify(self, logits: Tensor, proposal: Proposal) -> Verdict:
        """What the rule makes of a proposal by the target's logits float [N+1, V]."""
        self.plain &= not len(proposal)
        numerics, asked = self.numerics, (self.sampling, self.tokens, self._rng, self.state)
        if self.plain:
            numerics = Numerics(numerics.rounding)  # plain decoding's own logits need no settling
        try:
            return verify(logits, proposal, *asked, numerics)
        except NonFiniteLogits:
            # A drafted row of NaN spoils those that may not look at it too: plain decoding never reads it.
            if self.plain or self.numerics.plain is None or (own := self.numerics.plain(self.tokens)) is None:
                raise
            return verify(own[None], Proposal.empty(), *asked)

    def extend(self, verdict: Verdict) -> list[int]:
        """Take over what was decided; the tokens that count, up to where the answer ends."""
        fresh = verdict.tokens.tolist()[: self.remaining]
        if (kept := self._stop(fresh)) is not None:
            fresh, self._ended = fresh[:kept], "stop"
        self.tokens += fresh
        for token in fresh:
            self.state = advanced(self.state, token, self.sampling)
        self.near_ties += sum(place < len(fresh) for place in verdict.near_ties)
        if not self.finished and self.remaining <= 0:
            self._ended = "length"
        return fresh

    def outcome(self) -> Outcome:
        """What has been said, and why nothing follows."""
        return Outcome(self.tokens, self._ended or "cancelled")
