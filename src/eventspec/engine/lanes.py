"""Lanes: a thread with its own core or CUDA stream that runs one thing after the other, so that drafter and target overlap.

A lane's thread is a daemon: work that hangs is abandoned. At exit what still runs is given a second, because a thread that
comes back from native code into an interpreter that is gone aborts the process.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from eventspec.core import BadInput

T = TypeVar("T")


class Late(TimeoutError):
    """Work on a lane did not come back in time; it goes on."""


class Pending(Generic[T]):
    """A result that another lane is working on."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set(self, value: T | None, error: BaseException | None) -> None:
        self._value, self._error = value, error
        self._ready.set()

    def done(self) -> bool:
        return self._ready.is_set()

    def result(self, timeout: float | None = None) -> T:
        """The value; raises what the work raised, or Late after `timeout` seconds."""
        if not self._ready.wait(timeout):
            raise Late(f"no answer within {timeout:.3g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Lane:
    """One worker thread. `core` pins it to a CPU core with a single intra-op thread; `device` gives it a CUDA stream."""

    def __init__(self, name: str, core: int | None = None, threads: int | None = None, device: str = "cpu") -> None:
        self.name = name
        self._core, self._threads, self._device = core, threads, device
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Pending[object]] | None] = queue.SimpleQueue()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"eventspec-{name}", daemon=True)
        self._thread.start()
        _RUNNING.add(self)

    def start(self, work: Callable[[], T]) -> Pending[T]:
        """Queue `work` behind what the lane is doing."""
        pending: Pending[T] = Pending()
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
        if self._core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self._core})  # 0 is the calling thread
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        stream = torch.cuda.Stream(self._device) if self._device.startswith("cuda") else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            while (job := self._work.get()) is not None:
                self._do(*job, stream)
                del job  # an idle lane must not keep the last request's caches alive

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
    """The lanes of one device plan, kept between requests so that their threads stay warm.

    `two`: drafter and target own a device each; on a CPU one core with one intra-op thread each. `one`: both share the device,
    and a drafter runs between the target's steps, never beside them.
    """

    def __init__(self, plan: str, target_device: str = "cpu", drafter_device: str = "cpu") -> None:
        self.plan = plan
        self._devices = {"target": target_device, "drafter": drafter_device}
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()
        # Asked here, not where a lane starts: the drafter's is started from the target's thread, which is pinned already.
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None, None]

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
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()

    def _new(self, name: str) -> Lane:
        device = self._devices[name]
        if device.startswith("cuda"):
            return Lane(name, device=device)
        if not self.concurrent:
            # Said aloud: a new thread takes the count that was set last anywhere, and a pinned lane has set one.
            return Lane(name, threads=len(self._cores))
        return Lane(name, self._cores[-1 if name == "target" else 0], threads=1)


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
