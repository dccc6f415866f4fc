"""Ctrl-C ends the command in one line with exit code 130, wherever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventspec import cli
from eventspec.cli import commands
from eventspec.errors import BadInput
from eventspec.train.names import reexecute_with_allocator

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run

PROGRAM = """
import os, signal, sys, tempfile, time
from eventspec import cli

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

@cli.app.command()
def ask():
    {work}
    time.sleep(20)
    print("was not interrupted")

sys.argv[1:] = ["ask"]
cli.main()
"""
SWALLOWED = """
    open("swallows.py", "w").write("import os\\ntry:\\n    os.kill(os.getpid(), 2)\\nexcept BaseException: pass")
    sys.path.insert(0, ".")
    import swallows
"""
FINALIZER = """
    class Held:
        def __del__(self):
            interrupt()
    Held()
"""
TRANSLATED = """
    try:
        interrupt()
        time.sleep(20)
    except KeyboardInterrupt:
        raise RuntimeError("as native code may turn it into")
"""
NATIVE = """
    import ctypes, threading
    from eventspec.lanes import Worker
    kept = tempfile.TemporaryDirectory(dir=".")
    begun = threading.Event()
    Worker("native").start(lambda: begun.set() or ctypes.CDLL(None).sleep(30))
    begun.wait()
    interrupt()
"""


WORK = {"at work": "interrupt()", "import": SWALLOWED, "finalizer": FINALIZER, "translated": TRANSLATED, "lane": NATIVE}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_an_interrupt_is_one_line_and_an_exit_code_wherever_it_comes(run: Run, work: str, tmp_path: Path) -> None:
    done = run("-c", PROGRAM.replace("{work}", work.strip()), folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "eventspec: interrupted\n")
    assert not list(tmp_path.glob("tmp*")), "its temporary folder"


def test_an_interrupt_is_in_good_hands_before_the_command_is_read(run: Run) -> None:
    """What is imported before that is the standard library's, and little of it."""
    done = run("-c", "import sys; before = {*sys.modules}; import eventspec.cli; print(*{*sys.modules} - before)")
    ours = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"eventspec", "eventspec.cli", "eventspec.lazy"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("no such thing"), 2),
        (FileNotFoundError(2, "No such file", "here"), 2),
        (ValueError("as numpy's import says it"), 130),
        (ImportError("cannot import name"), 130),
        (RuntimeError("as torch says it"), 130),
        (SystemError("returned a result with an exception set"), 130),
    ],
)
def test_what_an_interrupt_has_nothing_to_do_with_is_explained(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupt may have been swallowed long before: what fails after it is said as ever."""

    def fails(*words: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(type(commands.built()), "__call__", fails)
    monkeypatch.setattr(cli, "_came", True)
    assert commands.run([]) == code
    assert ("interrupted" in capsys.readouterr().err) is (code == 130)
    error.__context__ = KeyboardInterrupt()
    assert commands.run([]) == 130
    monkeypatch.setattr(cli, "_came", False)
    assert commands.run([]) == (1 if code == 130 else code)


def test_only_what_cannot_be_imported_is_a_broken_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, says in ((None, True), (types.SimpleNamespace(run=open), False)):
        monkeypatch.setitem(sys.modules, "eventspec.cli.commands", found)
        monkeypatch.setattr(sys, "argv", ["eventspec", "\0"])
        with monkeypatch.context() as quiet, pytest.raises(SystemExit, match="1"):
            quiet.setattr(cli, "_take_interrupts", lambda: None)
            quiet.setattr(cli, "_leave", sys.exit)
            cli.main()
        assert ("the installation is broken" in capsys.readouterr().err) is says


def test_an_interrupt_that_was_to_come_again_is_not_lost_in_a_second_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock outlives the exec, what answers it does not: the new program would be ended by the alarm."""
    started = list[object]()
    monkeypatch.setattr(os, "execve", lambda *program: started.append(program))
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back after the test
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    before, usual = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    try:
        cli._take_interrupts()
        signal.setitimer(signal.ITIMER_REAL, 60)
        with pytest.raises(KeyboardInterrupt):
            reexecute_with_allocator(["train"])
        assert started == []
        assert signal.setitimer(signal.ITIMER_REAL, 0) == (0.0, 0.0)
        reexecute_with_allocator(["train"])
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 60)  # somebody else's
        reexecute_with_allocator(["train"])
        assert len(started) == 2
        assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, usual)


def test_an_interrupt_that_came_while_a_training_starts_again_is_one_line() -> None:
    """It waits, blocked, until the second start has something to answer it with."""
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); os.kill(os.getpid(), signal.SIGINT); "
        "os.execv(sys.executable, [sys.executable, '-m', 'eventspec', 'doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "eventspec: interrupted\n")
