"""What the house tests look at: the project's own files, committed or about to be, and its commands run in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def files(root: Path) -> dict[str, str]:
    """Path in the project -> text, for every text file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, f"the house tests need the project's git checkout: {listed.stderr.strip()}"
    texts = {}
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = root / name
        if not path.is_file():  # deleted, not yet committed
            continue
        data = path.read_bytes()
        if b"\0" not in data[:8192]:
            texts[name] = data.decode("utf-8", errors="replace")
    return texts


@pytest.fixture(scope="session")
def modules(files: dict[str, str]) -> dict[str, str]:
    """The Python files among them."""
    return {name: text for name, text in files.items() if name.endswith(".py")}


@pytest.fixture(scope="session")
def run(root: Path) -> Run:
    """Run Python with these arguments on this checkout's package, whatever is installed; output is captured."""

    def call(*words: str | Path, folder: Path = root, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        around = {**os.environ, "PYTHONPATH": str(folder / "src" if (folder / "src").is_dir() else root / "src"), **env}
        command = [sys.executable, *map(str, words)]
        return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=timeout, check=False)

    return call
