"""A pair: pair.toml names the target, its drafters, the tokenizer and the text prior; this loads them."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from eventspec.compress import CompressedTarget
from eventspec.core import (
    BadCheckpoint,
    BadInput,
    Constraint,
    Drafter,
    Sampling,
    Target,
)
from eventspec.drafters import LanguageDrafter, NgramDrafter, Nothing, PriorDrafter, TextPrior
from eventspec.engine import Plan
from eventspec.engine.lanes import Lanes, choose_plan
from eventspec.models.embedded import EOS, drafter_rows, target_ids, target_rows
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs.heads import feature_drafter
from eventspec.pairs.methods import FEATURE_METHODS, LOSSY, check_method
from eventspec.pairs.packers import Packers
from eventspec.text import Vocabulary, json_schema, regex

FEATURES = Plan(nodes=59, level_cost=0.15, worth=0.4)
"""For heads on the target's features: EAGLE-2's 60 nodes with the root, fewer where a node's cost says so. A token that is not
drafted is had with less than half a step: a round of two or three steps gives five to eight."""
DATA = Path(__file__).parent.parent / "data"


@dataclass
class Pair:
    """A target and its drafters by method name. `banned` are ids that no method says, `ends` are ids that end an answer beside
    `end`, `notes` what the trace says of a method, `sees` is what the target cannot do without, `others` are further event
    drafters by name (`event_drafters.with_drafter`), `heads` are folders of heads (`variants.with_head`), `targets` and
    `budgets` are those of methods that have others than `target` and `budget`, `checkpoint` is the target's folder, `packers`
    what `with_compression` packs with."""

    name: str
    target: Target
    drafters: dict[str, Drafter]
    vocabulary: Vocabulary
    end: int
    banned: tuple[int, ...] = ()
    budget: Plan = field(default_factory=Plan)
    lanes: Lanes = field(default_factory=lambda: Lanes(choose_plan("auto")))
    folder: Path | None = None
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sees: Literal["frames", "events"] = "frames"
    ends: tuple[int, ...] = ()
    others: Mapping[str, Path] = field(default_factory=dict)
    heads: Mapping[str, Path] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    budgets: Mapping[str, Plan] = field(default_factory=dict)
    checkpoint: Path | None = None
    packers: Packers | None = None

    def drafter(self, method: str) -> Drafter:
        """The drafter of a method; BadInput when the method does not exist or this pair has no drafter for it."""
        check_method(method)
        if method not in self.drafters:
            raise BadInput(f"pair {self.name} has no drafter for method {method}: it offers {', '.join(self.drafters)}")
        return self.drafters[method]

    def plan(self, method: str) -> Plan:
        """How much a method may draft."""
        return self.budgets.get(method, self.budget)

    def target_of(self, method: str) -> Target:
        """Who answers with a method: a lossy one has a target of its own."""
        return self.targets.get(method, self.target)

    def on(self, plan: str) -> Pair:
        """The same pair on another device plan, with lanes of its own; close them when done."""
        return replace(self, lanes=Lanes(choose_plan(plan)))

    def close(self) -> None:
        """End the lanes' threads once they are done; the next question starts fresh ones. A dropped pair does the same."""
        self.lanes.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def json_schema(self, schema: str | bool | Mapping[str, Any]) -> Constraint:
        """A constraint for `Sampling`: answers are JSON of this schema. BadInput for a schema that cannot be kept to."""
        return json_schema(schema, self.vocabulary, self.end)

    def regex(self, pattern: str) -> Constraint:
        """A constraint for `Sampling`: answers match this pattern as a whole. BadInput for what is no pattern."""
        return regex(pattern, self.vocabulary, self.end)

    def bad_words(self, *texts: str) -> tuple[tuple[int, ...], ...]:
        """`bad_words` of `Sampling`: these texts in the tokenizer's own spelling, behind a space and without."""
        if not all(texts):
            raise BadInput("a bad word is empty: name what must not be said")
        return tuple(ids for text in texts for ids in self.vocabulary.spellings(text))

    def fingerprint(self) -> str | None:
        """SHA-256 over the files of the pair's folder (16 hex digits): figures name the weights they were measured with."""
        if self.folder is None:
            return None
        digest = hashlib.sha256()
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            digest.update(path.relative_to(self.folder).as_posix().encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def sampling(self, sampling: Sampling) -> Sampling:
        """With the ids this pair never emits banned and its end token as a stop; BadInput for an id it does not have."""
        biased, words = list(sampling.logit_bias), [i for word in sampling.bad_words for i in word]
        for name, ids in (("banned id", sampling.banned_ids), ("logit_bias id", biased), ("bad_words id", words)):
            if unknown := [i for i in ids if not 0 <= i < self.vocabulary.size]:
                last = self.vocabulary.size - 1
                raise BadInput(f"{name} {unknown[0]} is not in the vocabulary of pair {self.name}: ids are 0 to {last}")
        if self.vocabulary.size <= len({*sampling.banned_ids, *self.banned}):
            raise BadInput(f"banned_ids leave no token: all {self.vocabulary.size} of pair {self.name} are banned")
        ends = (*sampling.stop_ids, self.end, *self.ends)
        return replace(sampling, stop_ids=ends, banned_ids=(*sampling.banned_ids, *self.banned))


def bundled() -> Mapping[str, Path]:
    """The pairs that ship with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(DATA.glob("pairs/*/pair.toml"))}


def folder_of(where: str | Path) -> Path:
    """The folder of a bundled pair by name, or of a pair.toml; BadInput where there is none."""
    known = bundled()
    if str(where) == "embedded" and known:
        # `embedded` is the best one that is fully trained: base once it is there, nano until then.
        folder = known.get("base", known.get("nano", next(iter(known.values()))))
    else:
        folder = known.get(str(where), Path(where))
    if not (folder / "pair.toml").is_file():
        raise BadInput(f"no pair '{where}': give a folder with a pair.toml, or one of {', '.join(['embedded', *known])}")
    return folder


def load_pair(where: str | Path, device_plan: str = "auto") -> Pair:
    """A bundled pair by name, or the folder of a pair.toml. Raises BadCheckpoint for a missing or broken file."""
    folder = folder_of(where)
    try:
        data = tomllib.loads((folder / "pair.toml").read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{folder / 'pair.toml'} is not valid TOML: {error}") from None
    if data.get("format") != "eventspec-pair" or data.get("version") != 1:
        told = f"format is {data.get('format')!r} version {data.get('version')!r}, wanted 'eventspec-pair' version 1"
        raise BadCheckpoint(f"{folder / 'pair.toml'}: {told}")
    return _assemble(folder, data, device_plan)


def _assemble(folder: Path, data: dict[str, Any], device_plan: str) -> Pair:
    files = {
        "target": "target",
        "drafter": "drafter",
        "tokenizer": "tokenizer.json",
        "prior": "prior.json",
        **_places(folder, data, "files"),
    }
    vocabulary = Vocabulary.load(folder / files["tokenizer"])
    target = load_video_llava(folder / files["target"])
    drafter = load_eventgpt(folder / files["drafter"])
    prior = _prior(folder / files["prior"])
    for name, rows in (("target", target.config.language.vocab_size), ("drafter", drafter.config.language.vocab_size)):
        if rows < vocabulary.size:
            raise BadCheckpoint(
                f"{folder}: the tokenizer has {vocabulary.size} ids, the {name} only {rows} rows: they do not belong together"
            )
    drafters: dict[str, Drafter] = {
        "autoregressive": Nothing(),
        LOSSY: Nothing(),
        "cross-modal": LanguageDrafter(
            "cross-modal", drafter.language, drafter_rows(drafter, vocabulary.encode), EOS, guess=prior.sure_of
        ),
        "ngram": NgramDrafter(lambda question: vocabulary.encode(f"\n{question} ASSISTANT:")),
        "prior": PriorDrafter(prior, EOS),
    }
    heads, packers, others = (
        {name: folder / place for name, place in _places(folder, data, table).items()}
        for table in ("heads", "packers", "drafters")
    )
    for method in FEATURE_METHODS:
        if method in heads:
            drafters[method] = feature_drafter(method, heads[method], target.language, target_ids(vocabulary.encode), EOS)
    answering = LanguageTarget(target.language, target_rows(target, vocabulary.encode))
    return Pair(
        name=str(data.get("name", folder.name)),
        target=answering,
        targets={LOSSY: CompressedTarget(answering, "pool", 3)},
        drafters=drafters,
        vocabulary=vocabulary,
        end=EOS,
        lanes=Lanes(choose_plan(device_plan)),
        folder=folder,
        others=others,
        heads=heads,
        budgets=dict.fromkeys(FEATURE_METHODS, FEATURES),
        checkpoint=folder / files["target"],
        packers=Packers(target, vocabulary.encode, packers),
    )


def _places(folder: Path, data: dict[str, Any], name: str) -> dict[str, str]:
    """A table of names and places in the folder; BadCheckpoint for what is none."""
    found = data.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(place, str) for place in found.values()):
        raise BadCheckpoint(f"{folder / 'pair.toml'}: {name} must be a table [{name}] of names and paths")
    return found


def _prior(path: Path) -> TextPrior:
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: the pair is incomplete")
    try:
        return TextPrior.load(path)
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{path} is not a text prior ({error})") from None
