"""Other processes' load: what Linux counts of cores and of this process, at two moments."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from eventspec.lanes import load
from eventspec.lanes.load import Load

At = Callable[..., None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> At:
    """A clock, a process and a system that say what they are told: seconds, seconds of this process, of cores 0 and 1, threads
    that run, and how many more cores there are."""
    now = SimpleNamespace(seconds=0.0, own=0.0)
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: now.seconds, process_time=lambda: now.own))

    def tell(seconds: float, own: float, first: float, second: float, running: int = 1, more: int = 0) -> None:
        now.seconds, now.own = seconds, own
        rows = [f"cpu{n} {int(100 * busy)} 0 0 999 999 0 0 0 5 5" for n, busy in enumerate((first, second, *[999.0] * more))]
        (tmp_path / "stat").write_text("\n".join(["cpu 1 2 3", *rows, f"procs_running {running}", "softirq 1 2"]))

    tell(0, 0, 0, 0)
    return tell


def test_what_this_process_does_itself_is_nobody_elses(at: At) -> None:
    found = Load([0, 1])
    at(1.0, 1.9, 1.0, 0.95)
    assert found.taken() == 0
    at(2.0, 1.9, 2.0, 0.95)
    assert found.taken() == 1
    at(3.0, 1.9, 3.0, 1.95)
    assert found.taken() == 2
    at(4.0, 1.9, 3.0, 2.15)
    assert found.taken() == 0, "a little of a core is what any system does"


def test_cores_that_this_process_may_not_use_do_not_count(at: At) -> None:
    found = Load([1])
    at(1.0, 0.0, 1.0, 0.0)
    assert found.taken() == 0


def test_in_a_moment_nothing_can_be_counted_and_the_last_mean_holds(at: At) -> None:
    found = Load([0, 1])
    at(1.0, 0.0, 1.0, 0.0)
    assert found.taken() == 1
    at(1.01, 0.0, 1.0, 0.0)
    assert found.taken() == 1
    at(2.0, 0.0, 1.0, 0.0)
    assert found.taken() == 0


def test_behind_a_pause_it_is_what_runs_now_that_counts(at: At) -> None:
    found = Load([0, 1])
    at(60.0, 0.0, 0.0, 0.0, running=2)
    assert found.taken() == 1
    at(120.0, 0.0, 60.0, 60.0, running=1)
    assert found.taken() == 0
    at(180.0, 0.0, 60.0, 60.0, running=9)
    assert found.taken() == 2, "no more than there are"


def test_threads_that_fit_on_other_cores_are_not_on_these(at: At) -> None:
    at(0.0, 0.0, 0.0, 0.0, more=14)
    found = Load([0, 1])
    at(60.0, 0.0, 0.0, 0.0, running=14, more=14)
    assert found.taken() == 0
    at(120.0, 0.0, 0.0, 0.0, running=16, more=14)
    assert found.taken() == 1


def test_where_nothing_is_known_nothing_is_assumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for content in (None, "", "cpu0 a b", "cpu0 1", "procs_running"):
        monkeypatch.setattr(load, "STAT", tmp_path / "none")
        if content is not None:
            (tmp_path / "none").write_text(content)
        assert Load([0, 1]).taken() == 0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_busy_process_is_seen() -> None:
    found = Load(list(range(64)))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1.0)
        taken = found.taken()
        busy.kill()
    assert taken >= 1
