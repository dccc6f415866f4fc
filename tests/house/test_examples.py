"""Every example fits on a screen and runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Run

LINES = 40
EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert EXAMPLES


DEAR = ("compare", "train_a_head")
"""Take seconds each, and are run whole by the long test."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=pytest.mark.long) if path.stem in DEAR else path for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_is_short_and_runs(tmp_path: Path, example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = len(example.read_text().splitlines())
    assert lines <= LINES, f"{example.name} has {lines} lines, more than {LINES}"
    monkeypatch.chdir(tmp_path)  # what it writes stays out of the checkout
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_a_process_of_its_own(run: Run, tmp_path: Path, example: Path) -> None:
    done = run(example, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
