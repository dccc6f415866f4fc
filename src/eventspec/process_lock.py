"""A lock for what a forked child shares with its parent."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ProcessLock:
    """A lock that a forked child finds open, whatever thread of its parent held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a forked child, before anything else runs there."""
        self._lock = threading.Lock()


_ALL: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _in_the_child() -> None:
    for lock in list(_ALL):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)
