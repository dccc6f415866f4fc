"""Costs go on being learnt: a policy follows what the rounds of its method take, from one answer to the next.

A plain step takes u seconds, a forward that verifies k nodes a + b k, and a drafter that works on the target's thread d + l L
for a draft of L levels. All five are found by least squares over the latest rounds. What a policy was measured to cost says how
they relate to each other, where rounds alone would not (all of one size, never a plain step); how fast the machine is just now,
rounds say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eventspec.core import Round
from eventspec.engine.policy import DraftPolicy

FADING = 0.99
"""What a round counts for behind the next one: about a hundred are remembered."""
RELATIONS = 0.5
"""Rounds that each relation between a policy's costs counts for: little, where rounds tell them themselves."""
BEGINNING = 8.0
"""Rounds that a policy's step counts for in the beginning."""
BEGINNING_FADING = 0.9
"""What is left of that behind every round."""
NODES, LEVELS = 16, 8
"""Of a round, where a policy's relations count as seen."""
TWICE = 2.0
"""A round that took longer than so many times what was expected counts as this: the machine did something else meanwhile. A
machine that has become slower is believed within some answers."""
NEVER_SEEN = 1e-9
"""Keeps what no row tells at 0."""
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Line:
    """Sums for a least-squares fit of `size` unknowns, older rows fading. Reads and writes are the owner's to order."""

    def __init__(self, size: int) -> None:
        self.gram, self.moment = np.zeros((size, size)), np.zeros(size)

    def add(self, row: Sequence[float], seconds: float) -> None:
        """One more observation."""
        seen = np.array(row)
        self.gram = FADING * self.gram + np.outer(seen, seen)
        self.moment = FADING * self.moment + seen * seconds

    def solved(self, believed: Sequence[tuple[float, Sequence[float], float]]) -> Floats:
        """The unknowns, by what was added and what is believed: (rows that it counts for, row, seconds)."""
        gram, moment = self.gram + NEVER_SEEN * np.eye(len(self.moment)), self.moment.copy()
        for weight, row, seconds in believed:
            gram += weight * np.outer(row, row)
            moment += weight * seconds * np.array(row)
        return np.asarray(np.linalg.solve(gram, moment))


class LearntCosts:
    """What the rounds of one method took. `told`: hears the costs after every answer that was learnt from.

    The first answer of a process teaches nothing: it pays for what is made once."""

    def __init__(self, told: Callable[[DraftPolicy], None] | None = None) -> None:
        self.rounds = 0
        self._told, self._warm, self._lock = told, False, threading.Lock()
        self._verifying, self._drafting = Line(3), Line(2)

    def applied(self, policy: DraftPolicy) -> DraftPolicy:
        """The policy with what was learnt in the place of what was measured."""
        with self._lock:
            return self._applied(policy)

    def learn(self, policy: DraftPolicy, rounds: Sequence[Round]) -> None:
        """From all rounds of an answer, which was given under `policy` or what this made of it."""
        with self._lock:
            warm, self._warm = self._warm, True
            if not warm:
                return
            now = self._applied(policy)
            begun, level = self._drafting_seconds(now)
            for made in rounds[1:]:  # the first one's forward ends the prefill
                self._verified(now, made)
                if made.draft_levels is not None:
                    most = TWICE * (begun + level * made.draft_levels) if begun else made.draft_seconds
                    self._drafting.add((1.0, made.draft_levels), min(made.draft_seconds, most))
            found = self._applied(policy)
        if self._told is not None and len(rounds) > 1:
            self._told(found)

    def _verified(self, now: DraftPolicy, made: Round) -> None:
        nodes = made.proposed
        row = (0.0, 1.0, nodes) if nodes else (1.0, 0.0, 0.0)
        expected = now.step_seconds * (now.verify_cost + now.node_cost * nodes if nodes else 1.0)
        self._verifying.add(row, min(made.model_seconds, TWICE * expected))
        self.rounds += 1

    def _applied(self, policy: DraftPolicy) -> DraftPolicy:
        if not self.rounds:
            return policy
        beginning = BEGINNING * BEGINNING_FADING**self.rounds
        believed = (
            (beginning, (1.0, 0.0, 0.0), policy.step_seconds),
            (RELATIONS, (-policy.verify_cost, 1.0, 0.0), 0.0),
            (RELATIONS, (-policy.node_cost * NODES, 0.0, NODES), 0.0),
        )
        one, verifying, node = self._verifying.solved(believed).tolist()
        if one <= 0:
            return policy
        timed = replace(policy, step_seconds=one, verify_cost=max(0.0, verifying / one), node_cost=max(0.0, node / one))
        return replace(timed, level_cost=max(0.0, self._drafting_seconds(timed)[1] / one))

    def _drafting_seconds(self, policy: DraftPolicy) -> tuple[float, float]:
        """What a draft takes before its first level, and each level; by the policy, where nothing was learnt: (0, its own)."""
        level = policy.level_cost * policy.step_seconds
        begun, found = self._drafting.solved([(RELATIONS, (0.0, LEVELS), LEVELS * level)]).tolist()
        return max(0.0, begun), max(0.0, found)
