"""What a folder holds, for `eventspec models check`, and what ships with a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventspec.cli.paths import given_path
from eventspec.errors import BadCheckpoint, BadInput


def described(given: str) -> dict[str, Any]:
    """What a folder is, or the bundled pair of a bare name. Key `head`, `packer` or `adapter` says that it is
    one; BadInput or BadCheckpoint, one line, for the first thing that is wrong."""
    from eventspec.models import configuration as fields
    from eventspec.models.folder import describe, is_checkpoint
    from eventspec.pairs.pair_file import bundled, by_name

    folder = given_path(given)
    if by_name(given) is not None or (folder / "pair.toml").is_file():
        return _pair(given)
    if not folder.exists():
        names = ", ".join(["embedded", *bundled()])
        raise BadInput(f"{given}: no such folder: check the path, or name a bundled pair: {names}")
    if folder.is_file():
        raise BadInput(f"{folder} is a file: give the folder of a checkpoint, a head or a pair")
    if not is_checkpoint(folder):
        raise BadInput(f"{folder} has neither config.json nor pair.toml: give the folder of a checkpoint or of a pair")
    path = folder / "config.json"
    data = fields.read_json(path)
    try:
        return _part(folder, data) or describe(folder)
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def _part(folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
    """What a packer, an adapter or a head is, as far as its own folder says; None for what is none of them."""
    from eventspec.drafters.heads import family_of
    from eventspec.drafters.heads.checkpoint import inspect_head
    from eventspec.pairs.adapters import inspect_adapter
    from eventspec.pairs.packers import inspect_packer

    about: dict[str, Any]
    target: str | None
    if data.get("model_type") == "packer":
        packer, checkpoint, target = inspect_packer(folder)
        about = {"packer": packer.scale, "layers": list(packer.layers), "target": target}
    elif data.get("model_type") == "adapter":
        adapter, checkpoint, between = inspect_adapter(folder)
        about = {"adapter": adapter.kind, "output": adapter.output, "layers": list(adapter.layers), **between}
    elif _is_head(folder, data):
        made, checkpoint, target = inspect_head(folder)
        width = made.head.config.language.hidden_size
        about = {**family_of(made.head).about(made.head), "target": target, "hidden_size": width}
    else:
        return None
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _is_head(folder: Path, data: dict[str, Any]) -> bool:
    """Only heads begin with an `fc`, have the layout of speculators, or were written here."""
    from eventspec.drafters.heads import speculators
    from eventspec.models.checkpoint import Checkpoint

    if speculators.KIND in data or isinstance(data.get("eventspec"), dict):
        return True
    if "hidden_size" not in data or any(name.startswith(("vision", "mm_")) for name in data):
        return False
    try:
        return "fc.weight" in Checkpoint(folder, lambda name: name.removeprefix("model.")).at
    except BadCheckpoint:
        return False  # `describe` knows better what it lacks


def parts_of(folder: Path) -> dict[str, list[str]]:
    """Names of what a pair has beside its target and its drafter: heads, packers, further event drafters, adapters."""
    from eventspec.pairs import PairFile

    file = PairFile.read(folder)
    tables = {"heads": file.heads, "packers": file.packers, "drafters": file.drafters, "adapters": file.adapters}
    return {name: sorted(table) for name, table in tables.items()}


def rows(about: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: a name and its words a line. Of tables in tables only the names are given."""

    def words(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(
                f"{key} {', '.join(map(str, inner)) if isinstance(inner, dict) else inner}" for key, inner in value.items()
            )
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value)) or "-"
        return {True: "yes", False: "no", None: "-"}[value] if value is None or isinstance(value, bool) else str(value)

    return [(name.replace("_", " "), words(value)) for name, value in about.items()]


def _pair(given: str) -> dict[str, Any]:
    from eventspec.models import configuration as fields
    from eventspec.models.fingerprint import fingerprint
    from eventspec.models.session import LanguageTarget
    from eventspec.pairs import load_pair
    from eventspec.pairs.adapters import load_adapter

    pair = load_pair(given, fit=False)
    assert pair.folder is not None  # it comes from the file of one
    about: dict[str, Any] = {
        "name": pair.name,
        "folder": str(pair.folder),
        "methods": list(pair.methods),
        **parts_of(pair.folder),
        "vocabulary": pair.vocabulary.size,
        "vocabulary_fingerprint": pair.vocabulary.fingerprint(),
        "lossless": pair.target.lossless,
    }
    if (packers := pair.parts.packers) is not None:
        for scale, packer in packers.folders.items():
            packers.load(packer, scale)
    if (adapters := pair.parts.adapters) is not None:
        for folder in adapters.folders.values():
            load_adapter(folder, adapters.drafter, adapters.target)
    if isinstance(pair.target, LanguageTarget):
        about["target"] = fingerprint(pair.target.language)
    provenance = pair.folder / "provenance.json"
    if provenance.is_file():
        about["provenance"] = fields.read_json(provenance)
    return about
