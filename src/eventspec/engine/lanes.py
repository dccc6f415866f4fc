"""Lanes: a thread with its own core or CUDA stream that runs one thing after the other, so that drafter and target overlap.

A lane's thread is a daemon: work that hangs is abandoned. At exit what still runs is given a second, because a thread that
comes back from native code into an interpreter that is gone aborts the process. Threads do not survive a fork: a forked child
starts lanes of its own on next use, with one intra-op thread each, because OpenMP's threads are gone too.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

import torch

from eventspec.core import BadInput
from eventspec.engine.breaker import Breaker

T = TypeVar("T")


class Late(TimeoutError):
    """Work on a lane did not come back in time; it goes on."""


class Pending(Generic[T]):
    """A result that another lane is working on: `value` or `error`, once it is there."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def set(self, value: T | None, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self._ready.set()

    def done(self) -> bool:
        return self._ready.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is there, after `timeout` seconds at the latest."""
        return self._ready.wait(timeout)

    def result(self, timeout: float | None = None) -> T:
        """The value; raises what the work raised, or Late after `timeout` seconds."""
        if not self.wait(timeout):
            raise Late(f"no answer within {timeout:.3g} s")
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Lane:
    """One worker thread. `core` pins it to a CPU core with a single intra-op thread; `device` gives it a CUDA stream.

    serving: who asked for the work that was started last. trouble: what could not be set up, "" if nothing.
    """

    def __init__(self, name: str, core: int | None = None, threads: int | None = None, device: str = "cpu") -> None:
        self.name = name
        self.serving: object = None
        self.trouble = ""
        self._core, self._threads, self._device = core, threads, device
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Pending[object]] | None] = queue.SimpleQueue()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"eventspec-{name}", daemon=True)
        self._thread.start()
        _RUNNING.add(self)

    def start(self, work: Callable[[], T], serving: object = None) -> Pending[T]:
        """Queue `work` behind what the lane is doing."""
        pending: Pending[T] = Pending()
        self.serving = serving
        self._work.put((work, pending))  # type: ignore[arg-type]
        return pending

    @property
    def busy_seconds(self) -> float:
        """How long the work that is running has been running; 0 when there is none."""
        began = self._began
        return 0.0 if began is None else time.perf_counter() - began

    def close(self) -> None:
        """End the thread after the work that is queued."""
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
        except BaseException as error:  # whoever waits for this lane must hear of it
            broken = error
        with torch.inference_mode(), torch.cuda.stream(stream):
            while (job := self._work.get()) is not None:
                if broken is not None:
                    job[1].set(None, broken)
                else:
                    self._do(*job, stream)
                del job  # an idle lane must not keep the last request's caches alive

    def _pin(self) -> None:
        """To the lane's own core, where that is allowed: containers may refuse it, and then the system chooses."""
        if self._core is None or not hasattr(os, "sched_setaffinity"):
            return
        try:
            os.sched_setaffinity(0, {self._core})  # 0 is the calling thread
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
            self._began = None
            pending.set(value, None)
        except BaseException as error:
            self._began = None
            pending.set(None, error)


_RUNNING: weakref.WeakSet[Lane] = weakref.WeakSet()


@atexit.register
def _end_all(seconds: float = 1.0) -> None:
    """Let every lane end with what it is doing; one that hangs is not waited for longer than `seconds`."""
    until, lanes = time.monotonic() + seconds, list(_RUNNING)
    for lane in lanes:
        lane.close()
    for lane in lanes:
        lane.join(max(0.0, until - time.monotonic()))


class Lanes:
    """The lanes of one device plan, kept between requests so that their threads stay warm. They end with this object.

    `two`: drafter and target own a device each; on a CPU one core with one intra-op thread each. `one`: both share the device,
    and a drafter runs between the target's steps, never beside them.
    """

    def __init__(self, plan: str, target_device: str = "cpu", drafter_device: str = "cpu") -> None:
        self.plan = plan
        self._devices = {"target": target_device, "drafter": drafter_device}
        # Asked here, not where a lane starts: the drafter's is started from the target's thread, which is pinned already.
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None, None]
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Without any lane yet: at first, and in a forked child."""
        self.breaker = Breaker()
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        weakref.finalize(self, _close_each, self._lanes).atexit = False  # at exit `_end_all` also waits

    @property
    def concurrent(self) -> bool:
        return self.plan == "two"

    def lane(self, name: str) -> Lane:
        """The lane `target` or `drafter`, started on first use."""
        with self._lock:
            if name not in self._lanes:
                self._lanes[name] = self._new(name)
            return self._lanes[name]

    def abandon(self, name: str) -> None:
        """Give up on a lane whose work hangs: who asks next gets a fresh one, and this one ends when its work does."""
        with self._lock:
            lane = self._lanes.pop(name, None)
        if lane is not None:
            lane.close()

    def trouble(self, name: str) -> str:
        """What a lane that was started could not set up, "" if nothing."""
        with self._lock:
            return self._lanes[name].trouble if name in self._lanes else ""

    def leave_hanging(self, name: str, seconds: float) -> Lane | None:
        """Abandon a lane whose work has been running for longer than `seconds`; the lane, if there is such a one."""
        with self._lock:
            lane = self._lanes.get(name)
        if lane is None or lane.busy_seconds <= seconds:
            return None
        self.abandon(name)
        return lane

    def settle(self, seconds: float = 10.0) -> None:
        """Wait until the lanes have nothing to do: a drafter may still be in the step that its request no longer needs. A lane
        that needs longer is abandoned."""
        with self._lock:
            known = list(self._lanes.items())
        for name, lane in known:
            try:
                lane.start(int).result(seconds)
            except Late:
                self.abandon(name)

    def close(self) -> None:
        """End the lanes' threads after what is queued; the next use starts fresh ones."""
        with self._lock:
            _close_each(self._lanes)
            self._lanes.clear()

    def _new(self, name: str) -> Lane:
        device = self._devices[name]
        if device.startswith("cuda"):
            return Lane(name, device=device)
        if _FORKED:
            return Lane(name, threads=1)
        if not self.concurrent:
            # Said aloud: a new thread takes the count that was set last anywhere, and a pinned lane has set one.
            return Lane(name, threads=len(self._cores))
        return Lane(name, self._cores[-1 if name == "target" else 0], threads=1)


_ALL: weakref.WeakSet[Lanes] = weakref.WeakSet()
_FORKED: list[int] = []
"""The process, where it was forked from one that had imported this: OpenMP waits for ever for threads it had there."""


def _close_each(lanes: dict[str, Lane]) -> None:
    for lane in lanes.values():
        lane.close()


def _in_the_child() -> None:
    _FORKED[:] = [os.getpid()]
    _RUNNING.clear()
    for lanes in list(_ALL):
        lanes._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)


class ProcessLock:
    """A lock that a forked child finds open, whatever thread of its parent held it."""

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()


def choose_plan(asked: str, target_device: str = "cpu", drafter_device: str = "cpu") -> str:
    """`auto` is two devices where there are two: different GPUs, a GPU and a CPU, or at least two cores."""
    if asked not in ("auto", "one", "two"):
        raise BadInput(f"device plan '{asked}' is unknown: choose auto, one or two")
    if asked != "auto":
        return asked
    if target_device != drafter_device:
        return "two"
    if target_device.startswith("cuda"):
        return "one"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return "two" if cores >= 2 else "one"
