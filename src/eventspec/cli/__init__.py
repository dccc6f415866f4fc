"""The command ``eventspec``: how it begins, how it is interrupted, how it ends. What it offers is in `commands`.

Nothing but the standard library is imported here, so that an interrupt is in good hands from the first moment on.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from eventspec.cli.commands import app as app
    from eventspec.cli.commands import run as run

AGAIN = 0.05
"""Seconds after which an interrupt that came at a bad moment comes again."""
_came = False


def was_interrupted() -> bool:
    """Whether Ctrl-C came: native code may have turned it into an error of its own."""
    return _came


def __getattr__(name: str) -> Any:
    if name not in ("app", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eventspec.cli import commands

    return getattr(commands, name)


def main() -> NoReturn:
    """The entry point: run the command of ``sys.argv`` and leave with its exit code."""
    code = 130
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): what is said goes nowhere, and no file that is opened takes its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        _take_interrupts()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a training's second start begins with it blocked
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:  # between two commands' worth of code: `run` has none of its own
        sys.stderr.write("eventspec: interrupted\n")
    except Exception as error:  # `run` explains those of the commands: this one is of what it is made of
        code = 130 if _came else 1
        with suppress(OSError, ValueError):  # of a standard error that is closed
            sys.stderr.write(f"eventspec: {'interrupted' if _came else f'{type(error).__name__}: {error}'}\n")
    finally:
        _leave(code)


def _run(words: list[str]) -> int:
    """As `commands.run`, which explains every failure but that of its own import."""
    try:
        from eventspec.cli.commands import run
    except ImportError as error:
        if _came:  # what it interrupted may have become this
            raise
        sys.stderr.write(f"eventspec: {type(error).__name__}: {error}: the installation is broken, install eventspec again\n")
        return 1
    return run(words)


def _take_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, but not where that would be lost or be misread: while modules are imported, and in
    what Python calls by itself (`__del__`, callbacks out of C)."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not hasattr(signal, "setitimer"):
        return  # a shell that starts it in the background says that it is not to be interrupted

    def interrupted(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                signal.setitimer(signal.ITIMER_REAL, AGAIN)
                return
            frame = frame.f_back
        global _came
        _came = True
        raise KeyboardInterrupt

    usual = sys.unraisablehook

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            usual(lost)

    signal.signal(signal.SIGALRM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    sys.unraisablehook = unraisable


def _leave(code: int) -> NoReturn:
    """End the process with this code. For a thread that does not end within a second the interpreter's own end is left out: it
    would come back from native code into an interpreter that is gone, which aborts the process. So it is after an interrupt:
    one that went through native code, answered here or not, would end the process by a signal."""
    for name in ("SIGINT", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    lanes = sys.modules.get("eventspec.lanes.worker")
    at_once = code == 130
    if lanes is not None and not lanes.end_threads(1.0):
        atexit.unregister(lanes.end_threads)
        at_once = True
    if at_once:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
