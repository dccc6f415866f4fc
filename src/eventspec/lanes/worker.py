"""A worker: a thread with its own core or CUDA stream that runs one thing after the other, so that drafter and target overlap.

Its thread is a daemon: work that hangs is abandoned. At exit what still runs is ended, see `end_threads`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class LaneTimeout(TimeoutError):
    """Work on a lane did not come back in time; it goes on."""


def done_here(work: Callable[[], T], pending: Future[T] | None = None) -> Future[T]:
    """What `work` gives or raises, done on this thread; the user's own interrupt goes on."""
    pending = Future[T]() if pending is None else pending
    try:
        pending.set_result(work())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # signals reach this thread only
        pending.set_exception(error)
    return pending


class LaneThread(threading.Thread):
    """A daemon thread that is ended before the interpreter is, see `end_threads`."""

    def __init__(self, name: str, target: Callable[..., object], *args: object) -> None:
        super().__init__(target=target, args=args, name=f"eventspec-{name}", daemon=True)

    def interrupt(self) -> None:
        """Raise SystemExit in it when it is in Python code next: no wait and no native code ends before its time."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(SystemExit))


class Worker:
    """One worker thread, which starts with the first work. `core` pins it to a CPU core with a single intra-op thread; `device`
    gives it a CUDA stream.

    left: how many pieces of work are queued or run. trouble: what could not be set up, "" if nothing.
    """

    def __init__(self, name: str, core: int | None = None, threads: int | None = None, device: str = "cpu") -> None:
        self.name, self.trouble, self.left = name, "", 0
        self._core, self._threads, self._device = core, threads, device
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any], object] | None] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self._running: tuple[float, object] | None = None  # since when it works, and for whom
        self._has_team = False
        self._thread = LaneThread(name, self._run)

    def start(self, work: Callable[[], T], serving: object = None) -> Future[T]:
        """Queue `work` after what the worker is doing; RuntimeError once it was closed, and where there is no thread for it."""
        pending = Future[T]()
        with self._closing:
            if self._closed:
                raise RuntimeError(f"worker {self.name} was closed")
            if self._thread.ident is None:
                self._thread.start()
                RUNNING.add(self)
            self.left += 1
            self._work.put((pending, work, serving))
        return pending

    def finished(self) -> Future[None]:
        """Comes when the work that is queued by now is done."""
        return self.start(_nothing)

    @property
    def busy_seconds(self) -> float:
        """How long the work that is running has been running; 0 when there is none."""
        return 0.0 if (running := self._running) is None else time.perf_counter() - running[0]

    @property
    def serving(self) -> object:
        """For whom the work is that is running; None without work."""
        return None if (running := self._running) is None else running[1]

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
                    job[0].set_exception(LaneTimeout("the work before it hung"))
            self._work.put(None)

    def _run(self) -> None:
        ready = done_here(self._set_up)  # where that fails, every piece of work ends with what it raised
        with torch.inference_mode(), torch.cuda.stream(None if ready.exception() else ready.result()):
            while (job := self._work.get()) is not None:
                done_here(functools.partial(self._do, ready, *job[1:]), job[0])
                del job  # an idle worker must not keep the last request's caches alive
        RUNNING.discard(self)

    def _set_up(self) -> torch.cuda.Stream | None:
        """To the lane's own core, where that is allowed: containers may refuse it, and then the system chooses."""
        if self._core is not None and (why := use_cores([self._core], 1)):
            self.trouble = f"lane {self.name} is not pinned to core {self._core} ({why}): times may vary more"
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return torch.cuda.Stream(self._device) if self._device.startswith("cuda") else None

    def _do(self, ready: Future[torch.cuda.Stream | None], work: Callable[[], T], serving: object) -> T:
        self._running = time.perf_counter(), serving
        try:
            stream = ready.result()
            if self._threads != 1 and self._device == "cpu" and work not in (release_team, _nothing):
                self._have_the_only_team()
            value = work()
            if stream is not None:
                stream.synchronize()
            return value
        finally:  # before anybody has the result
            self._running = None
            with self._closing:
                self.left -= 1

    def _have_the_only_team(self) -> None:
        """Other workers on all cores end theirs, as soon as they are idle: see `release_team`."""
        self._has_team = True
        for other in list(RUNNING):
            if other is not self and other._has_team:
                other._has_team = False
                with suppress(RuntimeError):  # it is closing, and its team ends with it
                    other.start(release_team)


def own_cores() -> Sequence[int | None]:
    """Those on which the calling thread may run; None for one that has no number here."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None, None]


def use_cores(cores: Sequence[int | None], threads: int) -> str:
    """Let the calling thread run on these cores only, see `own_cores`, with so many intra-op threads; why the system does not
    allow the cores, "" if it does."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, [core for core in cores if core is not None])  # 0 is the calling thread
    except OSError as error:
        return str(error.strerror or error)
    return ""


def release_team() -> None:
    """End the threads that OpenMP keeps for parallel work of the calling thread; it starts new ones when it needs them again.

    GNU's library, which torch carries on Linux, keeps such a team for every thread that ever worked in parallel. With more
    threads in teams than cores, idle or not, none waits actively at a barrier any more: every product of a lane on all cores
    then sends its team to sleep and wakes it. Measured on two cores of an Intel Xeon: an answer of 29 tokens in 208 ms,
    without the team of the thread that had loaded the pair in 76.
    """
    if (pause := omp_pause()) is not None:
        pause(2)  # `omp_pause_hard` of OpenMP 5.0


@functools.cache
def omp_pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the GNU library that torch has loaded, which acts on the calling thread's team only; None
    where torch uses another one."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    folder = Path(torch.__file__).parent
    for path in (*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")):
        with suppress(OSError, AttributeError):
            pause: Callable[[int], int] = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all
            return pause
    return None


def _nothing() -> None:
    """Work that only waits for its turn."""


RUNNING: set[Worker] = set()
"""Every worker whose thread began and may still run: dropped ones too, because the thread must be ended at exit."""


@atexit.register
def end_threads(seconds: float = 30.0) -> bool:
    """End every lane's thread, whatever it is doing; whether all ended.

    While the interpreter goes, a thread that comes back from native code is ended by unwinding its stack, and C++ aborts the
    process for that ("terminate called without an active exception"). So native code is waited for, `seconds` at most. When for
    one second nothing computes, what is left hangs in a wait: it will not come back.
    """
    for worker in list(RUNNING):
        worker.abandon()
    began = looked = time.monotonic()
    used = time.process_time()
    while left := [thread for thread in threading.enumerate() if isinstance(thread, LaneThread)]:
        for thread in left:
            thread.interrupt()
        left[0].join(0.05)
        if (now := time.monotonic()) - looked > 1.0:
            if now - began > seconds or time.process_time() - used < 0.02:
                break
            looked, used = now, time.process_time()
    return not left
