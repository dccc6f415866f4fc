"""How much to draft: how long the pending tail is, how many nodes a draft may have, and when drafting stops paying.

A node costs `node_cost` target steps to verify and is worth one step times the probability that it is accepted; one level
deeper costs `level_cost` target steps of drafting. Costs are measured (`costs.fit`) and what verification
costs is then learnt from rounds (`costs.rounds`), so the same rule makes long drafts where verification is nearly free and
short ones where it is not. The values below are guesses for a pair of checkpoints that was not measured: they shape drafts,
and decline none (`Costs.guessed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Self

from eventspec.core import BadInput, Budget, never

NO_TAIL = 1 << 30
"""A tail longer than any prompt: the whole prefill is one forward. Right when nothing can arrive meanwhile."""
COSTS = ("verify_cost", "node_cost", "step_seconds")
"""Fields of a policy that go on being learnt, see `costs.rounds`."""
GUESSED = ("verifying_guessed", "drafting_guessed")
"""Fields of a policy that say what was not measured."""
BOUNDS: dict[str, tuple[float, float]] = {
    "tail": (1, NO_TAIL),
    "verify_cost": (1e-6, 1e6),
    "step_seconds": (1e-9, 1e4),
    "worth": (1e-6, 1e6),
    "patience": (0, 1e9),
    "deadline": (1e-6, 1e6),
}
"""The least and the most of a field; else 0 and a million."""
SLOW_STEP = 0.05
"""Seconds that a step may take, for all that is known while costs are guessed."""
UNLIKELY = (0, 24, 4, 12)
"""Nodes that are drafted in turn where none is thought worth its cost, while costs are guessed: sizes that tell costs apart."""
Show = Callable[[list[int]], None]


@dataclass(frozen=True)
class Costs:
    """What drafting costs on a machine: all of a `DraftPolicy` that is measured."""

    verify_cost: float = 1.0
    """What a forward that verifies costs before its nodes are counted, in target steps; above 0."""
    node_cost: float = 0.12
    """What verifying one more node costs, in target steps."""
    level_cost: float = 0.35
    """What drafting one level deeper costs, in target steps."""
    open_cost: float = 0.0
    """What a drafter that reads the target's prompt costs once, before its first draft, in target steps: the target works out
    the features of all rows that it looks at, and it reads them on the target's own thread."""
    step_seconds: float = 0.00125
    """How long a target step takes."""
    concurrent: bool = True
    """Whether a drafter with a device of its own drafts beside the target; else before it, and on a CPU whose cores are shared
    out for every question (`lanes.workers`, `auto`) the target then has all of them."""
    tail: int = 128
    """Prompt rows left pending for the first verification: the head start may arrive until the rest is done."""
    verifying_guessed: bool = False
    """Whether steps and verifications (`COSTS`) were not timed on this machine yet."""
    drafting_guessed: bool = False
    """Whether drafts (`level_cost`, `open_cost`) were not."""

    @property
    def guessed(self) -> bool:
        """Whether drafts that seem to cost more than they save are made all the same, so that it becomes known."""
        return self.verifying_guessed or self.drafting_guessed

    @property
    def measured(self) -> dict[str, Any]:
        """The fields of `Costs` by name, of a policy too."""
        return {item.name: getattr(self, item.name) for item in fields(Costs)}

    def checked(self) -> Self:
        """The same with plain numbers in its fields; BadInput names the one that cannot be."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value: Any = getattr(self, item.name)
            least, most = BOUNDS.get(item.name, (0, 1e6))
            if item.type == "bool":
                good, wanted = isinstance(value, bool), "True or False"
            else:
                whole = item.type == "int"
                a_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
                good, wanted = a_number and least <= value <= most, f"a {'whole ' * whole}number from {least:g} to {most:g}"
            if not good:
                raise BadInput(f"{item.name} is {str(value)[:40]}: give {wanted}")
            found[item.name] = {"bool": bool, "int": int, "float": float}[str(item.type)](value)
        return replace(self, **found)


@dataclass(frozen=True)
class DraftPolicy(Costs):
    """What a method may draft, and how long the target waits for it."""

    head_nodes: int = 32
    """Most nodes of the head start."""
    max_nodes: int = 12
    """Most nodes of a later round; 0 = draft only the head start."""
    worth: float = 0.65
    """What one accepted node saves, in target steps: less than one, because a later round would have committed several with
    one forward."""
    look_ahead: bool = True
    """Whether the drafter deepens its tree while the target verifies."""
    patience: float = 16.0
    """Target steps that waiting for drafts may cost beyond what accepted ones save."""
    deadline: float = 5.0
    """Seconds after which a drafter that does not come back is given up."""
    settle: bool = True
    """Whether near ties are settled by plain decoding (`engine.numerics`) or only counted."""

    @property
    def min_path_prob(self) -> float:
        """The least probability at which a node is worth its verification."""
        return self.node_cost / self.worth

    @property
    def wait(self) -> float:
        """Seconds that the target waits for drafts before any was accepted; half of it at once, so no longer than the deadline
        where it is guessed."""
        guess = min(self.patience * SLOW_STEP, 2 * self.deadline) if self.verifying_guessed else 0.0
        return min(max(self.patience * self.step_seconds, guess), 1e6)  # no clock waits for ever

    def costing_as(self, other: Costs) -> DraftPolicy:
        """The same with what was measured for another."""
        return replace(self, **other.measured)

    def verifying_as(self, other: Costs) -> DraftPolicy:
        """The same with what verifying costs another, for a drafter that nobody has timed."""
        known = {name: getattr(other, name) for name in (*COSTS, "verifying_guessed", "concurrent", "tail")}
        return replace(self, **known, drafting_guessed=True)

    def head_start(self, until: Callable[[], bool], show: Show | None, left: int, free: bool = True) -> Budget:
        """Drafting is `free` while the target encodes, verifying is not. No branch may be longer than the `left` tokens."""
        level = self.min_path_prob if free else self.level_cost + self.node_cost
        return Budget(self.head_nodes, until, self.min_path_prob, level, left, show)

    def meanwhile(self, until: Callable[[], bool], left: int) -> Budget:
        """For a drafter that goes on while the target works: after what it drafted before, or to the answer's end."""
        return Budget(self.head_nodes, until, self.min_path_prob, max_depth=left)

    def later(self, left: int, show: Show | None, until: Callable[[], bool] = never) -> Budget | None:
        """The target waits, so a level must also pay for the time it takes to draft. None: no more drafts."""
        if self.max_nodes == 0 or left < 1:
            return None
        return Budget(self.max_nodes, until, self.min_path_prob, self.level_cost + self.node_cost, left, show)

    def unlikely(self, budget: Budget, round_number: int) -> Budget | None:
        """What to draft where nothing is thought worth its cost, if it is to be known; one node tells whether there is any."""
        nodes = UNLIKELY[round_number % len(UNLIKELY)] if self.guessed else 1
        return budget.anyway(nodes) if nodes and budget.min_path_prob > 0 else None
