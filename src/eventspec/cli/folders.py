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
        kinds = {"packer": _packer, "adapter": _adapter}
        own = kinds.get(str(data.get("model_type")))
        about = own(folder) if own is not None else _head(folder, data)
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None
    return about or describe(folder)


def _packer(folder: Path) -> dict[str, Any]:
    from eventspec.pairs.packers import inspect_packer

    config, checkpoint, target = inspect_packer(folder)
    about = {"packer": config.scale, "layers": list(config.layers), "target": target}
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _adapter(folder: Path) -> dict[str, Any]:
    from eventspec.pairs.adapters import inspect_adapter

    config, checkpoint, between = inspect_adapter(folder)
    about = {"adapter": config.kind, "output": config.output, "layers": list(config.layers), **between}
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _head(folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
    """What a head is, as far as it can be told without its target; None for what is no head: only heads begin with an `fc`,
    have the layout of speculators, or were written here."""
    from eventspec.drafters.heads import family_of, speculators
    from eventspec.drafters.heads.checkpoint import inspect_head
    from eventspec.models.checkpoint import Checkpoint

    if speculators.KIND not in data and not isinstance(data.get("eventspec"), dict):
        if "hidden_size" not in data or any(name.startswith(("vision", "mm_")) for name in data):
            return None
        try:
            if "fc.weight" not in Checkpoint(folder, lambda name: name.removeprefix("model.")).at:
                return None
        except BadCheckpoint:
            return None  # `describe` knows better what it lacks
    made, checkpoint, target = inspect_head(folder)
    about = {
        **family_of(made.head).files.about(made.head),
        "target": target,
        "hidden_size": made.head.config.language.hidden_size,
    }
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def parts_of(folder: Path) -> dict[str, list[str]]:
    """Names of what a pair has beside its target and its drafter: heads, packers, further event drafters, adapters."""
    from eventspec.pairs import PairFile

    file = PairFile.read(folder)
    tables = {"heads": file.heads, "packers": file.packers, "drafters": file.drafters, "adapters": file.adapters}
    return {name: sorted(table) for name, table in tables.items()}


def rows(about: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: a name and its words a line. Of tables in tables only the names are told."""

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
