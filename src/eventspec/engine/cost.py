"""What a step, a node and a level cost on this machine: the measured curves behind every budget (physics, sections 1 to 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from eventspec.core import Budget, DraftSession, Proposal, Scores, TargetSession, Verdict


@dataclass(frozen=True)
class VerifyCurve:
    """Seconds of one target forward over 1 token, and over each of `counts` tokens; V(k) = t(k) / t(1) is measured, never
    assumed."""

    one: float
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def node_cost(self) -> float:
        """What one more node costs, in target steps, from one token to the longest that was timed."""
        return max(0.0, (self.seconds[-1] / self.one - 1) / (self.counts[-1] - 1))


def measure_verify(session: TargetSession, counts: Sequence[int] = (4, 8, 12), repeats: int = 25) -> VerifyCurve:
    """Time a session's forwards over chains of k tokens; nothing is committed. The prefill must be done."""

    def timed(count: int) -> float:
        # A chain that no model drafted: only its length matters.
        proposal = Proposal.chain([1] * (count - 1))
        return _median_seconds(lambda: session.score(proposal), repeats)

    return VerifyCurve(timed(1), tuple(counts), tuple(timed(k) for k in counts))


def measure_draft(session: DraftSession, repeats: int = 12) -> float:
    """Seconds in which a drafter reads one committed token and drafts one: what one more level of a draft costs."""
    nothing, unused = np.empty(0, np.int64), Scores(torch.empty(0))

    def step() -> None:
        session.observe(Verdict(nothing, np.array([1], np.int64)), unused)
        session.propose(Budget(nodes=1, levels=1))

    return _median_seconds(step, repeats)


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)
