"""A worker: a thread with its own core or CUDA stream that runs one thing after the other, so that drafter and target overlap.

Its thread is a daemon: work that hangs is abandoned. At exit what still runs is given a second, because a thread that comes
back from native code into an interpreter that is gone aborts the process.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from eventspec.lanes.openmp import release_team

T = TypeVar("T")


class LaneTimeout(TimeoutError):
    """Work on a lane did not come back in time; it goes on."""


class Pending(Generic[T]):
    """A result that another lane is working on: `value` or `error`, once it is there; `news` is set then too."""

    def __init__(self, news: threading.Event | None = None) -> None:
        self._ready, self._news = threading.Event(), news
        self.value: T | None = None
        self.error: BaseException | None = None

    def set(self, value: T | None, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self._ready.set()
        if self._news is not None:
            self._news.set()

    def done(self) -> bool:
        return self._ready.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is there, after `timeout` seconds at the latest."""
        return self._ready.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """The value; raises what the work raised, or LaneTimeout after `timeout` seconds."""
        if not self.wait(timeout):
            raise LaneTimeout(f"no answer within {timeout:.3g} s")
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def done_here(work: Callable[[], T]) -> Pending[T]:
    """What `work` gives or raises, done on this thread; the user's own interrupt goes on."""
    pending: Pending[T] = Pending()
    try:
        pending.set(work(), None)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # signals reach this thread only
        pending.set(None, error)
    return pending


class Worker:
    """One worker thread. `core` pins it to a CPU core with a single intra-op thread; `device` gives it a CUDA stream.

    serving: for whom the work is that runs, or ran last. left: how many pieces of work are queued or run. trouble: what could
    not be set up, "" if nothing.
    """

    def __init__(
        self,
        name: str,
        core: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        news: threading.Event | None = None,
    ) -> None:
        self.name, self._news = name, news
        self.serving: object = None
        self.trouble, self.left = "", 0
        self._core, self._threads, self._device = core, threads, device
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Pending[object], object] | None] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self._began: float | None = None
        self._has_team = False
        self._thread = threading.Thread(target=self._run, name=f"eventspec-{name}", daemon=True)
        RUNNING.difference_update([worker for worker in list(RUNNING) if worker.ended])
        RUNNING.add(self)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether its thread ran and is gone."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self, work: Callable[[], T], serving: object = None) -> Pending[T]:
        """Queue `work` after what the worker is doing; RuntimeError once it was closed."""
        pending: Pending[T] = Pending(self._news)
        with self._closing:
            if self._closed:
                raise RuntimeError(f"worker {self.name} was closed")
            self.left += 1
            self._work.put((work, pending, serving))  # type: ignore[arg-type]
        return pending

    def finished(self) -> Pending[None]:
        """Comes when the work that is queued by now is done."""
        return self.start(_nothing)

    @property
    def busy_seconds(self) -> float:
        """How long the work that is running has been running; 0 when there is none."""
        began = self._began
        return 0.0 if began is None else time.perf_counter() - began

    def close(self) -> None:
        """End the thread after the work that is queued."""
        with self._closing:
            self._closed = True
            self._work.put(None)

    def abandon(self) -> None:
        """End the thread after what runs now; what is queued after it ends with a LaneTimeout."""
        with self._closing:
            self._closed = True
            with suppress(queue.Empty):
                while (job := self._work.get_nowait()) is not None:
                    job[1].set(None, LaneTimeout("the work before it hung"))
            self._work.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, not longer than `seconds`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        broken: BaseException | None = None
        stream = None
        try:
            self._pin()
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            stream = torch.cuda.Stream(self._device) if self._device.startswith("cuda") else None
        except BaseException as error:  # every piece of work ends with it
            broken = error
        with torch.inference_mode(), torch.cuda.stream(stream):
            while (job := self._work.get()) is not None:
                if broken is not None:
                    self._over()
                    job[1].set(None, broken)
                else:
                    self.serving = job[2]
                    if self._threads != 1 and self._device == "cpu" and job[0] not in (release_team, _nothing):
                        self._have_the_only_team()
                    self._do(job[0], job[1], stream)
                del job  # an idle worker must not keep the last request's caches alive
        self.serving = None  # a thread that frees tensors while the interpreter goes aborts the process

    def _have_the_only_team(self) -> None:
        """Other workers on all cores end theirs, as soon as they are idle: see `release_team`."""
        self._has_team = True
        for other in list(RUNNING):
            if other is not self and other._has_team:
                other._has_team = False
                with suppress(RuntimeError):  # it is closing, and its team ends with it
                    other.start(release_team)

    def _pin(self) -> None:
        """To the lane's own core, where that is allowed: containers may refuse it, and then the system chooses."""
        if self._core is None:
            return
        try:
            use_cores([self._core], 1)
        except OSError as error:
            self.trouble = (
                f"lane {self.name} is not pinned to core {self._core} ({error.strerror or error}): times may vary more"
            )

    def _do(self, work: Callable[[], object], pending: Pending[object], stream: torch.cuda.Stream | None) -> None:
        self._began = time.perf_counter()
        try:
            value = work()
            if stream is not None:
                stream.synchronize()
            self._over()
            pending.set(value, None)
        except BaseException as error:
            self._over()
            pending.set(None, error)

    def _over(self) -> None:
        """One piece of work less, before its `Pending` is set."""
        self._began = None
        with self._closing:
            self.left -= 1


def use_cores(cores: Sequence[int | None], threads: int) -> None:
    """Let the calling thread run on these cores only (None: one that has no number here), with so many intra-op threads;
    OSError where that is not allowed."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core for core in cores if core is not None])  # 0 is the calling thread


def _nothing() -> None:
    """Work that only waits for its turn."""


RUNNING: set[Worker] = set()
"""Every worker whose thread may still run: dropped ones too, because it is the thread that must be waited for at exit."""


@atexit.register
def _end_all(seconds: float = 1.0) -> None:
    """Let every worker end with what it is doing; one that hangs is not waited for longer than `seconds`."""
    until, workers = time.monotonic() + seconds, list(RUNNING)
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
