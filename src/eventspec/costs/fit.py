"""Everything runs once, and policies are fitted to what it costs on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from eventspec.core import (
    Budget,
    Drafter,
    DraftSession,
    Media,
    Proposal,
    Request,
    Sampling,
    Target,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.costs.forwards import (
    VerifyCurve,
    measure_level,
    measure_opening,
    measure_rounds,
    measure_tail,
    measure_verify,
)
from eventspec.costs.rounds import LearntCosts
from eventspec.drafters import FeatureDrafter
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.generate import run
from eventspec.engine.method import Method
from eventspec.engine.policy import NO_TAIL
from eventspec.events.stream import EventStream
from eventspec.lanes import Workers
from eventspec.models.embedded import IMAGE_SIZE
from eventspec.nn.draft import TreeConfig
from eventspec.text import StopDetector
from eventspec.video.clip import VideoClip

TAILS = (128, 256)
"""Prompt rows that may be left for the forward that verifies the head start."""
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
    tail = pair.workers.start("target", partial(_tail, pair, repeats)).result() if overlap else None
    methods, known = dict(pair.methods), {} if known is None else known
    for name, method in pair.methods.items():
        overlaps = pays and any(drafter.concurrent for drafter in (*method.drafts.ahead, *method.drafts.after))
        if overlaps not in curves:
            curves[overlaps] = pair.workers.start("target", partial(_verifying, pair, overlaps, repeats)).result()
        verified, policy = curves[overlaps], replace(method.policy, concurrent=pays, tail=tail or method.policy.tail)
        # Of several drafters the one that reads the target stands first, and works on the target's own thread.
        for drafter in [one for one in method.drafts.after if one.needs_target or one.concurrent][:1]:
            if only and name not in only:
                continue
            shape: Hashable = name
            if isinstance(drafter, FeatureDrafter):
                shape = (drafter.kernel.shape, drafter.head.view.sees_visual, overlaps)
            work = partial(_costs, pair, drafter, overlaps, verified, known.get(shape), repeats)
            cost = pair.workers.start("target" if drafter.needs_target else "drafter", work).result()
            verified, level, opening = known[shape] = cost
            policy = replace(policy, level_cost=level / verified.one, open_cost=opening / verified.one)
        policy = replace(policy, verify_cost=verified.verify_cost, node_cost=verified.node_cost, step_seconds=verified.one)
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


def _verifying(pair: Measured, overlaps: bool, repeats: int) -> VerifyCurve:
    pair.workers.share(overlaps)
    return measure_verify(session_of(pair.target, 1), repeats=repeats)


def _tail(pair: Measured, repeats: int) -> int:
    """The tail for drafts that come beside the target."""
    pair.workers.share(True)
    asked = request()
    return measure_tail(lambda: pair.target.encode(asked.media, Trace()), asked, TAILS, repeats=max(3, repeats // 2))


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
    verdict, scores = Verdict(np.empty(0, np.int64), np.array([1], np.int64)), target.score(Proposal.empty())
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
