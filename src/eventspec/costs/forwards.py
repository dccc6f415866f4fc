"""What a step, a node and a level cost on this machine: the measured curves behind every budget (physics, sections 1 to 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from eventspec.core import Budget, Context, DraftSession, Proposal, Request, Scores, TargetSession, Trace, Verdict


@dataclass(frozen=True)
class VerifyCurve:
    """Seconds of one target forward over 1 token, and over each of `counts` tokens; V(k) = t(k) / t(1) is measured, never
    assumed."""

    one: float
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def node_cost(self) -> float:
        """What one more node costs, in target steps: the slope over the lengths that were timed. A single token may take
        another path through the kernels than several, so it is the unit and not a point of the slope."""
        return max(0.0, self._slope / self.one)

    @property
    def verify_cost(self) -> float:
        """What a forward over several tokens costs without its nodes, in target steps: the line of that slope at no node."""
        return max(0.01, (self.seconds[0] - max(0.0, self._slope) * (self.counts[0] - 1)) / self.one)

    @property
    def _slope(self) -> float:
        return (self.seconds[-1] - self.seconds[0]) / (self.counts[-1] - self.counts[0])


def measure_verify(session: TargetSession, counts: Sequence[int] = (4, 12, 24, 40), repeats: int = 20) -> VerifyCurve:
    """Time a session's forwards over chains of k tokens; nothing is committed. The prefill must be done.

    The lengths take turns, so that a cache that warms up, or a machine that slows down, does so for all of them.
    """
    # Chains that no model drafted: only their length matters.
    chains = {count: Proposal.chain([1] * (count - 1)) for count in (1, *counts)}
    taken: dict[int, list[float]] = {count: [] for count in chains}
    for _ in range(repeats):
        for count, chain in chains.items():
            taken[count].append(_seconds(lambda chain=chain: session.score(chain)))  # type: ignore[misc]
    one, *others = (median(seconds) for seconds in taken.values())
    # Several rows are no less work than one: if they took less, something else ran beside the one.
    return VerifyCurve(min((one, *others)), tuple(counts), tuple(others))


def measure_tail(encode: Callable[[], Context], asked: Request, tails: Sequence[int], nodes: int = 24, repeats: int = 3) -> int:
    """Of several `tails` the one with which a prompt and a draft of so many nodes after it are read soonest, in a context that
    `encode` makes each time.

    A short tail is a second pass over all weights for the sake of a few rows, a long one may have its attention masked; which
    of them costs less depends on the processor.
    """
    draft, taken = forked(nodes), {tail: list[float]() for tail in tails}
    for _ in range(repeats):
        for tail, seconds in taken.items():
            context = encode()

            def read(context: Context = context, tail: int = tail) -> None:
                context.open(asked.question, asked.sampling, tail, Trace()).score(draft)

            seconds.append(_seconds(read))
    return min(taken, key=lambda tail: min(taken[tail]))  # the least: the first times pay for what is made once


def measure_level(session: DraftSession, depths: tuple[int, int] = (1, 16), repeats: int = 12) -> float:
    """Seconds that one more level of a draft takes a drafter, which reads one committed token before each."""
    nothing, unused = np.empty(0, np.int64), Scores(torch.empty(0))
    took: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth, seconds in took.items():
            session.observe(Verdict(nothing, np.array([1], np.int64)), unused)
            seconds.append(_seconds(partial(session.propose, Budget(max_nodes=2 * depth, max_depth=depth))))
    return max(0.0, median(took[depths[1]]) - median(took[depths[0]])) / (depths[1] - depths[0])


def measure_opening(begin: Callable[[], DraftSession], repeats: int = 3) -> float:
    """Seconds that a drafter takes before its first draft, beyond what a draft of one token takes: to read a prompt, say.
    `begin` gives a session that has observed the first verdict, about another recording each time."""
    first, again, one = list[float](), list[float](), Budget(max_nodes=1, max_depth=1)
    for _ in range(repeats):
        session = begin()
        for taken in (first, again):
            taken.append(_seconds(partial(session.propose, one)))
    return max(0.0, min(first) - min(again))


def measure_rounds(
    target: TargetSession,
    draft: DraftSession,
    one: float,
    counts: Sequence[int] = (4, 12, 24, 40),
    depths: Sequence[int] = (1, 16),
    repeats: int = 6,
) -> tuple[VerifyCurve, float]:
    """What verifying trees costs, in steps of `one` second, and seconds that one more level of a tree costs a drafter that
    draws it in one go. Nothing is committed; the draft session knows where it stands.

    They take turns as in a real round: each finds the processor's caches full of the other's weights.
    """
    trees = {count: forked(count - 1) for count in counts}
    verified: dict[int, list[float]] = {count: [] for count in counts}
    drafted: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for count, tree in trees.items():
            for depth in depths:
                budget = Budget(max_nodes=2 * depth, max_depth=depth)
                drafted[depth].append(_seconds(lambda budget=budget: draft.propose(budget)))  # type: ignore[misc]
                verified[count].append(_seconds(lambda tree=tree: target.score(tree)))  # type: ignore[misc]
    level = (median(drafted[depths[-1]]) - median(drafted[depths[0]])) / (depths[-1] - depths[0])
    trees_took = tuple(median(verified[count]) for count in counts)
    return VerifyCurve(min(one, *trees_took), tuple(counts), trees_took), max(0.0, level)


def forked(nodes: int) -> Proposal:
    """A tree of two branches, one of them a leaf, that no model drafted: trees need a mask, which a chain does not."""
    parents = np.arange(-1, nodes - 1)
    parents[1:2] = -1
    return Proposal(np.ones(nodes, np.int64), parents)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
