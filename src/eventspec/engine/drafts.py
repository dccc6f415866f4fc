"""Who drafts when, and how the drafts of several become one tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eventspec.core import Budget, Drafter, Proposal
from eventspec.engine.policy import DraftPolicy
from eventspec.tree import subtree

Merge = Callable[[Sequence[Proposal], Budget], Proposal]
"""One tree of several drafts, or of one, within the budget. They are checked copies, and none is empty."""
Select = Callable[[Sequence[Drafter], DraftPolicy], Sequence[Drafter]]
"""Those of several drafters whose drafts are worth what they cost, by the costs of a policy."""


def first_of(proposals: Sequence[Proposal], budget: Budget) -> Proposal:
    """The proposal of the drafter that stands first among those that drafted, without nodes that are not worth their cost."""
    first, floor = proposals[0], budget.min_path_prob
    if first.values is None or float(first.values.min()) >= floor:
        return first
    return subtree(first, np.flatnonzero(first.values >= floor).tolist())


def all_of(drafters: Sequence[Drafter], policy: DraftPolicy) -> Sequence[Drafter]:
    """All of them."""
    return drafters


@dataclass(frozen=True)
class Drafts:
    """`ahead`: who drafts while the target encodes and prefills; `after`: from the first verified token on. Who is in both has
    one session for both. Without any it is plain decoding.

    The drafter that stands first shows its draft while it grows. Of `after`, all that read the target share one choice of
    layers (`Drafter.taps`)."""

    ahead: tuple[Drafter, ...] = ()
    after: tuple[Drafter, ...] = ()
    merge: Merge = first_of
    select: Select = all_of
    writing: tuple[Drafter, ...] = ()
    """Those of `ahead` that write the answer to its end after their head start, where their lane has time for it
    (`core.DraftSession.write_on`)."""

    def later(self, policy: DraftPolicy) -> tuple[Drafter, ...]:
        """Those of `after` that draft at these costs."""
        return tuple(self.select(self.after, policy))

    @property
    def of_all(self) -> tuple[Drafter, ...]:
        """All drafters, each once."""
        return tuple({id(drafter): drafter for drafter in (*self.ahead, *self.after)}.values())

    @classmethod
    def by(cls, *drafters: Drafter, merge: Merge = first_of) -> Drafts:
        """Each of them from as early as it can."""
        return cls(tuple(drafter for drafter in drafters if not drafter.needs_target), drafters, merge)
