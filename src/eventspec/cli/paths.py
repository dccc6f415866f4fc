"""A path as it is given on the command line."""

from __future__ import annotations

from pathlib import Path

import typer

from eventspec.errors import BadInput


def given_path(given: str | Path) -> Path:
    """Reads every option and argument of type Path. typer.BadParameter for an empty name: ``--out "$UNSET"`` must not become
    the working folder, which is what Path makes of it."""
    if isinstance(given, str) and not given.strip():
        raise typer.BadParameter("the path is empty: name a file or a folder")
    return Path(given)


def check_in_folder(path: Path, option: str) -> None:
    """BadInput for a file that could not be written at the end of long work: its folder is missing or closed, or it is one."""
    from eventspec.files import check_writable

    if not path.parent.is_dir():
        raise BadInput(f"{option} {path} cannot be written, its folder is missing: choose another place")
    check_writable(path)
