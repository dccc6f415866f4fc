"""Costs follow what rounds take: those of a machine are found, and what rounds cannot tell stays as it was measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest

from eventspec.core import Round
from eventspec.costs.rounds import LearntCosts
from eventspec.engine.policy import COSTS, DraftPolicy

MEASURED = DraftPolicy(verify_cost=1.3, node_cost=0.05, step_seconds=2e-3)
SIZES = (0, 6, 12, 24, 40)


@dataclass(frozen=True)
class Machine:
    """Seconds that forwards take here, and levels of drafts; by default those that were measured."""

    step: float = 2e-3
    verify: float = 2.6e-3
    node: float = 1e-4
    noise: float = 0.0
    level: float = 0.0

    def slower(self, times: float) -> Machine:
        """One that takes so many times as long for everything."""
        return Machine(self.step * times, self.verify * times, self.node * times, self.noise, self.level * times)

    def answer(self, rng: np.random.Generator, sizes: tuple[int, ...] = SIZES) -> list[Round]:
        """An answer's rounds; the first ends a prefill and takes a hundred times as long."""
        rounds = [Round(32, 8, "events", True, model_seconds=0.2)]
        for nodes in rng.choice(sizes, 6).tolist():
            seconds = self.verify + self.node * nodes if nodes else self.step
            depth = min(nodes, 3)
            rounds[-1].draft_seconds = self.level * depth + (0.05 if rounds[-1].first and self.level else 0.0)
            rounds.append(Round(nodes, depth, "head", False, model_seconds=seconds * (1 + self.noise * rng.standard_normal())))
        return rounds


def after(
    machine: Machine,
    answers: int,
    learnt: LearntCosts | None = None,
    sizes: tuple[int, ...] = SIZES,
    policy: DraftPolicy = MEASURED,
) -> DraftPolicy:
    """What is known after so many answers."""
    learnt, rng = learnt or LearntCosts(), np.random.default_rng(answers)
    for _ in range(answers):
        learnt.learn(policy, machine.answer(rng, sizes))
    return learnt.applied(policy)


def costs(policy: DraftPolicy) -> dict[str, float]:
    """Those that are learnt."""
    return {name: getattr(policy, name) for name in COSTS}


def test_nothing_is_learnt_of_nothing() -> None:
    learnt = LearntCosts()
    for rounds in ([], [], Machine().slower(9).answer(np.random.default_rng(0))[:1]):
        learnt.learn(MEASURED, rounds)
        assert learnt.applied(MEASURED) == MEASURED


def test_a_machine_that_costs_what_was_measured_changes_nothing() -> None:
    assert costs(after(Machine(), 30)) == pytest.approx(costs(MEASURED), rel=1e-6)


def test_the_first_answer_teaches_nothing() -> None:
    assert after(Machine(step=1.0, verify=2.0), 1) == MEASURED


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_other_costs_are_found(noise: float) -> None:
    found = costs(after(Machine(step=3e-3, verify=9e-3, node=6e-5, noise=noise), 80))
    right = {"verify_cost": 3.0, "node_cost": 0.02, "step_seconds": 3e-3}
    assert found == pytest.approx(right, rel=0.45), "what was measured, 0.05 and 1.3, still counts a little"


def test_only_costs_change() -> None:
    assert replace(after(Machine(step=3e-3, noise=0.1), 10), **costs(MEASURED)) == MEASURED


@pytest.mark.parametrize("sizes", [SIZES, (24,), (0,)])
def test_a_machine_that_slowed_down_costs_the_same_in_steps(sizes: tuple[int, ...]) -> None:
    """Also where rounds alone would not tell: without a plain step among them, with one size of trees, and without any."""
    learnt = LearntCosts()
    after(Machine(), 30, learnt, sizes)
    found = costs(after(Machine().slower(10), 120, learnt, sizes))
    assert found == pytest.approx(costs(MEASURED) | {"step_seconds": 2e-2}, rel=0.1)


def test_a_guess_that_was_wrong_is_put_right() -> None:
    """Nodes that are next to free, where the guess says otherwise, and never a plain step to compare with."""
    guess = DraftPolicy(step_seconds=1e-3, verify_cost=1.0, node_cost=0.12)
    found = after(Machine(step=25e-3, verify=25e-3, node=2e-5), 120, sizes=(4, 12, 30), policy=guess)
    assert found.step_seconds == pytest.approx(25e-3, rel=0.3)
    assert found.verify_cost == pytest.approx(1.0, rel=0.05)
    assert found.node_cost < 0.02


def test_what_verifying_costs_counts_as_measured_once_rounds_have_told() -> None:
    """Plain steps, and trees of more than one size: without them a node's price remains what was guessed."""
    guess = DraftPolicy(step_seconds=1e-3, verifying_guessed=True)
    assert after(Machine(), 1, policy=guess, sizes=(0, 4, 12)).guessed
    assert after(Machine(), 120, policy=guess, sizes=(4,)).guessed
    assert not after(Machine(), 120, policy=guess, sizes=(0, 4, 12)).guessed


def test_what_drafting_costs_counts_as_measured_once_drafts_were_waited_for() -> None:
    """Rounds of the target alone leave a level's price a guess, by which nothing may be declined; drafts tell it."""
    guess = replace(MEASURED, level_cost=0.9, verifying_guessed=True, drafting_guessed=True)
    untimed = after(Machine(), 40, policy=guess)
    assert (untimed.level_cost, untimed.guessed) == (0.9, True)
    assert not untimed.verifying_guessed
    found = after(Machine(level=2e-4), 40, policy=guess)
    assert found.level_cost == pytest.approx(0.1, rel=0.05)
    assert not found.guessed
    assert after(Machine(level=2e-4), 40).level_cost == MEASURED.level_cost, "what was measured when the pair was loaded stays"


def test_it_follows_a_machine_that_changes() -> None:
    learnt = LearntCosts()
    after(Machine(), 50, learnt)
    assert after(Machine(node=4e-4), 80, learnt).node_cost == pytest.approx(0.2, rel=0.1)
    assert after(Machine(), 80, learnt).node_cost == pytest.approx(0.05, rel=0.1)


def test_what_stopped_drafts_is_forgotten() -> None:
    """Nodes were dear, so nobody drafts, and no round says that they are no longer."""
    learnt = LearntCosts()
    assert after(Machine(node=2e-3), 80, learnt).node_cost > 0.65
    assert after(Machine(), 150, learnt, sizes=(0,)).node_cost < 0.2


@pytest.mark.parametrize("later", [1, 2, 5])
@pytest.mark.parametrize("nodes", [6, 40])
def test_one_round_that_was_held_up_is_no_cost(later: int, nodes: int) -> None:
    """Also in an answer of few rounds."""
    learnt = LearntCosts(lambda: pytest.fail("it contradicts nothing"))
    after(Machine(), 30, learnt)
    held_up = Machine().answer(np.random.default_rng(0), sizes=(nodes,))[: 1 + later]
    held_up[-1].model_seconds = 1.0
    learnt.learn(MEASURED, held_up)
    assert costs(learnt.applied(MEASURED)) == pytest.approx(costs(MEASURED), rel=0.07)


@pytest.mark.parametrize("machine", [Machine(node=-5e-5), Machine(verify=0.0, node=3e-4)])
def test_no_cost_is_negative(machine: Machine) -> None:
    assert min(costs(after(machine, 60)).values()) >= 0


def test_a_measurement_is_contradicted_once_by_rounds_that_are_far_from_it() -> None:
    told: list[str] = []
    learnt = LearntCosts(lambda: told.append("contradicted"))
    after(Machine(noise=0.2).slower(1.5), 100, learnt)
    assert not told
    after(Machine().slower(4), 100, learnt)
    assert told == ["contradicted"]
    few = LearntCosts(lambda: told.append("too soon"))
    after(Machine().slower(4), 10, few)
    assert told == ["contradicted"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_lock() -> None:
    learnt = LearntCosts()
    with learnt._lock:
        child = os.fork()
        if child == 0:
            learnt.applied(MEASURED)
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
