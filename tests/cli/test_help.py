"""Help pages fit a narrow terminal, in whole words, and their examples are calls that the command line takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from eventspec.cli import app
from eventspec.cli.help import GROUP_OF, MANY

NARROW = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


EVERY = dict(commands(get_command(app)))


def page(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(app, [*path, "--help"], env=NARROW)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("path", EVERY, ids=lambda path: " ".join(path) or "eventspec")
def test_a_page_fits_80_columns_without_cutting_a_word(path: tuple[str, ...]) -> None:
    found = page(path)
    assert max(map(len, found.splitlines())) <= 80
    assert "…" not in found
    for param in EVERY[path].params:
        shown = param.opts if param.metavar is None else [param.metavar]
        assert any(option in found for option in shown), param.opts
    if path == ():  # the summaries of the commands are whole
        assert "..." not in found.partition("Commands:")[2]


def test_many_options_are_grouped_and_few_are_not() -> None:
    assert (
        page(("generate",)).index("Sampling:")
        < page(("generate",)).index("--temperature")
        < page(("generate",)).index("Output:")
    )
    assert "Recording:" not in page(("events", "info"))
    grouped = [path for path, command in EVERY.items() if len(command.params) >= MANY]
    assert grouped and all(any(param.name in GROUP_OF for param in EVERY[path].params) for path in grouped)


def test_the_examples_are_taken() -> None:
    found = page(("generate",)).partition("Examples:")[2].replace("\\\n", " ")
    lines = [shlex.split(line) for line in found.splitlines() if line.strip()]
    assert len(lines) >= 3
    for words in lines:
        assert words[:2] == ["eventspec", "generate"]
        options = {option for param in EVERY[("generate",)].params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options
