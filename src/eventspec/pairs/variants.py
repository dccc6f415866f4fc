"""A pair with another head, or another way to make its target see less."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path

from eventspec.compress import CompressedTarget
from eventspec.core import BadInput, Target
from eventspec.drafters import Nothing
from eventspec.models.embedded import target_ids
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama
from eventspec.pairs.heads import USUAL, feature_drafter
from eventspec.pairs.methods import FEATURE_METHODS, LOSSY
from eventspec.pairs.pair import Pair


def with_head(pair: Pair, spec: str) -> Pair:
    """The same target with another head for the methods that draft on its features, NAME[:WAY]: a name from the pair's
    `[heads]`, or the folder of a head; the ways are `heads.feature_drafter`'s. Raises BadInput and BadCheckpoint, one line
    each."""
    which, way = named(spec, USUAL, pair.heads)
    folder, target = find_head(pair, which)
    ids = target_ids(pair.vocabulary.encode)
    made = {method: feature_drafter(method, folder, target, ids, pair.end, way) for method in FEATURE_METHODS}
    note = f"drafted by head {which}, {way}"
    notes = {**pair.notes, **{method: (*pair.notes.get(method, ()), note) for method in made}}
    return replace(pair, drafters={**pair.drafters, **made}, notes=notes)


def named(spec: str, usual: str, known: Container[str]) -> tuple[str, str]:
    """NAME or NAME:WAY -> both, with the `usual` way. A `known` name, and an existing folder, may hold colons of its own."""
    first, mark, way = spec.rpartition(":")
    plain = spec in known or Path(spec).is_dir() or not mark or "/" in way
    return (spec, usual) if plain else (first, way)


def find_head(pair: Pair, which: str) -> tuple[Path, Llama]:
    """The folder of a head, by a name from the pair's `[heads]` or as it is, and the language model it drafts for; BadInput."""
    folder = pair.heads.get(which, Path(which))
    if not which or not folder.is_dir():
        known = f", or one of {', '.join(pair.heads)}" if pair.heads else ""
        raise BadInput(f"no head '{which}' for pair {pair.name}: give the folder of a head{known}")
    if not isinstance(pair.target, LanguageTarget):
        raise BadInput(f"a head needs the layers of a target of our own, pair {pair.name} has another")
    return folder, pair.target.language


def with_compression(pair: Pair, spec: str) -> Pair:
    """The same pair with another KIND:SIZE (see `compress.lossy`), or packer:SCALE (`compress.packer`), for method
    compressed-target. BadInput and BadCheckpoint, one line."""
    kind, _, size = spec.partition(":")
    if not isinstance(pair.target, LanguageTarget):
        raise BadInput(f"method {LOSSY} needs a target of our own, pair {pair.name} has another")
    if not size.isdecimal():
        raise BadInput(f"compression '{spec}' cannot be read: give KIND:SIZE, such as pool:3")
    made: Target
    if kind == "packer":
        if pair.packers is None:
            raise BadInput(
                f"pair {pair.name} has no trained packer: packer:{size} is for a pair of ours, as `eventspec train` makes"
            )
        made = pair.packers.packed(pair.target, int(size))
    else:
        made = CompressedTarget(pair.target, kind, int(size))
    notes = {**pair.notes, LOSSY: (f"{spec}: lossy, this is not the answer of the target that sees everything",)}
    drafters = {**pair.drafters, LOSSY: Nothing()}
    return replace(pair, targets={**pair.targets, LOSSY: made}, drafters=drafters, notes=notes)
