"""A lock for what a forked child shares with its parent."""

from __future__ import annotations

import os
import threading
import weakref


class ProcessLock:
    """A lock that a forked child finds open, whatever thread of its parent held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_ALL: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _in_the_child() -> None:
    """Before anything else runs there."""
    for lock in list(_ALL):
        lock._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)
