"""What a training shows: which stage of how many, how far, how long it will still take."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from eventspec.cli.bars import Lines, label, shown


def test_lines_come_at_the_start_each_minute_and_at_the_end() -> None:
    now, lines = 0.0, list[str]()
    told = Lines(("render", "eight"), lines.append, lambda: now)
    for second in range(0, 301, 10):
        now = float(second)
        told.add("eight", second / 300, {"_accuracy": 0.5, "answer": 1.25})
    assert lines[0] == "stage 2 of 2, eight: 0%, accuracy 0.5 answer 1.25"
    assert lines[1] == "stage 2 of 2, eight: 20%, 4 min left, accuracy 0.5 answer 1.25"
    assert lines[-1] == "stage 2 of 2, eight: 100%, accuracy 0.5 answer 1.25"
    assert len(lines) == 6
    now = 305.0
    told.add("another", 0.5, {})
    assert lines[-1] == "another: 50%", "a stage that nobody announced, gone on with: no time is known yet"


def test_time_left_goes_by_what_this_run_did() -> None:
    now, lines = 0.0, list[str]()
    told = Lines((), lines.append, lambda: now)
    told.add("heads", 0.9, {})  # a run that goes on
    now = 60.0
    told.add("heads", 0.95, {})
    assert lines == ["heads: 90%", "heads: 95%, 1 min left"]


def test_an_interrupt_says_that_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), shown(("heads",)) as report:
        report("heads", 0.1, {})
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "stage 1 of 1, heads: 10%" in said and said.endswith("go on with --resume\n")
    with pytest.raises(KeyboardInterrupt), shown() as report:
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "", "nothing was begun, nothing is kept"
    with shown(visible=False) as report:
        report("heads", 0.1, {})
    assert capsys.readouterr().err == ""


def test_a_stage_that_is_not_announced_has_its_name_alone() -> None:
    assert label("distil", ("render", "distil")) == "stage 2 of 2, distil"
    assert label("other", ("render",)) == "other"


def test_a_terminal_says_what_it_waits_for_before_torch_is_loaded() -> None:
    reading, terminal = os.openpty()
    words = ["-X", "importtime", "-m", "eventspec", "generate", "--recording", "example:street", "--prompt", "Why?"]
    done = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    try:
        shown = b""
        while b"loading the models" not in shown:
            try:
                shown += os.read(reading, 4096)
            except OSError:  # it has ended, and its terminal with it
                pytest.fail(shown[-500:].decode())
        done.kill()
        assert re.search(rb"\| +typer\b", shown), "imports are listed"
        assert not re.search(rb"\| +torch\b", shown)
    finally:
        done.wait()
        os.close(reading)
