"""What verifying costs goes on being learnt: a policy follows what the rounds of its method take, from one answer to the next.

A plain step takes u seconds, a forward that verifies k nodes a + b k. All three are found by least squares over the latest
rounds. Where rounds do not tell them apart (all trees of one size, never a plain step), they relate to each other as they were
measured or guessed; how fast the machine is just now, rounds say. What a level of a draft costs is learnt where it was guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eventspec.core import Round
from eventspec.engine.policy import DraftPolicy
from eventspec.process_lock import ProcessLock

DECAY = 0.99
"""What a round weighs after the next one: about a hundred are remembered."""
PRIOR_ROUNDS = 8.0
"""Verifications, and plain steps, that a policy's own costs weigh in the beginning."""
PRIOR_NODES = (4, 24)
"""Of the verifications that a policy's costs stand for."""
STEP_ROUNDS, NODE_ROUNDS = 0.3, 1.0
"""Rounds that the measured relations weigh, for ever: of a plain step to a verification, and of a node to the verification that
it is in. The first is next to nothing beside rounds that tell. The second is not: small trees say little about the price of a
node, and a stall would be taken for one."""
OUTLIER = 1.5
"""Times the typical time of late; a round that took longer, or as much less, counts as this. The machine did something else."""
FOLLOWING = 0.1
"""By how much one round moves what is typical of late: machines become slower and faster for all rounds alike."""
CONTRADICTED = 2.0
"""Times what a verification was measured to take, or as little: then the measurement was wrong, or is no longer right."""
SURE_ROUNDS = 100
"""Rounds after which a measurement may be contradicted."""
KNOWN_ROUNDS, KNOWN_LEVELS = 32, 16
"""Rounds, plain ones and drafts of several sizes among them, after which what verifying costs counts as measured where it was
guessed; and levels of drafts after which drafting does."""


class LearntCosts:
    """What the rounds of one method took. `contradicted` is called once, when they took far more or less than was measured.

    The first answer teaches nothing: it pays for what a process makes once."""

    def __init__(self, contradicted: Callable[[], None] | None = None) -> None:
        self._rounds, self._warm, self._contradicted, self._lock = 0, False, contradicted, ProcessLock()
        self._sizes = set[int]()  # nodes of rounds so far
        self._pace = 1.0  # the running median of seconds over what was expected
        # Weighted sums over rounds, float64: of row x row and of row x seconds, a row being what `_row` says.
        self._gram, self._moment = np.zeros((3, 3)), np.zeros(3)
        self._levels, self._drafting = 0.0, 0.0  # of drafts, and seconds that the target waited for them

    def applied(self, policy: DraftPolicy) -> DraftPolicy:
        """The policy with what was learnt in the place of what was measured."""
        with self._lock:
            return self._applied(policy)

    def learn(self, policy: DraftPolicy, rounds: Sequence[Round]) -> None:
        """From all rounds of an answer that was given under this policy, or under what was made of it here."""
        later = rounds[1:]  # the first one's forward ends the prefill
        with self._lock:
            warm, self._warm = self._warm, True
            if not warm or not later:
                return
            if not self._rounds:
                self._add(0, policy.step_seconds, PRIOR_ROUNDS)
                for nodes in PRIOR_NODES:
                    self._add(nodes, _seconds(policy, nodes), PRIOR_ROUNDS / len(PRIOR_NODES))
            now = self._applied(policy)
            for made in later:
                expected = _seconds(now, made.proposed)
                self._pace *= 1 + FOLLOWING if made.model_seconds > self._pace * expected else 1 / (1 + FOLLOWING)
                typical = self._pace * expected
                self._gram *= DECAY
                self._moment *= DECAY
                self._add(made.proposed, min(max(made.model_seconds, typical / OUTLIER), typical * OUTLIER))
            # The first draft also pays for what its drafter reads, and is left out.
            for before, made in itertools.pairwise(later):
                if made.depth and before.draft_seconds > 0:
                    self._levels, self._drafting = self._levels + made.depth, self._drafting + before.draft_seconds
            self._rounds += len(later)
            self._sizes.update(made.proposed for made in later)
            # What is learnt by now is expected from now on.
            self._pace *= _seconds(now, PRIOR_NODES[0]) / _seconds(self._applied(policy), PRIOR_NODES[0])
            ratio = _seconds(self._applied(policy), PRIOR_NODES[-1]) / _seconds(policy, PRIOR_NODES[-1])
            wrong = self._rounds >= SURE_ROUNDS and not 1 / CONTRADICTED <= ratio <= CONTRADICTED
            tell, self._contradicted = (self._contradicted, None) if wrong else (None, self._contradicted)
        if tell is not None:
            tell()

    def _add(self, nodes: int, seconds: float, rounds: float = 1.0) -> None:
        self._gram += rounds * np.outer(_row(nodes), _row(nodes))
        self._moment += rounds * seconds * _row(nodes)

    def _applied(self, policy: DraftPolicy) -> DraftPolicy:
        if not self._rounds:
            return policy
        gram, share = self._gram.copy(), policy.node_cost / policy.verify_cost
        step = np.array([-policy.verify_cost, 1.0, 0.0])
        node = np.array([0.0, -share, 1.0]) * PRIOR_NODES[-1]
        gram += STEP_ROUNDS * np.outer(step, step) + NODE_ROUNDS * np.outer(node, node)
        one, whole, more = np.linalg.solve(gram, self._moment).tolist()
        if more < 0:  # the best line without a slope
            one, whole = np.linalg.solve(gram[:2, :2], self._moment[:2]).tolist()
            more = 0.0
        if min(one, whole) <= 0:
            return policy  # no machine: a forward over weights takes time
        known = self._rounds >= KNOWN_ROUNDS and 0 in self._sizes and len(self._sizes) > 2
        found = replace(policy, step_seconds=one, verify_cost=whole / one, node_cost=more / one)
        found = replace(found, verifying_guessed=policy.verifying_guessed and not known)
        if not policy.drafting_guessed or self._levels < KNOWN_LEVELS:
            return found
        return replace(found, level_cost=self._drafting / self._levels / one, drafting_guessed=False)


def _row(nodes: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a round's forward is made of: plain steps, verifications, nodes."""
    return np.array([0.0, 1.0, nodes] if nodes else [1.0, 0.0, 0.0])


def _seconds(policy: DraftPolicy, nodes: int) -> float:
    """What a policy's costs say of a round's forward."""
    return policy.step_seconds * (policy.verify_cost + policy.node_cost * nodes if nodes else 1.0)
