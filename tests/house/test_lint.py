"""ruff and mypy have nothing to say: one command proves style and types along with behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run


@pytest.mark.parametrize("words", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_finds_nothing(run: Run, words: tuple[str, ...]) -> None:
    done = run("-m", "ruff", *words, "--output-format", "concise", ".")
    assert done.returncode == 0, f"`make format` mends most of it:\n{done.stdout}{done.stderr}"


def test_mypy_strict_finds_nothing(run: Run) -> None:
    """From its cache about 1 s; cold about 12 s, and 30 s more once transformers is imported somewhere."""
    done = run("-m", "mypy", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
