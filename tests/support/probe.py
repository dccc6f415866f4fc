"""Command lines that are to be refused before torch is loaded, one after the other in one fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PROBE = """
import contextlib, io, json, sys
from eventspec import cli
lines, typed = json.loads(sys.stdin.read())
sys.stdin = io.StringIO(typed) if typed else sys.stdin
for words in lines:
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = cli.run(words)
    print(json.dumps([code, told.getvalue(), "torch" in sys.modules]))
"""


def check_refused_early(lines: Iterable[tuple[Sequence[str], str]], folder: Path, typed: str = "") -> None:
    """Run in `folder` command lines, each with a part of what it is told: exit 2, one line, and no torch. `typed`: what stands
    on the standard input of each."""
    lines = list(lines)
    words = json.dumps([[[*line] for line, _ in lines], typed])
    done = subprocess.run([sys.executable, "-c", PROBE], input=words, capture_output=True, text=True, cwd=folder, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(lines), told[-1:]
    for (line, says), found in zip(lines, told, strict=True):
        code, error, loaded = json.loads(found)
        assert (code, loaded, error.count("\n")) == (2, False, 1), (line, error, loaded)
        assert says in error, (line, error)
