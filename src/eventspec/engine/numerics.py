"""When two forwards give the same answer, and what is done where they may not.

A row of logits that is scored among others differs from the same row scored alone: kernels add in another order. Measured, that
is about 1e-5 in fp32. A decision whose best two candidates are closer than that (`near tie`) is not safe to take from a
verification. It is taken from plain decoding instead, which reads the answer again without drafts: the same forwards
as the baseline's, so the same bits. What is read again is read once, so an answer costs at most one plain decoding more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eventspec.core import Proposal, TargetSession, Verdict

MARGIN = 32.0
"""Rounding is measured over a few rows, and the gap of two logits moves by up to twice what one of them does. Over many rows of
the bundled pair's target, in chains and trees after its own answers, the largest difference is about four times the measured
one (`eventspec bench run rounding`, docs/numerics.md); what is closer than so many times the measured difference counts as a
near tie."""
_PROBED = 24
Reread = Callable[[Sequence[int]], Tensor | None]
"""The answer so far -> logits float [V] after it as plain decoding has them, None where they cannot be had."""


@dataclass(frozen=True)
class Numerics:
    """`rounding`: logits that are no more than this apart may change places when rows share a forward; `settle`: for near ties,
    None where they are only counted; `plain`: for logits that are not finite."""

    rounding: float = 0.0
    settle: Reread | None = None
    plain: Reread | None = None


class PlainDecoding:
    """The answer read again, token by token, on a session of its own: `begin` gives one that has read nothing of the prompt."""

    def __init__(self, begin: Callable[[], TargetSession]) -> None:
        self._begin = begin
        self._session: TargetSession | None = None
        self._read: list[int] = []
        self.forwards = 0
        self._logits: Tensor | None = None
        self.failure = ""

    def settle(self, answer: Sequence[int]) -> Tensor | None:
        """As `logits`; None, and `failure` says why, where it cannot be had: there may be no memory for a second cache."""
        try:
            return None if self.failure else self.logits(answer)
        except (RuntimeError, MemoryError) as error:
            self.failure = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            return None

    def logits(self, answer: Sequence[int]) -> Tensor:
        """float [V] after these tokens; a later call is for a longer answer that begins with them."""
        if self._session is None or self._logits is None or self._read != list(answer[: len(self._read)]):
            self._session, self._read = self._begin(), []
            self._logits = self._step(self._session)
        for token in answer[len(self._read) :]:
            self._session.commit(Verdict.of(tokens=[token]))
            self._logits = self._step(self._session)
            self._read.append(token)
        return self._logits

    def _step(self, session: TargetSession) -> Tensor:
        self.forwards += 1
        return session.score(Proposal.empty()).logits[0]


def measured_rounding(begin: Callable[[], TargetSession], vocabulary: int, tokens: int = _PROBED) -> float:
    """The most that a logit of so many rows in one forward differs from the same row alone, times `MARGIN`.

    Both sessions begin with the same prompt; one reads random tokens one by one, the other all of them at once.
    """
    said = np.random.default_rng(0).integers(vocabulary, size=tokens)
    together = begin().score(Proposal.chain(said)).logits
    alone, apart = begin(), 0.0
    for place, token in enumerate(said):
        row = alone.score(Proposal.empty()).logits[0]
        differs = float((together[place] - row).abs().max())
        apart = max(apart, differs if math.isfinite(differs) else 0.0)  # what is no number ends the answers that meet it
        alone.commit(Verdict.of(tokens=[int(token)]))
    return MARGIN * apart
