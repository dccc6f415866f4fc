"""Everything runs once, and policies are fitted to what it costs on this machine: steps, nodes and levels, as they were timed
(physics, sections 1 to 5)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch

from eventspec.core import (
    Budget,
    Drafter,
    DraftSession,
    Media,
    Proposal,
    Request,
    Sampling,
    Scores,
    Target,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.costs.rounds import LearntCosts
from eventspec.drafters import FeatureDrafter
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.generate import run
from eventspec.engine.method import Method
from eventspec.engine.policy import NO_TAIL
from eventspec.events.stream import EventStream
from eventspec.lanes import Workers
from eventspec.machine import arrived
from eventspec.models.embedded import IMAGE_SIZE
from eventspec.nn.draft import TreeConfig
from eventspec.text import StopDetector
from eventspec.video.clip import VideoClip

COUNTS = (4, 12, 24, 40)
"""Tokens of the forwards that are timed."""
LEVELS = tuple(Budget(max_nodes=2 * depth, max_depth=depth) for depth in (1, 16))
"""Of the drafts that are timed: a shallow one and a deep one."""
LINK_BYTES = (4 << 10, 16 << 20)
"""Of the tensors whose way from device to device is timed: next to nothing, and the rows of some recordings."""
TAILS = (128, 256)
"""Prompt rows that may be left for the forward that verifies the head start."""


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


Cost = tuple[VerifyCurve, float, float]
"""What verifying after a drafter costs; seconds of one more level of its drafts, and of what it reads before its first one."""
Opening = dict[Hashable, Cost]
"""By the shape of the drafter."""


class Measured(Protocol):
    """A pair, as far as its costs go."""

    @property
    def methods(self) -> Mapping[str, Method]: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def target(self) -> Target: ...
    @property
    def folder(self) -> Path | None: ...
    @property
    def checkpoint(self) -> Path | None: ...
    def with_methods(self, methods: Mapping[str, Method]) -> Self:
        """The same with other methods in the place of those of their names."""


Pair = TypeVar("Pair", bound=Measured)
Kind = TypeVar("Kind", bound=Hashable)
T = TypeVar("T")


def warm_up(pair: Pair, only: Collection[str] = (), known: Opening | None = None, repeats: int = 20) -> Pair:
    """Run everything once on both lanes, and fit the policies to what steps, nodes and levels cost on this machine; those of
    the methods `only`, if any are named.

    Heads of one shape are measured once, those that look at visual rows apart from those that do not, because that is what
    opening them costs: what is measured twice differs by chance, and with it their trees. `known` carries
    what was measured from one call to the next; everything is timed about `repeats` times. Without all this a pair uses the
    guesses of `engine.policy`.
    """
    pays, curves = overlap_pays(pair, max(2, repeats // 3)), dict[bool, VerifyCurve]()
    overlap = pays and pair.workers.concurrent
    tail = _sharing(pair, True, partial(measure_tail, pair.target, TAILS, max(3, repeats // 2))) if overlap else None
    methods, known = dict(pair.methods), {} if known is None else known
    for name, method in pair.methods.items():
        timed = not only or name in only
        overlaps = pays and any(drafter.concurrent for drafter in (*method.drafts.ahead, *method.drafts.after))
        if overlaps not in curves:
            curves[overlaps] = _sharing(pair, overlaps, lambda: measure_verify(session_of(pair.target, 1), repeats=repeats))
        verified, policy = curves[overlaps], replace(method.policy, concurrent=pays, tail=tail or method.policy.tail)
        # Of several drafters the one that reads the target stands first, and works on the target's own thread.
        for drafter in [one for one in method.drafts.after if one.needs_target or one.concurrent][: int(timed)]:
            shape: Hashable = name
            if isinstance(drafter, FeatureDrafter):
                shape = (drafter.kernel.shape, drafter.head.view.sees_visual, overlaps)
            work = partial(_costs, pair, drafter, overlaps, verified, known.get(shape), repeats)
            cost = pair.workers.start("target" if drafter.needs_target else "drafter", work).result()
            verified, level, opening = known[shape] = cost
            policy = replace(policy, level_cost=level / verified.one, open_cost=opening / verified.one)
        policy = replace(policy, verify_cost=verified.verify_cost, node_cost=verified.node_cost, step_seconds=verified.one)
        policy = replace(policy, verifying_guessed=False, drafting_guessed=policy.drafting_guessed and not timed)
        methods[name] = replace(method, policy=policy, learnt=LearntCosts())
    return pair.with_methods(methods)


def overlap_pays(pair: Measured, repeats: int) -> bool:
    """Whether an answer comes sooner when a drafter with a model of its own drafts on a core that the target then lacks, than
    when it drafts before the target, which has all cores. Asked of one method, for all; True where cores are not shared out."""
    drafted = [method for method in pair.methods.values() if any(drafter.concurrent for drafter in method.drafts.ahead)]
    if pair.workers.placement != "auto" or not drafted:
        return True
    if not pair.workers.has_room:
        return False  # beside another process it cannot be measured, and would not pay
    took = dict[bool, float]()
    for _ in range(repeats):
        for overlaps in (True, False):  # the least of each: what else the machine did is no part of it
            policy = replace(drafted[0].policy, concurrent=overlaps)
            seconds = pair.workers.start("target", partial(_answering, pair, replace(drafted[0], policy=policy))).result()
            took[overlaps] = min(took.get(overlaps, math.inf), seconds)
    return took[True] < took[False]


def _answering(pair: Measured, method: Method) -> float:
    """Seconds that an answer takes by a method."""
    asked, trace = request(), Trace()
    stop = StopDetector(asked.sampling.stop_ids)
    trace.restart()
    run(Decoding(Asking(method.target, asked, stop, method.drafts, method.policy), pair.workers, trace), pair.workers)
    return trace.now()


def _sharing(pair: Measured, beside: bool, measure: Callable[[], T]) -> T:
    """What is measured on the target's lane, `beside` a drafter or not."""

    def measured() -> T:
        pair.workers.share(beside)
        return measure()

    return pair.workers.start("target", measured).result()


def request() -> Request:
    """A question about a black clip without events."""
    frames = np.zeros((8, IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    video = VideoClip(frames, np.arange(8, dtype=np.int64) * 125_000)
    return Request(
        Media(events=EventStream.empty(IMAGE_SIZE, IMAGE_SIZE), frames=video), "Warm up?", Sampling(max_new_tokens=8)
    )


def session_of(target: Target, tail: int, taps: tuple[int, ...] = (), asked: Request | None = None) -> TargetSession:
    """A session of a target about a request, by default the `request` above."""
    asked, trace = asked or request(), Trace()
    return target.encode(asked.media, trace).open(asked.question, asked.sampling, tail, trace, taps)


def behind_prompt(pair: Measured, drafter: Drafter) -> tuple[TargetSession, Callable[[], DraftSession]]:
    """Both sessions after the prompt and one committed token, for a drafter that reads the target; its own is a new one each
    time, about a recording that it has not seen."""
    target = session_of(pair.target, NO_TAIL, drafter.taps)
    verdict, scores = Verdict.of(tokens=[1]), target.score(Proposal.empty())
    target.commit(verdict)

    def begin() -> DraftSession:
        session = drafter.open(request(), target, Trace())
        session.observe(verdict, scores)
        return session

    return target, begin


def _costs(pair: Measured, drafter: Drafter, overlaps: bool, curve: VerifyCurve, known: Cost | None, repeats: int) -> Cost:
    """As `Cost` has it; where it is `known`, the drafter only runs warm."""
    if not drafter.needs_target:
        session = drafter.open(request(), None, Trace())
        for nodes in (4, 16):
            session.propose(Budget(nodes))
        return known or (curve, measure_level(session, repeats=max(3, repeats // 2)), 0.0)
    pair.workers.share(overlaps)
    # What is likely enough to be drafted is seldom wider: the floor prunes the rest.
    narrow = drafter.with_tree(TreeConfig(2, 24)) if isinstance(drafter, FeatureDrafter) else drafter
    target, begin = behind_prompt(pair, narrow)
    session = begin()
    for nodes in (4, 16, 16):
        session.propose(Budget(nodes))
    if known is not None:
        return known
    opening = measure_opening(begin, max(2, repeats // 4))
    if not isinstance(narrow, FeatureDrafter):
        return curve, measure_level(session, repeats=max(3, repeats // 2)), opening
    return *measure_rounds(target, session, curve.one, repeats=max(2, repeats // 3)), opening


def measure_verify(session: TargetSession, counts: Sequence[int] = COUNTS, repeats: int = 20) -> VerifyCurve:
    """Time a session's forwards over chains of k tokens; nothing is committed. The prefill must be done."""

    def over(count: int) -> Callable[[], object]:
        return partial(session.score, Proposal.chain([1] * (count - 1)))  # that no model drafted: only its length matters

    one, *others = map(median, in_turns((1, *counts), over, repeats).values())
    # Several rows are no less work than one: if they took less, something else ran beside the one.
    return VerifyCurve(min((one, *others)), tuple(counts), tuple(others))


def measure_tail(target: Target, tails: Sequence[int], repeats: int = 3) -> int:
    """Of several `tails` the one with which a target reads a prompt and a draft after it soonest, in a new context each time.

    A short tail is a second pass over all weights for the sake of a few rows, a long one may have its attention masked; which
    of them costs less depends on the processor.
    """
    asked, draft = request(), forked(24)

    def reading(tail: int) -> Callable[[], object]:
        context = target.encode(asked.media, Trace())
        return lambda: context.open(asked.question, asked.sampling, tail, Trace()).score(draft)

    taken = in_turns(tails, reading, repeats)
    return min(taken, key=lambda tail: min(taken[tail]))  # the least: the first times pay for what is made once


def measure_level(session: DraftSession, repeats: int = 12) -> float:
    """Seconds that one more level of a draft takes a drafter, which reads one committed token before each."""
    committed, unused = Verdict.of(tokens=[1]), Scores(torch.empty(0))

    def drafting(budget: Budget) -> Callable[[], object]:
        session.observe(committed, unused)
        return partial(session.propose, budget)

    return _per_level(in_turns(LEVELS, drafting, repeats))


def measure_link(source: str, goal: str, repeats: int = 9) -> tuple[float, float]:
    """From one device to another: seconds that a tensor takes whatever its size, and bytes a second of a large one."""
    rows = {size: torch.empty(size, dtype=torch.uint8, device=source) for size in LINK_BYTES}
    taken = in_turns(LINK_BYTES, lambda size: lambda: arrived(rows[size].to(goal)), repeats)
    few, many = LINK_BYTES
    least = median(taken[few])
    return least, (many - few) / max(median(taken[many]) - least, 1e-9)


def measure_opening(begin: Callable[[], DraftSession], repeats: int = 3) -> float:
    """Seconds that a drafter takes before its first draft, beyond what a draft of one token takes: to read a prompt, say.
    `begin` gives a session that has observed the first verdict, about another recording each time."""
    first, again = list[float](), list[float]()
    for _ in range(repeats):
        drafting = partial(begin().propose, Budget(max_nodes=1, max_depth=1))
        for taken in (first, again):
            taken.append(_seconds(drafting))
    return max(0.0, min(first) - min(again))


def measure_rounds(
    target: TargetSession, draft: DraftSession, one: float, counts: Sequence[int] = COUNTS, repeats: int = 6
) -> tuple[VerifyCurve, float]:
    """What verifying trees costs, in steps of `one` second, and seconds that one more level of a tree costs a drafter that
    draws it in one go. Nothing is committed; the draft session knows where it stands.

    They take turns as in a real round: each finds the processor's caches full of the other's weights.
    """
    works: dict[Budget | int, Callable[[], object]] = {budget: partial(draft.propose, budget) for budget in LEVELS}
    works |= {count: partial(target.score, forked(count - 1)) for count in counts}
    turns = [kind for count in counts for budget in LEVELS for kind in (budget, count)]
    taken = in_turns(turns, works.__getitem__, repeats)
    verified = tuple(median(taken[count]) for count in counts)
    return VerifyCurve(min(one, *verified), tuple(counts), verified), _per_level(taken)


def in_turns(kinds: Sequence[Kind], prepared: Callable[[Kind], Callable[[], object]], repeats: int) -> dict[Kind, list[float]]:
    """Seconds that work of several kinds takes once it is `prepared`. They take turns: what warms up or slows down meanwhile
    does so for all of them."""
    taken = {kind: list[float]() for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            taken[kind].append(_seconds(prepared(kind)))
    return taken


def _per_level(taken: Mapping[Any, Sequence[float]]) -> float:
    """Seconds of one more level, from those of drafts of each of `LEVELS`."""
    shallow, deep = LEVELS
    return max(0.0, median(taken[deep]) - median(taken[shallow])) / (deep.max_depth - shallow.max_depth)


def forked(nodes: int) -> Proposal:
    """A tree of two branches, one of them a leaf, that no model drafted: trees need a mask, which a chain does not."""
    parents = np.arange(-1, nodes - 1)
    parents[1:2] = -1
    return Proposal(np.ones(nodes, np.int64), parents)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
