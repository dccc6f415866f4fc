"""What a folder holds, for `eventspec models check`: a pair, a head, a packer, or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventspec.errors import BadCheckpoint, BadInput


def described(folder: Path) -> dict[str, Any]:
    """Key `head` or `packer` says that it is one; BadInput or BadCheckpoint, one line, for the first thing that is wrong."""
    from eventspec.models import configuration as fields
    from eventspec.models.folder import describe, is_checkpoint

    if (folder / "pair.toml").is_file() or not folder.exists():
        return _pair(folder)
    if not is_checkpoint(folder):
        raise BadInput(f"{folder} has neither config.json nor pair.toml: give the folder of a checkpoint or of a pair")
    path = folder / "config.json"
    data = fields.read_json(path)
    try:
        about = _packer(folder) if data.get("model_type") == "packer" else _head(folder, data)
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None
    return about or describe(folder)


def _packer(folder: Path) -> dict[str, Any]:
    from eventspec.pairs.packers import inspect_packer

    config, checkpoint, target = inspect_packer(folder)
    about = {"packer": config.scale, "layers": list(config.layers), "target": target}
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _head(folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
    """What a head is, as far as it can be told without its target; None for what is no head: only heads begin with an `fc`,
    have the layout of speculators, or were written here."""
    from eventspec.drafters.heads import speculators
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
    about = {**made.head.about(), "target": target, "hidden_size": made.head.config.language.hidden_size}
    return {**about, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _pair(folder: Path) -> dict[str, Any]:
    from eventspec.models import configuration as fields
    from eventspec.models.fingerprint import fingerprint
    from eventspec.models.session import LanguageTarget
    from eventspec.pairs import load_pair

    pair = load_pair(folder, fit=False)
    about: dict[str, Any] = {
        "name": pair.name,
        "methods": list(pair.methods),
        "vocabulary": pair.vocabulary.size,
        "vocabulary_fingerprint": pair.vocabulary.fingerprint(),
        "lossless": pair.target.lossless,
    }
    if (packers := pair.parts.packers) is not None:
        for scale, packer in packers.folders.items():
            packers.load(packer, scale)
    if isinstance(pair.target, LanguageTarget):
        about["target"] = fingerprint(pair.target.language)
    provenance = folder / "provenance.json"
    if provenance.is_file():
        about["provenance"] = fields.read_json(provenance)
    return about
