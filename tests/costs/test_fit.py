"""What budgets are fitted to: rounds as they happen, a draft before every verification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import Budget, Media, Proposal, Sampling, Scores, Trace, Verdict
from eventspec.costs.fit import measure_rounds, measure_tail, measure_verify
from eventspec.tree import check, is_chain


class _Both:
    """Target and draft session in one: takes 1 ms and 0.2 ms a node, 0.5 ms a level, on a clock of its own."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.now = 0.0

    def score(self, proposal: Proposal) -> Scores:
        self.asked.append(proposal)
        self.now += 1e-3 + 2e-4 * len(proposal)
        return Scores(torch.empty(0))

    def propose(self, budget: Budget) -> Proposal:
        self.asked.append(budget)
        self.now += 5e-4 * budget.max_depth
        return Proposal.empty()

    def commit(self, verdict: Verdict) -> None:
        raise AssertionError("nothing is committed")

    observe = fork = again = prompt = commit  # type: ignore[assignment]


def test_drafts_and_verifications_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    both = _Both()
    monkeypatch.setattr("eventspec.costs.fit.time.perf_counter", lambda: both.now)
    curve, level = measure_rounds(both, both, 1e-3, counts=(4, 24), repeats=3)  # type: ignore[arg-type]
    assert [isinstance(asked, Budget) for asked in both.asked] == [True, False] * (len(both.asked) // 2)
    trees = [asked for asked in both.asked if isinstance(asked, Proposal)]
    assert not any(is_chain(tree.parents.tolist()) for tree in trees), "a chain would skip the mask that trees pay for"
    assert all(len(check(tree, Budget(max_nodes=64))) in (3, 23) for tree in trees)
    assert np.isclose(curve.node_cost, 0.2)
    assert np.isclose(level, 5e-4)


class _Reading:
    """A context that takes `masked` seconds a pending row and 4 ms for every forward, the first one of all 1 s more."""

    def __init__(self, masked: float) -> None:
        self.masked, self.now, self.fresh, self.opened = masked, 0.0, True, list[int]()

    def encode(self, media: Media, trace: Trace) -> _Reading:
        self.now += 5.0
        self.opened.append(0)
        return self

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> _Reading:
        self.opened[-1] += 1
        self.pending = tail
        self.now += 4e-3 * (tail < 100)
        return self

    def score(self, proposal: Proposal) -> Scores:
        self.now += 4e-3 + self.masked * self.pending + self.fresh
        self.fresh = False
        return Scores(torch.empty(0))


@pytest.mark.parametrize(("masked", "best"), [(1e-6, 200), (1e-4, 20)])
def test_the_tail_is_the_one_that_is_read_soonest(masked: float, best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reading: Any = _Reading(masked)  # which has what is timed, and nothing else of a target
    monkeypatch.setattr("eventspec.costs.fit.time.perf_counter", lambda: reading.now)
    assert measure_tail(reading, (20, 200)) == best
    assert set(reading.opened) == {1}, "a second question would find the prompt read"


def test_a_step_is_measured_alone_too_and_is_no_dearer_than_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    both: Any = _Both()
    monkeypatch.setattr("eventspec.costs.fit.time.perf_counter", lambda: both.now)
    assert measure_verify(both, (), repeats=2).one == pytest.approx(1e-3)
    curve = measure_verify(both, (4, 8), repeats=2)
    assert (curve.one, *curve.seconds) == pytest.approx((1e-3, 1.6e-3, 2.4e-3))
