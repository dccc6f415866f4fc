"""Which methods a pair has and what the others lack, by its files alone: no model is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eventspec.core import BadCheckpoint, BadInput
from eventspec.files import read_json
from eventspec.models.shards import OURS
from eventspec.pairs.names import (
    ACCEPTANCE,
    ALIGNED,
    AUTO,
    BASELINE,
    BLIND,
    CASCADE,
    EVENT_EAGLE,
    EVENT_METHOD,
    HEAD_METHODS,
    HYBRID,
    LOSSY,
    METHODS,
    MIXED_HEAD,
    SKIP,
)
from eventspec.pairs.pair_file import PairFile


@dataclass(frozen=True)
class Offer:
    """A method of a pair; missing: what it lacks, and how that is made, None where it is there."""

    name: str
    lossless: bool
    missing: str | None

    @property
    def available(self) -> bool:
        return self.missing is None


def offers(file: PairFile) -> list[Offer]:
    """Every method of `METHODS`, in their order. BadCheckpoint for adapters that cannot be read."""
    whose, heads = f"--pair {file.folder}", file.tables["heads"]
    places = file.places("adapters").values()
    written = {_output(place) for place in places if "drafter" in file.files}
    ours = file.load is None or read_json(file.place("target") / "config.json").get("model_type") in OURS
    own = None if ours else "a target of our own that sees frames: transformers opened this one"
    drafter = None if "drafter" in file.files else f"an event drafter: eventspec train drafter {whose}"
    mixed = None if {MIXED_HEAD, *HEAD_METHODS} & set(heads) else f"a head: eventspec train heads {whose}"
    rows, features = (
        None if output in written else f"an adapter to {output}: eventspec train adapter {whose} --output {output}"
        for output in ("rows", "features")
    )
    calibrated = any((place / ACCEPTANCE).is_file() for place in places)
    missing = {
        EVENT_METHOD: drafter,
        **{name: None if name in heads else f"a head: eventspec train heads {whose} --head {name}" for name in HEAD_METHODS},
        HYBRID: mixed and drafter,
        BLIND: mixed,
        CASCADE: own or drafter,
        ALIGNED: rows,
        EVENT_EAGLE: features,
        SKIP: rows or (None if calibrated else f"a calibrated adapter: eventspec train adapter {whose} --output rows"),
        LOSSY: own,
        "prior": None if "prior" in file.files else f"a text prior: eventspec train prior {whose}",
    }
    return [Offer(name, name not in (LOSSY, SKIP), missing.get(name)) for name in METHODS]


def check_offered(methods: Iterable[str], file: PairFile) -> None:
    """BadInput for a method that a pair lacks something for."""
    wanted = [name for name in methods if name not in (BASELINE, AUTO, "ngram")]  # every pair has these
    found = offers(file) if wanted else []
    there = ", ".join(offer.name for offer in found if offer.available)
    for offer in found:
        if offer.name in wanted and not offer.available:
            problem = f"pair {file.name} has no drafter for method {offer.name}: it offers {there}"
            raise BadInput(f"{problem}; the method needs {offer.missing}")


def _output(adapter: Path) -> str:
    found = read_json(adapter / "config.json").get("output")
    if not isinstance(found, str):
        raise BadCheckpoint(f"{adapter / 'config.json'}: output is {found!r}, wanted rows or features")
    return found
