"""Heads in folders, read and written: config.json, and model.safetensors or pytorch_model.bin.

SafeAILab's layout. EAGLE-1 and 2: `fc`, `layers.0.*`, no head; an `input_layernorm` makes it EagleVLM's. EAGLE-3: `fc` over
three layers, `midlayer.*` (or `layers.0.*`), `norm`, `lm_head`, and the tables d2t and t2d of a reduced vocabulary. Which one
it is, its norm and its bias are read off the tensors; a config that says otherwise is refused. Our own folders also say, in
`eventspec`, which target the head was trained for and, of heads that no other code loads, their `kind`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eventspec.core import BadCheckpoint, BadInput
from eventspec.drafters.heads.eagle3 import FAMILY as EAGLE3
from eventspec.drafters.heads.families import FAMILIES, family_of
from eventspec.drafters.heads.head import LAYER, Family, Head, HeadFolder
from eventspec.drafters.heads.speculators import Verifier
from eventspec.drafters.heads.trees import Rates, read_rates
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.models.weights import fingerprint
from eventspec.nn.llama import LanguageEnds


@dataclass(frozen=True)
class TrainedHead:
    """A head, and how often its first, second, ... choice was the target's on calibration clips, level by level (empty: not
    known)."""

    head: Head
    rates: Rates = ()


def load_head(path: Path, target: LanguageEnds) -> TrainedHead:
    """The head of a folder, checked against the target it is to draft for; BadCheckpoint in one line for what does not fit."""
    folder = HeadFolder.open(path, target.config)
    trained = folder.own.get("target")
    if trained is not None and trained != (found := fingerprint(target)):
        raise BadCheckpoint(
            f"{path}: the head was trained for target {trained}, this one is {found}: train it again for this one"
        )
    weight = target.embed.weight
    made = _read(folder, weight.dtype)
    made.head.to(weight.device).requires_grad_(False).eval()
    return made


def inspect_head(path: Path) -> tuple[TrainedHead, Checkpoint, str | None]:
    """What a head's folder holds, without its target, which is taken to have the head's width and vocabulary: the head, whose
    numbers were looked at and are not ready for use; its tensors; and the target that its config names. BadCheckpoint as
    `load_head`."""
    folder = HeadFolder.open(path)
    with fields.of_folder(path):
        width = recognised(folder).target_width(folder)
    made = _read(replace(folder, target=replace(folder.target, hidden_size=width)), None)
    return made, folder.checkpoint, folder.own.get("target")


def recognised(folder: HeadFolder) -> Family[Any]:
    """By `eventspec.kind`, or by the tensors; BadField for what it cannot be, or for fields that another family has."""
    own, kinds = folder.own, {family.kind: family for family in FAMILIES if family.kind is not None}
    kind, eagle3 = own.get("kind"), EAGLE3.recognises(folder)
    fields.require(own, "kind", kind is None or (isinstance(kind, str) and kind in kinds), f"one of {', '.join(kinds)}")
    fields.require(own, "kind", kind is None or not eagle3, "none: lm_head.weight is there, as in EAGLE-3's heads alone")
    found = kinds[kind] if kind else next(one for one in FAMILIES if one.kind is None and one.recognises(folder))
    for other in FAMILIES:
        if wrong := [name for name in other.own_fields if name in own and name not in found.own_fields]:
            problem = f"eventspec.{wrong[0]} is there, in a head of kind {found.title}"
            raise fields.BadField(f"{problem}: only {other.title}'s head has one")
    return found


def save_head(trained: TrainedHead, path: Path, target: LanguageEnds, dtype: torch.dtype = torch.float16) -> None:
    """Write a folder that `load_head` and SafeAILab's loaders read; config.json says which target it is for. BadInput for a
    head that SafeAILab's code would run otherwise."""
    head, family = trained.head, family_of(trained.head)
    top, more = family.fields(head)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": _name(dtype)}
    config |= {**fields.llama_json(head.config.language), **top}
    own = {"target": fingerprint(target), **({} if family.kind is None else {"kind": family.kind}), **more}
    if trained.rates:
        own["ranks"] = [[round(share, 4) for share in level] for level in trained.rates]
    _write(path, head, family.layer_name, _tables(head), {**config, "eventspec": own}, dtype)


def export_speculators(
    trained: TrainedHead, path: Path, target: LanguageEnds, verifier: Verifier, dtype: torch.dtype = torch.float16
) -> None:
    """Write a folder that `load_head`, the package `speculators` 0.9 and vLLM read; BadInput for a head it has no place for."""
    head, family = trained.head, family_of(trained.head)
    if family.speculators is None:
        raise BadInput("speculators reads no EAGLE-1 head since 0.9, only EAGLE-3: choose layout safeailab")
    described = family.speculators(head, verifier, _name(dtype))
    whole = head.vocab_ids is not None and len(head.vocab_ids) == head.config.language.vocab_size
    more = {} if whole else _tables(head)
    _write(path, head, LAYER, more, {**described, "eventspec": {"target": fingerprint(target)}}, dtype)


def exact_dtype(trained: TrainedHead) -> torch.dtype:
    """The narrowest of fp16, bf16 and fp32 that holds every number of a head as it is."""
    for dtype in (torch.float16, torch.bfloat16):
        if all(torch.equal(p.to(dtype).to(p.dtype), p) for p in trained.head.parameters()):
            return dtype
    return torch.float32


def _read(folder: HeadFolder, dtype: torch.dtype | None) -> TrainedHead:
    """The head with its weights, by default in the dtype they are stored in; BadCheckpoint unless config and tensors are its,
    and fit the target."""
    checkpoint = folder.checkpoint
    with fields.of_folder(folder.path):
        family = recognised(folder)
        make = family.read(folder)
        with without_memory():
            head = make()
        named = folder.target.vocab_size if head.vocab_ids is None else len(head.vocab_ids)
        rates = read_rates(folder.own, named)
    sources = family.sources(head)
    # The target's embedding is in published heads, though not read.
    checkpoint.check(head, sources, lambda name: name in ("d2t", "t2d") or name.startswith("embed_tokens."))
    if dtype is None:
        stored = {checkpoint.dtype(parts[0][0]) for parts in sources.values()}
        dtype = stored.pop() if len(stored) == 1 else torch.float32
    checkpoint.fill(head, sources, dtype)
    return TrainedHead(head, rates)


def _tables(head: Head) -> dict[str, Tensor]:
    """The published tables of a reduced vocabulary: d2t int64 [draft_vocab] and t2d bool [V]."""
    if head.vocab_ids is None:
        return {}
    ids = head.vocab_ids.cpu()
    known = torch.zeros(head.config.language.vocab_size, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _write(path: Path, head: Head, layer: str, more: dict[str, Tensor], config: fields.Fields, dtype: torch.dtype) -> None:
    path.mkdir(parents=True, exist_ok=True)
    found = family_of(head).sources(head)
    sources = {ours: [(re.sub(f"^{LAYER}", layer, name), rows) for name, rows in parts] for ours, parts in found.items()}
    weights.save(head, path / "model.safetensors", sources, more=more, dtype=dtype)
    write_text(path / "config.json", fields.pretty(config))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
