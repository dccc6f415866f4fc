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


def warm_up(pair: Pair, only: Collection[str] = ()) -> Pair:
    """Run everything once on both lanes, and fit the budgets to what steps, nodes and levels cost on this machine; those of
    the methods `only`, if any are named.

    Without it a pair uses the defaults of `engine.Plan`, which were measured on a two-core machine with the bundled pair.
    """

    def verifying() -> VerifyCurve:
        return measure_verify(pair.target.prefill(request(), 1, Trace()))

    curve = pair.lanes.lane("target").start(verifying).result()
    fitted = replace(pair.budget, node_cost=curve.node_cost, step_seconds=curve.one)
    budgets = dict(pair.budgets)
    known: dict[Hashable, tuple[VerifyCurve, float]] = {}
    for method, drafter in pair.drafters.items():
        if (drafter.taps or drafter.concurrent) and (not only or method in only):
            work = partial(_costs, pair, drafter, curve)
            measured = pair.lanes.lane("target" if drafter.taps else "drafter").start(work).result()
            # Heads of one shape cost the same: what is measured twice would differ by chance, and with it their trees.
            shape = drafter.hot.shape if isinstance(drafter, FeatureDrafter) else method
            verified, level = known.setdefault(shape, measured)
            budgets[method] = replace(
                pair.plan(method), node_cost=verified.node_cost, level_cost=level / curve.one, step_seconds=curve.one
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


def _costs(pair: Pair, drafter: Drafter, curve: VerifyCurve) -> tuple[VerifyCurve, float]:
    """What verifying costs behind this drafter, and seconds of one more level of its drafts."""
    if isinstance(drafter, FeatureDrafter):
        # What is likely enough to be drafted is seldom wider: the floor prunes the rest.
        return measure_rounds(*behind_prompt(pair, drafter.with_growth(Growth(2, 24))), curve.one)
    session = behind_prompt(pair, drafter)[1] if drafter.taps else drafter.open(request(), None, Trace())
    for nodes in (4, 16):
        session.propose(Budget(nodes))
    return curve, measure_draft(session)
