"""A pair: pair.toml names the target, its drafters, the tokenizer and the text prior; this loads them."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eventspec.compress import CompressedTarget
from eventspec.core import (
    BadCheckpoint,
    BadInput,
    Budget,
    Constraint,
    Drafter,
    Proposal,
    Request,
    Sampling,
    Target,
    Trace,
    Verdict,
)
from eventspec.drafters import FeatureDrafter, LanguageDrafter, NgramDrafter, Nothing, PriorDrafter, TextPrior, load_head
from eventspec.drafters.feature import TREES
from eventspec.engine import Plan
from eventspec.engine.cost import VerifyCurve, measure_draft, measure_level, measure_verify
from eventspec.engine.lanes import Lanes, choose_plan
from eventspec.engine.plan import NO_TAIL
from eventspec.events.stream import EventStream
from eventspec.models.embedded import EOS, IMAGE_SIZE, drafter_rows, target_rows
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.session import LanguageTarget
from eventspec.models.video_llava import load_video_llava
from eventspec.nn import Llama
from eventspec.nn.draft import Growth
from eventspec.pairs.methods import FEATURE_METHODS, LOSSY, check_method
from eventspec.text import Vocabulary, json_schema, regex
from eventspec.video.clip import VideoClip

FEATURES = Plan(nodes=59, level_cost=0.15, worth=0.4)
"""For heads on the target's features: EAGLE-2's 60 nodes with the root, fewer where a node's cost says so. A token that is not
drafted is had with less than half a step: a round of two or three steps gives five to eight."""
DATA = Path(__file__).parent.parent / "data"


@dataclass
class Pair:
    """A target and its drafters by method name. `banned` are ids that no method says, `ends` are ids that end an answer beside
    `end`, `notes` what the trace says of a method, `sees` is what the target cannot do without, `others` are further event
    drafters by name (`event_drafters.with_drafter`), `heads` are folders of heads (`with_head`), `targets` and
    `budgets` are those of methods that have others than `target` and `budget`."""

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
        ends = (*sampling.stop_ids, self.end, *self.ends)
        return replace(sampling, stop_ids=ends, banned_ids=(*sampling.banned_ids, *self.banned))


def bundled() -> Mapping[str, Path]:
    """The pairs that ship with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(DATA.glob("pairs/*/pair.toml"))}


def load_pair(where: str | Path, device_plan: str = "auto") -> Pair:
    """A bundled pair by name, or the folder of a pair.toml. Raises BadCheckpoint for a missing or broken file."""
    known = bundled()
    if str(where) == "embedded" and known:
        # `embedded` is the best one that is fully trained: base once it is there, nano until then.
        folder = known.get("base", known.get("nano", next(iter(known.values()))))
    else:
        folder = known.get(str(where), Path(where))
    if not (folder / "pair.toml").is_file():
        raise BadInput(f"no pair '{where}': give a folder with a pair.toml, or one of {', '.join(['embedded', *known])}")
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
        **data.get("files", {}),
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
    heads = {name: folder / place for name, place in data.get("heads", {}).items()}
    for method in FEATURE_METHODS:
        if method in heads:
            drafters[method] = feature_drafter(method, heads[method], target.language)
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
        others={name: folder / place for name, place in data.get("drafters", {}).items()},
        heads=heads,
        budgets=dict.fromkeys(FEATURE_METHODS, FEATURES),
    )


def with_head(pair: Pair, which: str, tree: str = "dynamic") -> Pair:
    """The same target with another head for the methods that draft on its features: a name from the pair's `[heads]`, or the
    folder of a head; `tree` is one of `drafters.feature.TREES`. Raises BadInput and BadCheckpoint, one line each."""
    if tree not in TREES:
        raise BadInput(f"tree '{tree}' is unknown: choose one of {', '.join(TREES)}")
    folder = pair.heads.get(which, Path(which))
    if not which or not folder.is_dir():
        known = f", or one of {', '.join(pair.heads)}" if pair.heads else ""
        raise BadInput(f"no head '{which}' for pair {pair.name}: give the folder of a head{known}")
    target = pair.target
    if not isinstance(target, LanguageTarget):
        raise BadInput(f"a head needs the layers of a target of our own, pair {pair.name} has another")
    made = {method: feature_drafter(method, folder, target.language, tree) for method in FEATURE_METHODS}
    note = f"drafted by head {which}, {tree} tree"
    notes = {**pair.notes, **{method: (*pair.notes.get(method, ()), note) for method in made}}
    return replace(pair, drafters={**pair.drafters, **made}, notes=notes)


def with_compression(pair: Pair, spec: str) -> Pair:
    """The same pair with this KIND:SIZE (see `compress.lossy`) for method compressed-target. BadInput, one line."""
    kind, _, size = spec.partition(":")
    if not isinstance(pair.target, LanguageTarget):
        raise BadInput(f"method {LOSSY} needs a target of our own, pair {pair.name} has another")
    if not size.isdecimal():
        raise BadInput(f"compression '{spec}' cannot be read: give KIND:SIZE, such as pool:3")
    made = CompressedTarget(pair.target, kind, int(size))
    notes = {**pair.notes, LOSSY: (f"{spec}: lossy, this is not the answer of the target that sees everything",)}
    drafters = {**pair.drafters, LOSSY: Nothing()}
    return replace(pair, targets={**pair.targets, LOSSY: made}, drafters=drafters, notes=notes)


def feature_drafter(method: str, folder: Path, target: Llama, tree: str = "dynamic") -> FeatureDrafter:
    """The head of a folder as a drafter for `target`."""
    trained = load_head(folder, target)
    head = trained.head
    return FeatureDrafter(method, head, head.config.language, target, EOS, TREES[tree], trained.prefix)


def _prior(path: Path) -> TextPrior:
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing: the pair is incomplete")
    try:
        return TextPrior.load(path)
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{path} is not a text prior ({error})") from None


def warm_up(pair: Pair) -> Pair:
    """Run everything once on both lanes, and fit the budgets to what steps, nodes and levels cost on this machine.

    Without it a pair uses the defaults of `engine.Plan`, which were measured on a two-core machine with the bundled pair.
    """
    frames = np.zeros((8, IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    video = VideoClip(frames, np.arange(8, dtype=np.int64) * 125_000)
    request = Request("Warm up?", EventStream.empty(IMAGE_SIZE, IMAGE_SIZE), video, Sampling(max_new_tokens=8))

    def verifying() -> VerifyCurve:
        return measure_verify(pair.target.prefill(request, 1, Trace()))

    def alone(drafter: Drafter) -> float:
        session = drafter.open(request, None, Trace())
        for nodes in (4, 16):
            session.propose(Budget(nodes))
        return measure_draft(session)

    def reading(drafter: Drafter) -> float:
        if isinstance(drafter, FeatureDrafter):
            # What is likely enough to be drafted is seldom wider: the floor prunes the rest.
            drafter = drafter.with_growth(Growth(2, 24))
        target = pair.target.prefill(request, NO_TAIL, Trace(), drafter.taps)
        session = drafter.open(request, target, Trace())
        session.observe(Verdict(np.empty(0, np.int64), np.array([1], np.int64)), target.score(Proposal.empty()))
        return measure_level(session)

    curve = pair.lanes.lane("target").start(verifying).result()
    fitted = replace(pair.budget, node_cost=curve.node_cost, step_seconds=curve.one)
    budgets = {}
    for method, drafter in pair.drafters.items():
        if drafter.taps or drafter.concurrent:
            work = partial(reading if drafter.taps else alone, drafter)
            seconds = pair.lanes.lane("target" if drafter.taps else "drafter").start(work).result()
            costs = {"node_cost": curve.node_cost, "level_cost": seconds / curve.one, "step_seconds": curve.one}
            budgets[method] = replace(pair.plan(method), **costs)  # type: ignore[arg-type]
    return replace(pair, budget=fitted, budgets=budgets)
