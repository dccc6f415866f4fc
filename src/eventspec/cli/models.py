"""``eventspec models``: what is bundled, and what a folder is and lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

models = typer.Typer(help="Bundled pairs and checkpoints.", no_args_is_help=True)


@models.callback()
def _group() -> None:
    pass


@models.command("list")
def list_pairs(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Pairs that ship with the package, and which one `embedded` is."""
    from eventspec.pairs import METHODS, bundled

    found: dict[str, dict[str, Any]] = {}
    for name, path in bundled().items():
        found[name] = {"path": str(path), "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file())}
    chosen = next((name for name in ("base", "nano") if name in found), None)
    if as_json:
        typer.echo(json.dumps({"pairs": found, "embedded": chosen, "methods": METHODS}))
        return
    for name, facts in found.items():
        typer.echo(f"{name:<8} {facts['bytes'] / 1e6:6.1f} MB  {'= embedded' if name == chosen else ''}")
    for name, what in METHODS.items():
        typer.echo(f"  --method {name:<15} {what}")


@models.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of a pair.toml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load a pair's folder and say what it is; exit 2 names the first thing it lacks."""
    from eventspec.pairs import load_pair

    pair = load_pair(folder)
    told: dict[str, Any] = {
        "name": pair.name,
        "methods": list(pair.drafters),
        "vocabulary": pair.vocabulary.size,
        "fingerprint": pair.vocabulary.fingerprint(),
        "lossless": pair.target.lossless,
    }
    provenance = folder / "provenance.json"
    if provenance.is_file():
        told["provenance"] = json.loads(provenance.read_text())
    if as_json:
        typer.echo(json.dumps(told))
        return
    for name, value in told.items():
        typer.echo(f"{name:<12} {value}")
