"""What a folder holds, for `eventspec models check`: a pair, a head, a packer, or a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADS = {"msd": "MSD", "vispec": "ViSpec", "dream": "DREAM", "massv": "MASSV"}
"""The methods behind `eventspec.kind` of a head's config.json, as their papers write them."""


def described(folder: Path) -> dict[str, Any]:
    """Key `head` or `packer` says that it is one; BadInput or BadCheckpoint, one line, for the first thing that is wrong."""
    from eventspec.core import BadCheckpoint, BadInput
    from eventspec.models import configuration as fields
    from eventspec.models.folder import describe, is_checkpoint

    if (folder / "pair.toml").is_file() or not folder.exists():
        return _pair(folder)
    if not is_checkpoint(folder):
        raise BadInput(f"{folder} has neither config.json nor pair.toml: give the folder of a checkpoint or of a pair")
    path = folder / "config.json"
    data = fields.read_json(path)
    try:
        told = _packer(folder, data) if data.get("model_type") == "packer" else _head(folder, data)
    except fields.BadField as error:
        raise BadCheckpoint(f"{path}: {error}") from None
    return told or describe(folder)


def _packer(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    from eventspec.models import configuration as fields
    from eventspec.models.checkpoint import Checkpoint

    scale, own, checkpoint = data.get("scale"), fields.part(data, "eventspec", {}), Checkpoint(folder)
    fields.require(data, "scale", type(scale) is int and scale > 1, "a whole number from 2 on")
    told = {"packer": scale, "layers": data.get("layers"), "target": own.get("target")}
    return {**told, "parameters": checkpoint.parameters, "dtypes": checkpoint.dtype_names}


def _head(folder: Path, data: dict[str, Any]) -> dict[str, Any] | None:
    """What a head's folder says of itself, without its target; None for what is no head: only heads begin with an `fc`, have
    the layout of speculators, or were written here."""
    from eventspec.core import BadCheckpoint
    from eventspec.drafters import speculators
    from eventspec.drafters.head_folder import KINDS
    from eventspec.models import configuration as fields
    from eventspec.models.checkpoint import Checkpoint

    certain = speculators.KIND in data or isinstance(data.get("eventspec"), dict)
    data = speculators.flattened(data) if speculators.KIND in data else data
    if "hidden_size" not in data or any(name.startswith(("vision", "mm_")) for name in data):
        return None
    try:
        checkpoint = Checkpoint(folder, lambda name: name.removeprefix("model."))
    except BadCheckpoint:
        if certain:
            raise
        return None  # `describe` knows better what it lacks
    own = fields.part(data, "eventspec", {})
    kind = own.get("kind")
    if kind is None and "fc.weight" not in checkpoint.at:
        if certain:
            raise BadCheckpoint(f"{folder}: tensor fc.weight is missing: the head is incomplete, fetch or train it again")
        return None
    fields.require(own, "kind", kind is None or kind in KINDS.values(), f"one of {', '.join(KINDS.values())}")
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


def _pair(folder: Path) -> dict[str, Any]:
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
