"""A path as it is given on the command line."""

from __future__ import annotations

from pathlib import Path

import typer


def given_path(given: str | Path) -> Path:
    """What a person named, or the option's own default; every option and argument of type Path is read by it.

    Raises typer.BadParameter for an empty name: ``--out "$UNSET"`` must not become the working folder, which is what
    Path makes of it.
    """
    if isinstance(given, str) and not given.strip():
        raise typer.BadParameter("the path is empty: name a file or a folder")
    return Path(given)
