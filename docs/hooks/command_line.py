"""Adds reference/command-line.md to the site: every command and option of the program itself, read from its typer app."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

PAGE = "reference/command-line.md"
INTRODUCTION = """# Command line

Made from the program itself when the site is built; `eventspec COMMAND --help` prints the same.

Every command exits with 0 when it did its work, 1 when it failed, 2 when the input or the call cannot be used, and 130 when it
was interrupted. What is wrong is one line on standard error. With `--json`, standard output holds one JSON object and nothing
else; its fields are on the page [JSON output](json.md). `EVENTSPEC_DEBUG=1` adds the traceback of a failure.
"""


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: the page joins the others."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page, as Markdown."""
    import typer

    from eventspec import cli

    return INTRODUCTION + "".join(section(command, words) for words, command in commands(typer.main.get_command(cli.app)))


def commands(command: Any, words: tuple[str, ...] = ("eventspec",)) -> list[tuple[tuple[str, ...], Any]]:
    """A command with everything below it, in the order of the help page."""
    found = [(words, command)]
    for name, below in getattr(command, "commands", {}).items():
        found += commands(below, (*words, name))
    return found


def section(command: Any, words: tuple[str, ...]) -> str:
    """What one command does and takes."""
    lines = ["", f"{'#' * min(4, 1 + len(words))} {' '.join(words)}" if len(words) > 1 else "## eventspec", ""]
    lines += [escaped(paragraph) for paragraph in (command.help or "").splitlines()]
    if rows := [row(parameter) for parameter in command.params]:
        lines += ["", "| option | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def row(parameter: Any) -> str:
    """One argument or option: how it is written, what it is when left out, what it means."""
    if parameter.param_type_name == "argument":
        written = f"`{parameter.name.upper()}`"
    else:
        written = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default is None or default is False or default == "" or callable(default):
        shown = ""
    else:
        shown = f"`{default}`"
    return f"| {written} | {shown} | {escaped(parameter.help or '')} |"


def escaped(text: str) -> str:
    """Words of the help as Markdown takes them literally."""
    for letter in "|<*_[":
        text = text.replace(letter, f"\\{letter}")
    return text
