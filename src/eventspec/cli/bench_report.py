"""``eventspec bench report``: figures, tables and charts of README and docs from the results in the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(check: Annotated[bool, typer.Option(help="Write nothing; exit 1 where a page differs.")] = False) -> None:
    """Write what README and docs say of benchmarks/results, in the checkout that the current folder lies in."""
    from eventspec.cli.bars import waiting
    from eventspec.experiments.reports import checkout, stale, write, written

    root = checkout(Path.cwd())  # before the imports that take seconds
    with waiting("reading results"):
        files = written(root)
    changed = stale(files) if check else write(files)
    for path in changed:
        said = "is not what the results say: eventspec bench report writes it" if check else "written"
        typer.echo(f"{path.relative_to(root)} {said}", err=check)
    if not changed:
        typer.echo(f"{len(files)} files are what the results say")
    if check and changed:
        raise typer.Exit(1)
