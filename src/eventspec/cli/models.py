"""``eventspec models``: what is bundled, what a folder is and lacks, and heads in the layouts of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.drafters import TrainedHead

models = typer.Typer(help="Bundled pairs and checkpoints.", no_args_is_help=True)
HEADS = {"msd": "MSD", "vispec": "ViSpec", "dream": "DREAM", "massv": "MASSV"}
"""The methods behind `eventspec.kind` of a head's config.json, as their papers write them."""


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
    folder: Annotated[Path, typer.Argument(parser=given_path, help="A checkpoint folder, or the folder of a pair.toml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint or pair folder is; exit 2 names the first thing it lacks."""
    from eventspec.core import BadInput
    from eventspec.models.folder import describe, is_checkpoint

    if (folder / "pair.toml").is_file() or not folder.exists():
        told = _describe_pair(folder)
    elif is_checkpoint(folder):
        told = _describe_head(folder) or describe(folder)
    else:
        raise BadInput(f"{folder} has neither config.json nor pair.toml: give the folder of a checkpoint or of a pair")
    if as_json:
        typer.echo(json.dumps(told))
        return
    if "head" in told:
        fits = f"target {told['target']}" if told["target"] else "a target that its config does not name"
        kind = f"{told['head']}, {told['mode']}" if "mode" in told else told["head"]
        typer.echo(f"{folder}: a head ({kind}) of width {told['hidden_size']} for {fits}: generate --head takes it")
        return
    for name, value in told.items():
        shown = ", ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:<14} {shown}")


def _describe_head(folder: Path) -> dict[str, Any] | None:
    """What a head's folder says of itself, without its target; None for what is no head: only heads begin with an `fc`, or
    say their kind."""
    from eventspec.core import BadCheckpoint
    from eventspec.drafters.head_folder import KINDS
    from eventspec.models.checkpoint import Checkpoint
    from eventspec.models.configuration import read_json

    data = read_json(folder / "config.json")
    if "hidden_size" not in data or any(name.startswith(("vision", "mm_")) for name in data):
        return None
    try:
        checkpoint = Checkpoint(folder, lambda name: name.removeprefix("model."))
    except BadCheckpoint:  # `describe` knows better what it lacks
        return None
    own = data.get("eventspec")
    own = own if isinstance(own, dict) else {}
    kind = own.get("kind")
    if kind is None and "fc.weight" not in checkpoint.at:
        return None
    if kind is not None and kind not in KINDS.values():
        raise BadCheckpoint(f"{folder / 'config.json'}: kind is {kind!r}, wanted one of {', '.join(KINDS.values())}")
    named = {"head": HEADS[kind]} if kind else _compressed(own["compressor"]) if "compressor" in own else {"head": "EAGLE"}
    if kind is None and "lm_head.weight" in checkpoint.at:
        named = {"head": "EAGLE-3"}
    told = {**named, "target": own.get("target"), "hidden_size": data["hidden_size"]}
    return {**told, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _compressed(data: Any) -> dict[str, Any]:
    """The method that a head with this compressor is, and its mode where the method has several."""
    from eventspec.compress import Elastic
    from eventspec.models.checkpoint import without_memory

    with without_memory():
        found = Elastic.from_json(1, data)  # of any width: only what it consists of is told
    if found.mode == "concat" and [option.kind for option in found.options] == ["none"]:
        return {"head": "HiViS"}
    return {"head": "SpecVLM", "mode": found.mode}


def _describe_pair(folder: Path) -> dict[str, Any]:
    from eventspec.drafters.head_folder import fingerprint
    from eventspec.models.session import LanguageTarget
    from eventspec.pairs import load_pair

    pair = load_pair(folder)
    told: dict[str, Any] = {
        "name": pair.name,
        "methods": list(pair.drafters),
        "vocabulary": pair.vocabulary.size,
        "fingerprint": pair.vocabulary.fingerprint(),
        "lossless": pair.target.lossless,
    }
    if isinstance(pair.target, LanguageTarget):
        told["target"] = fingerprint(pair.target.language)
    provenance = folder / "provenance.json"
    if provenance.is_file():
        told["provenance"] = json.loads(provenance.read_text())
    return told


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
    from eventspec.drafters.head_folder import exact_dtype
    from eventspec.models import configuration as fields
    from eventspec.pairs import find_head, load_folders, load_pair

    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise BadInput(f"{out}: exists and is not an empty folder: choose another folder, or remove it first")
    loaded = load_pair(pair) if target is None else load_folders(target, method="eagle")
    folder, language = find_head(loaded, head)
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
    told = {"folder": str(out), "layout": layout, "head": type(trained.head).__name__, "taps": list(trained.head.taps)}
    told["dtype"] = str(dtype).removeprefix("torch.")
    typer.echo(json.dumps(told) if as_json else f"{told['head']} in {told['dtype']}, layout {layout}: {out}")


def _check_layout(trained: TrainedHead, layout: str) -> None:
    """BadInput for a head that is our own: in either layout it would be taken for EAGLE's, and draft nonsense."""
    from eventspec.core import BadInput
    from eventspec.drafters.head_folder import KINDS

    whose = "no SafeAILab code" if layout == "safeailab" else "no code of speculators"
    if kind := KINDS.get(type(trained.head)):
        raise BadInput(f"{whose} loads a head of {HEADS[kind]}: it is for eventspec alone, copy its folder")
    if trained.compressor is not None:
        raise BadInput(f"{whose} loads a head with a compressor: it is for eventspec alone, copy its folder")
