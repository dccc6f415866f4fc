"""Ctrl-C ends the command in one line with exit code 130, wherever it comes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
