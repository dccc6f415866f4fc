"""Costs follow what rounds take: those of a machine are found, and what rounds cannot tell stays as it was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from eventspec.core import Round
from eventspec.engine.learnt import LearntCosts
from eventspec.engine.policy import COSTS, DraftPolicy

MEASURED = DraftPolicy(verify_cost=1.3, node_cost=0.05, level_cost=0.1, step_seconds=2e-3)


@dataclass(frozen=True)
class Machine:
    """Seconds that rounds take here."""

    step: float = 2e-3
    verify: float = 2.6e-3
    node: float = 1e-4
    begin: float = 1e-3
    level: float = 2e-4
    noise: float = 0.0

    def round(self, rng: np.random.Generator, nodes: int, levels: int | None) -> Round:
        """One later round."""
        around = 1 + self.noise * rng.standard_normal(2)
        seconds = (self.verify + self.node * nodes if nodes else self.step) * around[0]
        drafting = 0.0 if levels is None else (self.begin + self.level * levels) * around[1]
        origin = "head" if nodes else ""
        return Round(nodes, levels or 0, origin, False, model_seconds=seconds, draft_seconds=drafting, draft_levels=levels)

    def answer(self, rng: np.random.Generator, sizes: tuple[int, ...] = (0, 6, 12, 24, 40)) -> list[Round]:
        """An answer's rounds; the first ends a prefill and takes a hundred times as long."""
        nodes = rng.choice(sizes, 6).tolist()
        first = Round(32, 8, "events", True, model_seconds=0.2, draft_seconds=0.05, draft_levels=3)
        return [first, *(self.round(rng, count, None if not count else int(rng.integers(1, 12))) for count in nodes)]


def after(machine: Machine, answers: int, learnt: LearntCosts | None = None, **how: tuple[int, ...]) -> DraftPolicy:
    """What is known after so many answers."""
    learnt, rng = learnt or LearntCosts(), np.random.default_rng(answers)
    for _ in range(answers):
        learnt.learn(MEASURED, machine.answer(rng, **how))
    return learnt.applied(MEASURED)


def costs(policy: DraftPolicy) -> dict[str, float]:
    """Those that are learnt."""
    return {name: getattr(policy, name) for name in COSTS}


def test_nothing_is_learnt_of_nothing() -> None:
    learnt = LearntCosts()
    assert learnt.applied(MEASURED) == MEASURED
    learnt.learn(MEASURED, [])
    learnt.learn(MEASURED, Machine().answer(np.random.default_rng(0))[:1])
    assert learnt.applied(MEASURED) == MEASURED


def test_a_machine_that_costs_what_was_measured_changes_nothing() -> None:
    assert costs(after(Machine(), 30)) == pytest.approx(costs(MEASURED), rel=1e-6)


def test_the_first_answer_of_a_process_teaches_nothing() -> None:
    assert after(Machine(step=1.0, verify=2.0), 1) == MEASURED


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_other_costs_are_found(noise: float) -> None:
    found = costs(after(Machine(step=3e-3, verify=9e-3, node=6e-5, level=1.5e-3, noise=noise), 80))
    right = {"verify_cost": 3.0, "node_cost": 0.02, "level_cost": 0.5, "step_seconds": 3e-3}
    assert found == pytest.approx(right, rel=0.07 if not noise else 0.25)


def test_only_costs_change() -> None:
    assert replace(after(Machine(step=3e-3, noise=0.1), 10), **costs(MEASURED)) == MEASURED


def test_a_machine_that_slowed_down_costs_the_same_in_steps() -> None:
    """Without a plain step among the rounds, and with one size of trees, rounds alone would not tell a node from a step."""
    slow = Machine(step=6e-3, verify=7.8e-3, node=3e-4, begin=3e-3, level=6e-4)
    found = costs(after(slow, 60, sizes=(24,)))
    assert found == pytest.approx(costs(MEASURED) | {"step_seconds": 6e-3}, rel=0.02)


def test_it_follows_a_machine_that_changes() -> None:
    learnt = LearntCosts()
    after(Machine(), 50, learnt)
    assert after(Machine(node=4e-4), 50, learnt).node_cost == pytest.approx(0.2, rel=0.1)
    assert after(Machine(), 80, learnt).node_cost == pytest.approx(0.05, rel=0.1)


def test_one_round_that_was_held_up_is_no_cost() -> None:
    learnt = LearntCosts()
    after(Machine(), 20, learnt)
    held_up = Machine(verify=1.0).answer(np.random.default_rng(0), sizes=(12,))[:2]
    learnt.learn(MEASURED, held_up)
    assert learnt.applied(MEASURED).step_seconds == pytest.approx(2e-3, rel=0.05)
    assert learnt.applied(MEASURED).node_cost == pytest.approx(0.05, rel=0.1)


def test_no_cost_is_negative() -> None:
    found = after(Machine(node=-5e-5, level=-1e-4), 60)
    assert found.node_cost == found.level_cost == 0


def test_somebody_hears_of_every_answer() -> None:
    told: list[DraftPolicy] = []
    learnt = LearntCosts(told.append)
    after(Machine(), 3, learnt)
    assert len(told) == 2 and told[-1] == learnt.applied(MEASURED)
