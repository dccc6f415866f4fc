"""The workers of a placement: on which devices target and drafter run, and what happens to their threads.

Threads do not survive a fork: a forked child starts workers of its own on next use, with one intra-op thread each, because
OpenMP's threads are gone too.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import torch

from eventspec.breaker import Breaker
from eventspec.core import BadInput, Update
from eventspec.lanes.load import Load
from eventspec.lanes.worker import RUNNING, Worker, done_here, own_cores, release_team, use_cores
from eventspec.machine import usable_cores
from eventspec.trace import Lane

T = TypeVar("T")


class Workers:
    """The workers of one placement, kept between requests so that their threads stay warm. They end with this object. Which
    placement it is, is `asked` for: see `choose_placement`.

    `two`: drafter and target own a device each; both on a CPU, one core with one intra-op thread each. `one`: both share the
    device, and a drafter runs between the target's steps, never beside them, also where it has a device of its own; on a CPU
    the target uses all cores, a drafter one. `auto`, on the cores of a CPU: each question has the one or the other, see
    `share`. A CPU beside a GPU is a device of its own: a target there has all cores, a drafter all but the one that drives
    the target's GPU.
    """

    here, lock = staticmethod(done_here), staticmethod(threading.Lock)

    def __init__(self, asked: str, target_device: str = "cpu", drafter_device: str = "cpu") -> None:
        self.placement = choose_placement(asked, target_device, drafter_device)
        self._devices: dict[Lane, str] = {"target": target_device, "drafter": drafter_device}
        self.apart = are_two(target_device, drafter_device)
        """Whether target and drafter are on different devices, and not on cores of one."""
        # Asked here, not where a worker starts: the drafter's is started from the target's thread, which is pinned already.
        self._cores = own_cores()
        self._load = Load(self._cores)
        self._ending: weakref.finalize[..., Workers] | None = None
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Without any thread yet: at first, and in a forked child."""
        self.breaker = Breaker()
        self._lock, self._news = threading.RLock(), threading.Event()
        self._workers: dict[Lane, Worker] = {name: self._new(name) for name in self._devices}
        if self._ending is not None:
            self._ending.detach()  # it would close workers that stayed behind, and a thread there may hold their locks
        self._ending = weakref.finalize(self, _close_each, self._workers)
        self._ending.atexit = False  # `end_threads` does more

    def on(self, asked: str) -> Workers:
        """Others, on the same devices."""
        return Workers(asked, self._devices["target"], self._devices["drafter"])

    @property
    def devices(self) -> dict[str, str]:
        """Where `target` and `drafter` compute."""
        return {lane: str(device) for lane, device in self._devices.items()}

    @property
    def concurrent(self) -> bool:
        """Whether the lanes may overlap."""
        return self.placement != "one"

    @property
    def free(self) -> int:
        """How many cores are to be shared out, at least one: those that no other process keeps busy."""
        return max(1, len(self._cores) - self._load.taken())

    @property
    def has_room(self) -> bool:
        """Whether a drafter may draft beside the target just now."""
        return self.concurrent and (self.placement == "two" or self.free > 1)

    def share(self, beside: bool) -> str:
        """Called on the target's lane: which of `one` and `two` the questions that come next have. On cores that are shared out
        (`auto`) the target gets all that are `free`, but for one where a drafter works `beside` it."""
        if self.placement != "auto":
            return self.placement
        if not _FORKED:
            free = self.free
            cores = self._cores[1:] if beside and free == len(self._cores) else self._cores  # else the system knows which
            use_cores(cores, max(1, free - beside))  # where that is not allowed, the lane's own place says so, see `trouble`
        return "two" if beside else "one"

    @property
    def uniform(self) -> bool:
        """Whether the target has as many cores for every question."""
        return self.placement != "auto" or bool(_FORKED)

    @property
    def as_plain(self) -> bool:
        """Whether the calling thread, the target's, has as many intra-op threads as plain decoding has on an idle machine:
        products that are split otherwise may differ by rounding."""
        return self.uniform or torch.get_num_threads() == len(self._cores)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """For as long as this lasts the calling thread, the target's, has what plain decoding has, see `as_plain`."""
        if self.as_plain:
            yield
            return
        cores, threads = own_cores(), torch.get_num_threads()
        use_cores(self._cores, len(self._cores))
        try:
            yield
        finally:
            use_cores(cores, threads)

    def worker(self, name: Lane) -> Worker:
        """The worker of the lane `target` or `drafter`."""
        return self._workers[name]

    def start(self, name: Lane, work: Callable[[], T], serving: object = None) -> Future[T]:
        """Queue work on a lane."""
        if (
            name == "target"
            and self._devices[name].startswith("cpu")
            and (self.apart or self.placement != "two")
            and not _FORKED
        ):
            release_team()  # of the thread that asks: the lane's own is to be the only one. A forked child would wait for ever
        news = self._news
        with self._lock:  # nobody is to close the worker meanwhile
            pending = self._workers[name].start(work, serving)
        pending.add_done_callback(lambda done: news.set())
        return pending

    def wait(self, seconds: float) -> bool:
        """Wait until a lane is done with some work, `seconds` at most; whether one was, since this was asked before."""
        ended = self._news.wait(seconds)
        self._news.clear()
        return ended

    def stream(self, work: Callable[[Callable[[Update], None]], object]) -> Iterator[Update]:
        """Run `work` on the target's lane and yield its updates as they happen; an error in it is raised here."""
        updates: queue.SimpleQueue[Update | None] = queue.SimpleQueue()

        def whole() -> None:
            try:
                work(updates.put)
            finally:
                updates.put(None)

        process, pending = os.getpid(), self.start("target", whole)
        while True:
            if os.getpid() != process:
                raise RuntimeError("this answer was begun before a fork, and its threads stayed behind: ask again in the child")
            if (update := updates.get()) is None:
                break
            yield update
        pending.result()

    def abandon(self, name: Lane) -> None:
        """Give up on a worker whose work hangs: who asks next gets a fresh one, and this one ends when its work does."""
        with self._lock:
            worker, self._workers[name] = self._workers[name], self._new(name)
        worker.abandon()

    def serving(self, name: Lane) -> object:
        """Whom a lane is working for just now, None without work."""
        return self._workers[name].serving

    def idle(self, name: Lane) -> bool:
        """Whether a lane has nothing to do."""
        return not self._workers[name].left

    @property
    def troubles(self) -> list[str]:
        """What workers that were started could not set up."""
        return [worker.trouble for worker in self._workers.values() if worker.trouble]

    def leave_hanging(self, name: Lane, seconds: float) -> bool:
        """Abandon a worker whose work has been running for longer than `seconds`, and note for whom; whether there is one."""
        worker = self._workers[name]
        if worker.busy_seconds <= seconds:
            return False
        self.breaker.hung(worker.serving)
        self.abandon(name)
        return True

    def drain(self, seconds: float = 10.0) -> None:
        """Wait until the workers have nothing to do: a drafter may still be in the step that its request no longer needs. A
        worker that needs longer is abandoned."""
        for name, worker in list(self._workers.items()):
            try:
                if worker.left:
                    worker.finished().result(seconds)
            except TimeoutError:
                self.abandon(name)

    def close(self) -> None:
        """End the threads after what is queued; the next use starts fresh ones."""
        with self._lock:
            _close_each(self._workers)
            self._workers.update({name: self._new(name) for name in self._devices})

    def _new(self, name: Lane) -> Worker:
        if (device := self._devices[name]).startswith("cuda"):
            return Worker(name, device=device)
        if _FORKED:
            return Worker(name, threads=1)
        if name == "target" and (self.apart or self.placement != "two"):
            # Said aloud: a new thread takes the count that was set last anywhere, and a pinned worker has set one.
            return Worker(name, threads=len(self._cores))
        if self.apart:
            return Worker(name, threads=max(1, len(self._cores) - 1))
        if self.placement == "one":
            # A drafter's small products gain little from more cores, and a second team would cost the target more, see
            # `release_team`.
            return Worker(name, threads=1)
        return Worker(name, self._cores[-1 if name == "target" else 0], threads=1)


_ALL: weakref.WeakSet[Workers] = weakref.WeakSet()
_FORKED: list[int] = []
"""The process, where it was forked from one that had imported this: OpenMP waits for ever for threads it had there."""


def _close_each(workers: dict[Lane, Worker]) -> None:
    for worker in workers.values():
        worker.close()


def _in_the_child() -> None:
    _FORKED[:] = [os.getpid()]
    RUNNING.clear()
    for workers in list(_ALL):
        workers._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)


def described_placement(placement: str, apart: bool = False) -> str:
    """A placement in words; `apart`: of two devices."""
    known = {"one": "two devices in turns" if apart else "one device", "two": "a device for each model"}
    return known.get(placement, "cores shared out for every question")


def are_two(device: str, other: str) -> bool:
    """Whether two names are of different devices: `cuda` is the first GPU, and a CPU is one however it is numbered."""
    return _numbered(device) != _numbered(other)


def _numbered(name: str) -> tuple[str, int]:
    """The kind of a device and which one of it."""
    device = torch.device(name)
    return device.type, 0 if device.type == "cpu" else device.index or 0


def choose_placement(asked: str, target_device: str = "cpu", drafter_device: str = "cpu") -> str:
    """`auto` is two devices where there are two: different GPUs, or a GPU and a CPU; on a CPU with several cores every question
    has the placement that its drafters need."""
    if asked not in ("auto", "one", "two"):
        raise BadInput(f"device plan '{asked}' is unknown: choose auto, one or two")
    if asked != "auto":
        return asked
    if are_two(target_device, drafter_device):
        return "two"
    if target_device.startswith("cuda"):
        return "one"
    return "auto" if usable_cores() >= 2 else "one"
