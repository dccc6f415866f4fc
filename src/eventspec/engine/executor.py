"""What the engine asks of whatever runs its work: `lanes.Workers`, or a test that goes step by step, without threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from eventspec.breaker import Breaker
from eventspec.trace import Lane

T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


class Pending(Protocol[Result]):
    """Work that was given to a lane: as much of `concurrent.futures.Future` as the engine asks for."""

    def done(self) -> bool:
        """Whether it has ended."""

    def result(self) -> Result:
        """What it returned, once it is done; raises what it raised."""

    def exception(self) -> BaseException | None:
        """What it raised, once it is done."""


class Executor(Protocol):
    """Two lanes: the target's, on which the scheduler runs, and the drafter's. Only `wait` takes time."""

    @property
    def breaker(self) -> Breaker:
        """Which drafters hung."""

    @property
    def concurrent(self) -> bool:
        """Whether the lanes may overlap."""

    @property
    def has_room(self) -> bool:
        """Whether a drafter may overlap with the target just now."""

    @property
    def uniform(self) -> bool:
        """Whether the target has as many cores for every question."""

    @property
    def as_plain(self) -> bool:
        """Whether the target has as many cores just now as for plain decoding on a machine that is idle."""

    def share(self, beside: bool) -> str:
        """Give the target the cores that are left, `beside` a drafter or not; the placement that this is, `one` or `two`."""

    def plainly(self) -> AbstractContextManager[None]:
        """`as_plain` for as long as this lasts."""

    def start(self, name: Lane, work: Callable[[], T], serving: object = None) -> Pending[T]:
        """Queue work on a lane; RuntimeError where there is no thread for it."""

    def here(self, work: Callable[[], T]) -> Pending[T]:
        """Do the work now, on the calling thread."""

    def wait(self, seconds: float) -> bool:
        """Wait until some work ends, `seconds` at most; whether some did."""

    def lock(self) -> AbstractContextManager[object]:
        """A new lock: both lanes come to what the reader is shown."""

    def idle(self, name: Lane) -> bool:
        """Whether a lane has nothing to do."""

    def serving(self, name: Lane) -> object:
        """Whom a lane is working for, None without work."""

    def leave_hanging(self, name: Lane, seconds: float) -> bool:
        """Leave a lane whose work takes longer than `seconds`, and note whose it is; whether there was such work."""

    def abandon(self, name: Lane) -> None:
        """Leave a lane with what it is doing."""
