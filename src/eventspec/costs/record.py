"""One record of what a method costs on a machine, and whose costs they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

from eventspec.core import Target
from eventspec.engine.method import Method
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes import Workers


@dataclass(frozen=True)
class Costs:
    """The fields of a `DraftPolicy` that are measured."""

    verify_cost: float
    node_cost: float
    level_cost: float
    open_cost: float
    step_seconds: float
    concurrent: bool
    tail: int

    @classmethod
    def of(cls, policy: DraftPolicy) -> Costs:
        """What a policy says."""
        return cls(**{item.name: getattr(policy, item.name) for item in fields(cls)})

    @classmethod
    def read(cls, row: Any) -> Costs:
        """Of a file's row; BadInput, KeyError or TypeError for what is none."""
        found = cls(**{item.name: row[item.name] for item in fields(cls)})
        found.applied(DraftPolicy()).checked()
        return found

    def applied(self, policy: DraftPolicy) -> DraftPolicy:
        """A policy with these costs."""
        return replace(policy, **asdict(self))


class Measured(Protocol):
    """A pair, as far as its costs go."""

    @property
    def methods(self) -> Mapping[str, Method]: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def target(self) -> Target: ...
    @property
    def folder(self) -> Path | None: ...
    @property
    def checkpoint(self) -> Path | None: ...
    def with_methods(self, methods: Mapping[str, Method]) -> Self:
        """The same with other methods in the place of those of their names."""
