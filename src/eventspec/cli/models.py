"""``eventspec models``: what is bundled, what a folder is and lacks, and heads in the layouts of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli.folders import described
from eventspec.cli.help import App
from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.drafters import TrainedHead

models = App(help="Bundled pairs and checkpoints.", no_args_is_help=True)


@models.callback()
def _group() -> None:
    pass


@models.command("list")
def list_pairs(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Pairs that ship with the package, and which one `embedded` is."""
    from eventspec.pairs import METHODS, bundled

    methods = {name: shipped.about for name, shipped in METHODS.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, path in bundled().items():
        found[name] = {"path": str(path), "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file())}
    chosen = next((name for name in ("base", "nano") if name in found), None)
    if as_json:
        typer.echo(json.dumps({"pairs": found, "embedded": chosen, "methods": methods}))
        return
    for name, facts in found.items():
        typer.echo(f"{name:<8} {facts['bytes'] / 1e6:6.1f} MB  {'= embedded' if name == chosen else ''}")
    for name, what in methods.items():
        typer.echo(f"  --method {name:<15} {what}")


@models.command()
def check(
    folder: Annotated[Path, typer.Argument(parser=given_path, help="Of a checkpoint, a head, a packer or a pair.toml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a folder is; exit 2 names the first thing it lacks."""
    about = described(folder)
    if as_json:
        typer.echo(json.dumps(about))
        return
    fits = f"target {about['target']}" if about.get("target") else "a target that its config does not name"
    if "packer" in about:
        squares = f"{about['packer']} x {about['packer']} patches"
        typer.echo(f"{folder}: a packer of {squares} for {fits}: the table [packers] of a pair.toml takes it")
        return
    if "head" in about:
        kind = f"{about['head']}, {about['mode']}" if "mode" in about else about["head"]
        typer.echo(f"{folder}: a head ({kind}) of width {about['hidden_size']} for {fits}: generate --head takes it")
        return
    for name, value in about.items():
        shown = ", ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:<14} {shown}")


@models.command()
def parity(
    folder: Annotated[
        Path, typer.Argument(parser=given_path, help="A folder of goldens: checkpoint/, meta.json and the tensors.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare our model with tensors of the published code; exit 1 when a greedy answer differs."""
    from eventspec.experiments.parity import parity as measure

    found = measure(folder)
    if as_json:
        names = ("tensors", "greedy_identical", "not_compared")
        typer.echo(json.dumps({name: getattr(found, name) for name in names}))
    else:
        for name, apart in found.tensors.items():
            typer.echo(f"{name:<56} {'exact' if apart['exact'] else format(apart['max_abs'], '.2e')}")
        typer.echo(f"greedy answers identical: {'yes' if found.greedy_identical else 'no'}")
    if not found.greedy_identical:
        raise typer.Exit(1)


@models.command("export-head")
def export_head(
    head: Annotated[str, typer.Argument(help="A head's folder, or the name of one of --pair's.")],
    layout: Annotated[Literal["safeailab", "speculators"], typer.Option(help="Whose code is to read it.")],
    out: Annotated[Path, typer.Option(parser=given_path, help="The folder to write: a new one, or an empty one.")],
    pair: Annotated[
        str, typer.Option(help="Whose target the head is for: a bundled pair, or the folder of a pair.toml.")
    ] = "nano",
    target: Annotated[Path | None, typer.Option(parser=given_path, help="Its checkpoint folder, instead of a pair.")] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="For speculators: where others find the target, a hub name or folder; default: its folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a head as SafeAILab's code or `speculators` and vLLM read it, in the precision it is stored in."""
    from eventspec.core import BadInput
    from eventspec.drafters import Verifier, export_speculators, load_head, save_head
    from eventspec.drafters.heads.checkpoint import exact_dtype
    from eventspec.models import configuration as fields
    from eventspec.pairs import load_folders, load_pair
    from eventspec.pairs.methods import head_folder

    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise BadInput(f"{out}: exists and is not an empty folder: choose another folder, or remove it first")
    loaded = load_pair(pair) if target is None else load_folders(target, method="eagle")
    folder, language = head_folder(loaded.parts, head), loaded.parts.ends
    trained = load_head(folder, language)
    _check_layout(trained, layout)
    dtype = exact_dtype(trained)
    if layout == "safeailab":
        save_head(trained, out, language, dtype)
    else:
        assert loaded.checkpoint is not None  # both ways to load one set it
        named = fields.read_json(loaded.checkpoint / "config.json").get("architectures") or []
        where = Verifier(verifier or str(loaded.checkpoint.resolve()), tuple(named))
        export_speculators(trained, out, language, where, dtype)
    about = {"folder": str(out), "layout": layout, "head": type(trained.head).__name__, "taps": list(trained.head.taps)}
    about["dtype"] = str(dtype).removeprefix("torch.")
    typer.echo(json.dumps(about) if as_json else f"{about['head']} in {about['dtype']}, layout {layout}: {out}")


def _check_layout(trained: TrainedHead, layout: str) -> None:
    """BadInput for a head that is our own: in either layout it would be taken for EAGLE's, and draft nonsense."""
    from eventspec.core import BadInput

    if trained.head.published:
        return
    whose = "no SafeAILab code" if layout == "safeailab" else "no code of speculators"
    raise BadInput(f"{whose} loads a head of {trained.head.about()['head']}: it is for eventspec alone, copy its folder")
