"""``eventspec models``: what is bundled, what a folder is and lacks, and heads in the layouts of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.folders import described, parts_of, rows
from eventspec.cli.help import App
from eventspec.errors import BadInput

models = App(help="Bundled pairs and checkpoints.", no_args_is_help=True)


@models.callback()
def _group() -> None:
    pass


@models.command("list")
def list_pairs(as_json: options.AsJson = False) -> None:
    """Pairs that ship with the package, and which one `embedded` is."""
    from eventspec.pairs import METHODS, bundled

    methods = {name: shipped.about for name, shipped in METHODS.items()}
    found = {name: _shipped(path) for name, path in bundled().items()}
    chosen = next((name for name in ("base", "nano") if name in found), None)
    if as_json:
        options.print_found({"pairs": found, "embedded": chosen, "methods": methods}, True)
        return
    for name, facts in found.items():
        typer.echo(f"{name}  {facts['bytes'] / 1e6:.1f} MB{', which is also called embedded' if name == chosen else ''}")
        flags = {"--head": facts["heads"], "--drafter": facts["drafters"], "--adapter": facts["adapters"]}
        flags["--compress"] = [f"packer:{scale}" for scale in facts["packers"]]
        _print([(f"  {option}", ", ".join(names)) for option, names in flags.items() if names])
    typer.echo("methods")
    _print([(f"  --method {name}", what) for name, what in methods.items()])


def _shipped(path: Path) -> dict[str, Any]:
    return {"path": str(path), "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()), **parts_of(path)}


@models.command()
def check(
    folder: Annotated[
        str, typer.Argument(help="Of a checkpoint, head, packer, adapter or pair.toml; or the name of a bundled pair.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Say what a folder is; exit 2 names the first thing it lacks."""
    from eventspec.pairs.pair_file import two_meanings

    about = described(folder)
    options.print_notes(two_meanings(folder))
    fits = f"target {about['target']}" if about.get("target") else "a target that its config does not name"
    if as_json:
        options.print_found(about, True)
    elif "packer" in about:
        squares = f"{about['packer']} x {about['packer']} patches"
        typer.echo(f"{folder}: a packer of {squares} for {fits}: the table [packers] of a pair.toml takes it")
    elif "adapter" in about:
        between = f"between event model {about['drafter']} and {fits}"
        typer.echo(f"{folder}: an adapter ({about['adapter']}, to {about['output']}) {between}: generate --adapter takes it")
    elif "head" in about:
        kind = f"{about['head']}, {about['mode']}" if "mode" in about else about["head"]
        typer.echo(f"{folder}: a head ({kind}) of width {about['hidden_size']} for {fits}: generate --head takes it")
    else:
        _print(rows(about))


@models.command()
def parity(
    folder: Annotated[Path, options.path_argument("A folder of goldens: checkpoint/, meta.json and the tensors.")],
    as_json: options.AsJson = False,
) -> None:
    """Compare our model with tensors of the published code; exit 1 when a greedy answer differs."""
    from eventspec.experiments.parity import parity as measure

    found = measure(folder)
    apart = [f"{name:<56} {'exact' if one['exact'] else format(one['max_abs'], '.2e')}" for name, one in found.tensors.items()]
    answers = f"greedy answers identical: {'yes' if found.greedy_identical else 'no'}"
    options.print_found(vars(found), as_json, *apart, answers)
    if not found.greedy_identical:
        raise typer.Exit(1)


@models.command("export-head")
def export_head(
    head: Annotated[str, typer.Argument(help="A head's folder, or the name of one of --pair's.")],
    layout: Annotated[Literal["safeailab", "speculators"], typer.Option(help="Whose code is to read it.")],
    out: Annotated[Path, options.path("The folder to write: a new one, or an empty one.")],
    pair: Annotated[
        str, typer.Option(help="Whose target the head is for: a bundled pair, or the folder of a pair.toml.")
    ] = "nano",
    target: Annotated[Path | None, options.path("Its checkpoint folder, instead of a pair.")] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help="For speculators: where others find the target, a hub name or folder; default: its folder."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a head as SafeAILab's code or `speculators` and vLLM read it, in the precision it is stored in."""
    from eventspec.drafters import Verifier, export_speculators, load_head, save_head
    from eventspec.drafters.heads import family_of
    from eventspec.drafters.heads.checkpoint import exact_dtype
    from eventspec.models import configuration as fields
    from eventspec.pairs import load_folders, load_pair
    from eventspec.pairs.methods import head_folder

    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise BadInput(f"{out}: exists and is not an empty folder: choose another folder, or remove it first")
    loaded = load_pair(pair) if target is None else load_folders(target, method="eagle")
    folder, language = head_folder(loaded.parts, head), loaded.parts.ends
    trained = load_head(folder, language)
    family = family_of(trained.head)
    if not family.published:  # in either layout it would be taken for EAGLE's, and draft nonsense
        whose = "no SafeAILab code" if layout == "safeailab" else "no code of speculators"
        kind = family.about(trained.head)["head"]
        raise BadInput(f"{whose} loads a head of {kind}: it is for eventspec alone, copy its folder")
    dtype = exact_dtype(trained)
    if layout == "safeailab":
        save_head(trained, out, language, dtype)
    else:
        assert loaded.checkpoint is not None  # both ways to load one set it
        named = fields.read_json(loaded.checkpoint / "config.json").get("architectures") or []
        where = Verifier(verifier or str(loaded.checkpoint.resolve()), tuple(named))
        export_speculators(trained, out, language, where, dtype)
    name, stored = type(trained.head).__name__, str(dtype).removeprefix("torch.")
    about = {"folder": str(out), "layout": layout, "head": name, "taps": list(trained.head.taps), "dtype": stored}
    options.print_found(about, as_json, f"{name} in {stored}, layout {layout}: {out}")


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
