"""Warming up: everything runs once, and budgets are fitted to what it costs on this machine."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace
from functools import partial

import numpy as np

from eventspec.core import Budget, Drafter, DraftSession, Proposal, Request, Sampling, TargetSession, Trace, Verdict
from eventspec.drafters import FeatureDrafter
from eventspec.engine.cost import VerifyCurve, measure_draft, measure_rounds, measure_verify
from eventspec.engine.plan import NO_TAIL
from eventspec.events.stream import EventStream
from eventspec.models.embedded import IMAGE_SIZE
from eventspec.nn.draft import Growth
from eventspec.pairs.pair import Pair
from eventspec.video.clip import VideoClip

Costs = dict[Hashable, tuple[VerifyCurve, float]]
"""What verifying behind a drafter costs, and seconds of one more level of its drafts, by the shape of the drafter."""


def warm_up(pair: Pair, only: Collection[str] = (), known: Costs | None = None) -> Pair:
    """Run everything once on both lanes, and fit the budgets to what steps, nodes and levels cost on this machine; those of
    the methods `only`, if any are named.

    Heads of one shape are measured once: what is measured twice differs by chance, and with it their trees. `known` carries
    what was measured from one call to the next. Without all this a pair uses the defaults of `engine.Plan`, which were measured
    on a two-core machine with the bundled pair.
    """

    def verifying() -> VerifyCurve:
        return measure_verify(pair.target.prefill(request(), 1, Trace()))

    curve = pair.lanes.lane("target").start(verifying).result()
    fitted = replace(pair.budget, node_cost=curve.node_cost, step_seconds=curve.one)
    budgets, known = dict(pair.budgets), {} if known is None else known
    for method, drafter in pair.drafters.items():
        if (drafter.taps or drafter.concurrent) and (not only or method in only):
            shape = drafter.hot.shape if isinstance(drafter, FeatureDrafter) else method
            work = partial(_costs, pair, drafter, curve, known.get(shape))
            verified, level = pair.lanes.lane("target" if drafter.taps else "drafter").start(work).result()
            known[shape] = verified, level
            unit = verified.one
            budgets[method] = replace(
                pair.plan(method), node_cost=verified.node_cost, level_cost=level / unit, step_seconds=unit
            )
    return replace(pair, budget=fitted, budgets=budgets)


def request() -> Request:
    """A question about a black clip without events."""
    frames = np.zeros((8, IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    video = VideoClip(frames, np.arange(8, dtype=np.int64) * 125_000)
    return Request("Warm up?", EventStream.empty(IMAGE_SIZE, IMAGE_SIZE), video, Sampling(max_new_tokens=8))


def behind_prompt(pair: Pair, drafter: Drafter) -> tuple[TargetSession, DraftSession]:
    """Both sessions behind the prompt and one committed token, for a drafter that reads the target."""
    target = pair.target.prefill(request(), NO_TAIL, Trace(), drafter.taps)
    session = drafter.open(request(), target, Trace())
    verdict = Verdict(np.empty(0, np.int64), np.array([1], np.int64))
    session.observe(verdict, target.score(Proposal.empty()))
    target.commit(verdict)
    return target, session


def _costs(
    pair: Pair, drafter: Drafter, curve: VerifyCurve, known: tuple[VerifyCurve, float] | None
) -> tuple[VerifyCurve, float]:
    """As `Costs` has it; where it is `known`, the drafter only runs warm."""
    if isinstance(drafter, FeatureDrafter):
        # What is likely enough to be drafted is seldom wider: the floor prunes the rest.
        target, draft = behind_prompt(pair, drafter.with_growth(Growth(2, 24)))
        if known is None:
            return measure_rounds(target, draft, curve.one)
        for nodes in (4, 16, 16):
            draft.propose(Budget(nodes))
        return known
    session = behind_prompt(pair, drafter)[1] if drafter.taps else drafter.open(request(), None, Trace())
    for nodes in (4, 16):
        session.propose(Budget(nodes))
    return known or (curve, measure_draft(session))
