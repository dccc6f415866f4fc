"""What can be won: the ceiling of lossless methods, and the measured verify curve behind every budget (physics, sections 1
to 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from eventspec.core import Proposal, TargetSession


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


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)


def ceiling(prefill: float, total: float) -> float:
    """The largest speedup of a lossless method: total / (vision + prefill), because those must always be paid."""
    return total / prefill
