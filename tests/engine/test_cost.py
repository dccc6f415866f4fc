"""What budgets are fitted to: rounds as they happen, a draft before every verification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import Budget, Proposal, Scores, Verdict
from eventspec.engine.cost import measure_rounds
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
    monkeypatch.setattr("eventspec.engine.cost.time.perf_counter", lambda: both.now)
    curve, level = measure_rounds(both, both, 1e-3, counts=(4, 24), repeats=3)  # type: ignore[arg-type]
    assert [isinstance(asked, Budget) for asked in both.asked] == [True, False] * (len(both.asked) // 2)
    trees = [asked for asked in both.asked if isinstance(asked, Proposal)]
    assert not any(is_chain(tree.parents.tolist()) for tree in trees), "a chain would skip the mask that trees pay for"
    assert all(len(check(tree, Budget(max_nodes=64))) in (3, 23) for tree in trees)
    assert np.isclose(curve.node_cost, 0.2)
    assert np.isclose(level, 5e-4)
