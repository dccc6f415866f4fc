"""Budgets: how long the pending tail is, how many nodes a draft may have, and when drafting stops paying.

A node costs `node_cost` target steps to verify and is worth one step times the probability that it is accepted; one level
deeper costs `level_cost` target steps of drafting. Both costs are measured (engine.cost, pairs.warm_up), so the same rule
makes long drafts where verification is nearly free and short ones where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventspec.core import Budget


@dataclass(frozen=True)
class Plan:
    """tail: prompt rows left pending for the first verification (the head start may arrive until the rest is done);
    head_nodes, nodes: most nodes of the head start and of a later round; 0 later nodes = draft only the head start;
    node_cost, level_cost: in target steps; worth: what one accepted node saves, in target steps (less than one, because a
    later round would have committed several with one forward); ahead: whether the drafter deepens its tree while the target
    verifies; patience: target steps that waiting for drafts may cost beyond what accepted ones save; step_seconds: how long
    a step takes; deadline: seconds after which a drafter that does not come back is given up; settle: whether near ties are
    settled by plain decoding (`engine.numerics`) or only counted."""

    tail: int = 1
    head_nodes: int = 32
    nodes: int = 12
    node_cost: float = 0.12
    level_cost: float = 0.35
    worth: float = 0.65
    ahead: bool = True
    patience: float = 16.0
    step_seconds: float = 0.00125
    deadline: float = 5.0
    settle: bool = True

    @property
    def floor(self) -> float:
        """The least probability at which a node is worth its verification."""
        return self.node_cost / self.worth

    @property
    def wait(self) -> float:
        """Seconds that the target waits for drafts before any was accepted."""
        return self.patience * self.step_seconds

    def head_start(self, until: Callable[[], bool], show: Callable[[list[int]], None] | None, left: int) -> Budget:
        """Drafting is free while the target encodes, verifying is not. No branch may be longer than the `left` tokens."""
        return Budget(self.head_nodes, until, self.floor, self.floor, left, show)

    def later(self, left: int, show: Callable[[list[int]], None] | None) -> Budget | None:
        """The target waits, so a level must also pay for the time it takes to draft. None: no more drafts."""
        if self.nodes == 0 or left < 1:
            return None
        return Budget(self.nodes, bool, self.floor, self.level_cost + self.node_cost, left, show)


NO_TAIL = 1 << 30
"""A tail longer than any prompt: the whole prefill is one forward. Right when nothing can arrive meanwhile."""
