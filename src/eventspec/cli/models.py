"""``eventspec models``: what is bundled, what a folder is and lacks, and heads in the layouts of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli.folders import described, parts_of, rows
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
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        found[name] = {"path": str(path), "bytes": size, **parts_of(path)}
    chosen = next((name for name in ("base", "nano") if name in found), None)
    if as_json:
        typer.echo(json.dumps({"pairs": found, "embedded": chosen, "methods": methods}))
        return
    for name, facts in found.items():
        typer.echo(f"{name}  {facts['bytes'] / 1e6:.1f} MB{', which is also called embedded' if name == chosen else ''}")
        options = {"--head": facts["heads"], "--drafter": facts["drafters"], "--adapter": facts["adapters"]}
        options["--compress"] = [f"packer:{scale}" for scale in facts["packers"]]
        _print([(f"  {option}", ", ".join(names)) for option, names in options.items() if names])
    typer.echo("methods")
    _print([(f"  --method {name}", what) for name, what in methods.items()])


@models.command()
def check(
    folder: Annotated[
        str, typer.Argument(help="Of a checkpoint, head, packer, adapter or pair.toml; or the name of a bundled pair.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a folder is; exit 2 names the first thing it lacks."""
    from eventspec.pairs.pair_file import two_meanings

    about = described(folder)
    for note in two_meanings(folder):
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps(about))
        return
    fits = f"target {about['target']}" if about.get("target") else "a target that its config does not name"
    if "packer" in about:
        squares = f"{about['packer']} x {about['packer']} patches"
        typer.echo(f"{folder}: a packer of {squares} for {fits}: the table [packers] of a pair.toml takes it")
        return
    if "adapter" in about:
        between = f"between event model {about['drafter']} and {fits}"
        typer.echo(f"{folder}: an adapter ({about['adapter']}, to {about['output']}) {between}: generate --adapter takes it")
        return
    if "head" in about:
        kind = f"{about['head']}, {about['mode']}" if "mode" in about else about["head"]
        typer.echo(f"{folder}: a head ({kind}) of width {about['hidden_size']} for {fits}: generate --head takes it")
        return
    _print(rows(about))


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


def _print(lines: list[tuple[str, str]]) -> None:
    """Two columns, the second one wrapped where the terminal ends."""
    from rich.console import Console
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, words in lines:
        made.add_row(name, words)
    Console(highlight=False, markup=False).print(made)


def _check_layout(trained: TrainedHead, layout: str) -> None:
    """BadInput for a head that is our own: in either layout it would be taken for EAGLE's, and draft nonsense."""
    from eventspec.core import BadInput
    from eventspec.drafters.heads import family_of

    files = family_of(trained.head).files
    if files.published:
        return
    whose = "no SafeAILab code" if layout == "safeailab" else "no code of speculators"
    raise BadInput(f"{whose} loads a head of {files.about(trained.head)['head']}: it is for eventspec alone, copy its folder")
