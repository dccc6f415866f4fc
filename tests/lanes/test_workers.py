"""Workers: one thread each with its own core, or one that uses all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from eventspec.lanes.worker import RUNNING, Worker, omp_pause, own_cores
from eventspec.lanes.workers import Workers, choose_placement, described_placement

MANY = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores and Linux"
)


@MANY
def test_two_lanes_have_a_core_each_also_when_one_starts_the_other(two: Workers) -> None:
    def cores() -> set[int]:
        return os.sched_getaffinity(0)

    target, drafter = two.start("target", lambda: (cores(), two.start("drafter", cores).result(10))).result(10)
    assert len(target) == len(drafter) == 1
    assert target != drafter


def test_a_lane_runs_one_thing_after_the_other_and_survives_an_error() -> None:
    worker, order = Worker("test"), list[int]()
    first = worker.start(lambda: order.append(1))
    failed = worker.start(lambda: 1 // 0)
    last = worker.start(lambda: order.append(2) or 7)
    assert last.result(10) == 7
    assert first.done()
    assert order == [1, 2]
    with pytest.raises(ZeroDivisionError):
        failed.result(10)
    assert worker.busy_seconds == 0
    worker.close()


def test_waiting_for_a_result_ends_in_time(gate: threading.Event) -> None:
    worker = Worker("test")
    begun = threading.Event()
    hanging = worker.start(lambda: begun.set() or gate.wait(10))
    assert begun.wait(10)
    with pytest.raises(TimeoutError):
        hanging.result(0.001)
    assert worker.busy_seconds > 0
    worker.close()


def test_an_idle_lane_lets_go_of_what_it_worked_on() -> None:
    class Cache:
        pass

    worker, cache = Worker("test"), Cache()
    alive = weakref.ref(cache)
    worker.start(lambda cache=cache: cache).result(10)
    del cache
    ends = time.perf_counter() + 10
    while alive() is not None and time.perf_counter() < ends:
        time.sleep(0.001)
    assert alive() is None
    worker.close()


def test_one_lane_uses_every_core_also_after_a_pinned_lane_set_one_thread(two: Workers) -> None:
    assert two.start("target", torch.get_num_threads).result(10) == 1
    whole = Workers("one")
    assert whole.start("target", torch.get_num_threads).result(10) == len(os.sched_getaffinity(0))
    assert whole.start("drafter", torch.get_num_threads).result(10) == 1
    whole.close()


def test_closed_lanes_start_afresh_on_the_next_use() -> None:
    workers = Workers("one")
    before = workers.worker("target")
    workers.close()
    assert workers.worker("target") is not before
    assert workers.start("target", lambda: 7).result(10) == 7
    workers.close()


def test_a_lane_without_a_thread_is_tried_again_and_not_waited_for_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers("one")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            workers.start("target", lambda: 7)
    assert workers.worker("target") not in RUNNING
    assert workers.idle("target")
    assert workers.start("target", lambda: 7).result(10) == 7
    assert workers.worker("target") in RUNNING
    workers.close()


def test_settling_waits_for_what_runs_and_leaves_what_hangs(two: Workers, gate: threading.Event) -> None:
    done: list[int] = []
    two.start("drafter", lambda: gate.wait(0.05) or done.append(1))
    two.drain()
    assert done == [1]
    hanging = two.worker("drafter")
    hanging.start(lambda: gate.wait(60))
    two.drain(0.01)
    assert two.worker("drafter") is not hanging


@pytest.mark.parametrize("work", ["while True:\n        x @ x", "threading.Event().wait()"], ids=["computes", "hangs"])
def test_a_process_ends_cleanly_whatever_a_lane_is_doing(work: str) -> None:
    """A product takes some tenths of a second: the lane would come back from one while the interpreter goes, and abort it."""
    program = f"""
import threading, torch
from eventspec.lanes.worker import Worker
def work(begun):
    x = torch.randn(900, 900)
    begun.set()
    {work}
begun = threading.Event()
Worker("busy", threads=1).start(lambda: work(begun))
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("runs", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_process_ends_cleanly_when_its_workers_were_dropped_with_what_they_served(runs: int) -> None:
    """A thread that is the last to hold tensors must not free them while the interpreter goes: some of the runs would abort."""
    program = """
import torch
from eventspec.lanes.workers import Workers
class Drafter:
    def __init__(self):
        self.weights = [torch.randn(64, 64) for _ in range(400)]
def answer():
    workers = Workers("two")
    for name in ("target", "drafter"):
        workers.start(name, lambda: torch.randn(200, 200) @ torch.randn(200, 200), Drafter()).result()
answer()
"""
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_lanes_that_are_asked_for_at_once_are_the_same(two: Workers) -> None:
    found: list[Worker] = []
    askers = [threading.Thread(target=lambda: found.append(two.worker("drafter"))) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(10)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_two_devices_make_two_lanes_and_cores_are_shared_out() -> None:
    assert choose_placement("one") == "one"
    assert choose_placement("auto", "cuda:0", "cuda:0") == "one"
    several = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
    assert choose_placement("auto") == ("auto" if several else "one")
    assert choose_placement("auto", "cuda:0", "cuda:1") == choose_placement("auto", "cuda:0", "cpu") == "two"
    assert choose_placement("two") == choose_placement("two", "cuda", "cuda:0") == "two"


def test_two_devices_work_in_turns_where_that_is_asked_for() -> None:
    """The control that tells what overlap is worth."""
    for where in (("cuda:0", "cuda:1"), ("cuda", "cpu"), ("cpu", "cuda:1")):
        workers = Workers("one", *where)
        assert (workers.placement, workers.apart, workers.concurrent, workers.has_room) == ("one", True, False, False)
        assert described_placement(workers.placement, workers.apart) == "two devices in turns"
    for where in (("cuda", "cuda:0"), ("cpu", "cpu:0")):
        assert not Workers("one", *where).apart


def test_a_processor_beside_a_gpu_is_a_device_and_no_core() -> None:
    """All cores for a target, for a drafter all but the one that drives the GPU; nothing is pinned."""
    cores = len(own_cores())
    for where, lane, threads in ((("cpu", "cuda:0"), "target", cores), (("cuda:0", "cpu"), "drafter", max(1, cores - 1))):
        workers = Workers("auto", *where)
        own, other = workers.worker(lane), workers.worker("drafter" if lane == "target" else "target")
        assert (workers.placement, workers.apart, own._core, own._threads) == ("two", True, None, threads)
        assert (other._device, other._core, workers.uniform, workers.has_room) == ("cuda:0", None, True, True)
        workers.close()
    assert not Workers("two").apart


TEAMS = """
import os, torch
from eventspec.lanes.workers import Workers

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
before = threads()
product = torch.ones(600, 600) @ torch.ones(600, 600)
assert threads() >= before + 2, "no team: nothing to see here"
workers = Workers("one")
assert workers.start("target", lambda: 1).result(10) == 1
print(threads() - before, float((product @ product)[0, 0]))
"""


@pytest.mark.skipif(omp_pause() is None or not Path("/proc/self/task").is_dir(), reason="needs GNU's OpenMP and Linux")
def test_a_lane_of_all_cores_ends_the_team_of_whoever_asks_and_that_works_on() -> None:
    said = subprocess.run([sys.executable, "-c", TEAMS], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.split() == ["1", "216000000.0"]  # the lane's own thread; the second product starts a team again


FORKED = """
import os, torch
from eventspec.lanes.workers import Workers

torch.set_num_threads(3)
torch.ones(600, 600) @ torch.ones(600, 600)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(Workers("one").start("target", lambda: 0).result(10))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parents_team() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], timeout=60, check=True)


LOCKED = """
import os
from eventspec.lanes.workers import Workers

workers = Workers("one")
with workers.worker("target")._closing:  # as a thread may that is closing it just then
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        del workers
        os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_drops_its_parents_workers_without_a_lock_of_theirs() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", LOCKED], timeout=60, check=True)


TWO_TEAMS = """
import os, torch
from eventspec.lanes.worker import Worker

def multiply():
    return float((torch.ones(600, 600) @ torch.ones(600, 600))[0, 0])

workers = [Worker(str(number), threads=3) for number in range(2)]
for each in workers:
    each.finished().result(10)
before = len(os.listdir("/proc/self/task"))
for worker in (*workers, *workers):
    assert worker.start(multiply).result(10) == 600
    for each in workers:
        each.finished().result(10)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(omp_pause() is None or not Path("/proc/self/task").is_dir(), reason="needs GNU's OpenMP and Linux")
def test_of_several_lanes_on_all_cores_the_one_that_worked_last_has_a_team() -> None:
    said = subprocess.run([sys.executable, "-c", TWO_TEAMS], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.split() == ["2"] * 4


@MANY
def test_cores_that_are_shared_out_are_all_the_targets_but_for_one_where_somebody_drafts_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers("auto")
    monkeypatch.setattr(workers._load, "taken", lambda: 0)

    def has(beside: bool) -> tuple[str, int, set[int]]:
        return workers.share(beside), torch.get_num_threads(), os.sched_getaffinity(0)

    every = os.sched_getaffinity(0)
    own = workers.start("drafter", lambda: os.sched_getaffinity(0)).result(10)
    for beside in (True, False, True):
        plan, threads, cores = workers.start("target", partial(has, beside)).result(10)
        assert (plan, cores) == (("two", every - own) if beside else ("one", every))
        assert threads == len(cores)
    monkeypatch.setattr(workers._load, "taken", lambda: len(every) - 1)
    plan, threads, cores = workers.start("target", lambda: has(False)).result(10)
    assert (plan, threads, cores) == ("one", 1, every), "one thread, wherever the system finds room"
    workers.close()


@pytest.mark.parametrize("placement", ["one", "two"])
def test_what_was_asked_for_is_not_shared_out_otherwise(placement: str) -> None:
    workers = Workers(placement)

    def cores() -> tuple[str, int]:
        return workers.share(True), torch.get_num_threads()

    before = workers.start("target", torch.get_num_threads).result(10)
    assert workers.start("target", cores).result(10) == (placement, before)
    workers.close()
