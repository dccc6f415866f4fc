"""A pair: a target with its drafters on named devices, and the methods that can be run with them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from eventspec.align.deciding import Decision
from eventspec.align.substitute import SubstitutedTarget
from eventspec.ask import Live, LivePolicy, RecordingContext
from eventspec.ask.generation import DEFAULT_METHOD, opened
from eventspec.core import HOPELESS, BadCheckpoint, BadInput, Constraint, Drafter, Request, Target, Window
from eventspec.costs import LearntCosts
from eventspec.engine.method import Method
from eventspec.engine.policy import COSTS, GUESSED, DraftPolicy
from eventspec.errors import check_known, check_risk
from eventspec.lanes.workers import Workers, described_placement
from eventspec.models.loading import LoadOptions
from eventspec.models.prompt import FrameEncoder
from eventspec.models.session import LanguageTarget
from eventspec.pairs.event_drafters import with_event_drafter
from eventspec.pairs.learning import beginning_anew, learning, learning_heads, save_learned
from eventspec.pairs.methods import (
    aligned,
    compressed,
    cross_modal,
    drafted_by,
    drafting_by,
    event_eagle,
    rebuild_methods,
    skip_encode,
    skipping,
)
from eventspec.pairs.methods import head as head_method
from eventspec.pairs.names import (
    BASELINE,
    EVENT_EAGLE,
    EVENT_METHOD,
    HEAD_METHODS,
    HYBRID,
    LOSSY,
    METHODS,
    SKIP,
    USUAL_MAPPING,
    USUAL_RISK,
    CompressionSpec,
    HeadSpec,
    check_adapter,
    check_decision,
)
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.parts import Parts, keeping
from eventspec.recordings import Recording
from eventspec.text import TokenSpace, Vocabulary

POLICY = tuple(item.name for item in fields(DraftPolicy))
"""Fields that `with_drafter` and `with_policy` change."""
DRAFTS: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "always": {"node_cost": 0.0, "level_cost": HOPELESS, "open_cost": 0.0, "patience": 1e9},
}
"""Whether drafts are cut to what is worth its cost, or as large as they may be, which compares drafters and no machines."""
FEATURE_BYTES = 256 << 20
"""Rows of frames that a stream, or a recording with a store, keeps in memory."""


@dataclass(frozen=True, repr=False)
class Pair:
    """Methods by name, for questions about recordings. Everything that gives another pair shares models with this one."""

    name: str
    parts: Parts
    methods: Mapping[str, Method]
    workers: Workers = field(default_factory=lambda: Workers("auto"))
    folder: Path | None = None
    """The folder of its pair.toml."""
    checkpoint: Path | None = None
    """The target's own folder."""
    trained_on: str = ""
    """What the source of a recording begins with that is of the kind the pair was trained on; "" when it may be of any kind."""

    def __repr__(self) -> str:
        return (
            f"<Pair {self.name}: {', '.join(self.methods)}; {described_placement(self.workers.placement, self.workers.apart)}>"
        )

    # ------------------------------------------------------------------------------------------------------------ its parts
    @property
    def target(self) -> Target:
        """Who answers; a lossy method has another, see its `Method`."""
        return self.parts.target

    @property
    def tokens(self) -> TokenSpace:
        """The target's ids."""
        return self.parts.tokens

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's vocabulary."""
        return self.parts.tokens.vocabulary

    @property
    def eos_id(self) -> int:
        """The id that ends an answer."""
        return self.parts.tokens.eos_id

    def method(self, name: str) -> Method:
        """What a name means; BadInput when this pair has no such method."""
        if name not in self.methods:
            offers = ", ".join(self.methods)
            if name == SKIP and self.parts.adapters is not None and (usual := self.parts.adapters.usual("rows")) is not None:
                skip_encode(self.parts, usual)  # says what is lacking
            if name in METHODS:
                raise BadInput(f"pair {self.name} has no drafter for method {name}: it offers {offers}")
            raise BadInput(f"unknown method '{name}': choose one of {offers}")
        return self.methods[name]

    def drafter(self, name: str) -> Drafter | None:
        """Who drafts in a method from the first verified token on; of several the one that stands first."""
        method = self.method(name)
        return next(iter(method.drafts.later(method.current_policy)), None)

    # -------------------------------------------------------------------------------------------------------- another pair
    def with_methods(self, methods: Mapping[str, Method]) -> Pair:
        """With other methods in the place of those of their names; what chooses among them keeps what it learnt."""
        return replace(self, methods={**self.methods, **methods})

    def with_method(self, name: str, method: Method) -> Pair:
        """With one more method, or another one of that name; a method that chooses it forgets what it learnt."""
        made = replace(self, methods={**self.methods, name: method})
        chooses = [own.choice for own in self.methods.values() if own.choice is not None and name in own.choice.methods]
        return made.forgetful() if chooses else made

    def with_drafter(self, name: str, drafter: Drafter, **changes: Any) -> Pair:
        """With a drafter of your own as method `name`; `changes` are fields of its `DraftPolicy`. BadInput for what is no
        `Drafter`, for a field that there is not, and for the name of a method that chooses."""
        if not isinstance(name, str) or not name.strip() or (name in self.methods and self.methods[name].choice is not None):
            raise BadInput(f"a drafter cannot be method {name!r}: give it a name of its own")
        _check_part(drafter, Drafter)
        check_known("policy field", changes, POLICY)
        made, plain = drafted_by(self.parts, drafter), self.methods.get(BASELINE)
        if plain is not None:  # which knows what a step costs here
            made = replace(made, policy=made.policy.verifying_as(plain.policy), learnt=plain.learnt and LearntCosts())
        return self.with_method(name, _changed(made, changes))

    def with_policy(self, only: str | Collection[str] = (), **changes: Any) -> Pair:
        """With other fields of `DraftPolicy`, for all methods or those named `only`. A method that is given one of
        `COSTS` keeps them all: it learns none. BadInput for a field that there is not, and for a value that it cannot have."""
        only = (only,) if isinstance(only, str) else only
        check_known("policy field", changes, POLICY)
        check_known("method", only, self.methods)
        made = {
            name: _changed(method, changes) if not only or name in only else method for name, method in self.methods.items()
        }
        return replace(self, methods={n: _choosing_anew(m, only or made.keys()) for n, m in made.items()})

    def drafting(self, draft: str) -> Pair:
        """With drafts that are cut to what is worth its cost (auto), or with all that methods may draft, whatever it costs
        (always). BadInput for anything else."""
        if draft not in DRAFTS:
            raise BadInput(f"draft {draft!r} is unknown: choose {' or '.join(DRAFTS)}")
        return self.with_policy(**DRAFTS[draft]) if DRAFTS[draft] else self

    def with_event_drafter(self, which: str, mapping: str = USUAL_MAPPING, how: LoadOptions | None = None) -> Pair:
        """With another event drafter for methods cross-modal and hybrid, see `event_drafters.with_event_drafter`."""
        parts = with_event_drafter(self.parts, self.name, which, mapping, how)
        made = cross_modal(parts)
        assert made is not None, "the parts have such a drafter"
        return replace(self, parts=parts, methods=rebuild_methods(parts, self.methods, {EVENT_METHOD: made}))

    def with_head(self, head: str) -> Pair:
        """With another head, HEAD[:TREE][:BRANCH], for the methods that draft on the target's features, and for
        compressed-target, which drafts with none by itself: a name from the pair's `[heads]`, or the folder of a head; TREE is
        one of the head's tree policies, BRANCH one of its compressor's. BadInput and BadCheckpoint, one line each."""
        spec, parts = HeadSpec.parse(head, self.parts.heads), replace(self.parts, head_chosen=True)
        made = {name: head_method(parts, name, spec) for name in HEAD_METHODS}
        if (lossy := self.methods.get(LOSSY)) is not None:
            # Its last note says how it is lossy; those before are of what drafted.
            made[LOSSY] = replace(made["eagle"], target=lossy.target, notes=(*made["eagle"].notes, lossy.notes[-1]))
        return replace(self, parts=parts, methods=rebuild_methods(parts, self.methods, made))

    def with_adapter(self, adapter: str, method: str | None = None) -> Pair:
        """With another adapter, a name from the pair's `[adapters]` or the folder of one: to rows for method aligned, and for
        skip-encode where it was calibrated; to features for event-eagle. Meant for `method` hybrid, it also drafts there in the
        event drafter's place. BadInput and BadCheckpoint, one line each: also for one that the `method` it is meant for cannot
        use."""
        parts, rest = self.parts, {name: own for name, own in self.methods.items() if name != SKIP}
        by = drafting_by(parts, adapter)
        if method == HYBRID:
            pair, parts = self.with_adapter(adapter), replace(parts, sees_events=by)
            return replace(pair, parts=parts, methods=rebuild_methods(parts, pair.methods, {}))
        check_adapter(adapter, by, method)
        if by == EVENT_EAGLE:
            made = event_eagle(parts, adapter)
            return self if made is None else replace(self, methods=rebuild_methods(parts, self.methods, {by: made}))
        found, adapters = aligned(parts, adapter), parts.adapters
        assert found is not None and adapters is not None  # `drafting_by` looked
        own = replace(self, methods=rebuild_methods(parts, rest, {by: found}))
        calibrated = None
        with suppress(BadCheckpoint):  # unless it is for that, the adapter is as good as ever
            calibrated = adapters.calibrated(adapter)
        if calibrated is None and method != SKIP:
            return own
        return own._skipping_by(adapter, self._asked_risk, self._skipping.decision if self._skipping else None)

    def with_risk(self, risk: float, adapter: str | None = None) -> Pair:
        """With another risk for method skip-encode: the share of all answers that may differ from the target's, in (0, 1), on
        average over calibrations. BadInput for another number, for a calibration that is too small for it, and for a pair
        without a calibrated adapter."""
        check_risk(risk)
        decision = self._skipping.decision if self._skipping and self._skipping.decision.risky else None
        return self._skipping_by(adapter or (self._skipping.adapter if self._skipping else None), risk, decision)

    def with_decision(self, rule: str, adapter: str | None = None) -> Pair:
        """With another rule of `align.deciding.RULES` for method skip-encode, NAME or NAME:ARGUMENT: predictor, entropy and
        events keep the risk that there is, cosine:T, kl:X and score promise nothing. BadInput for another rule, for an adapter
        that was not calibrated for it, and for a pair without any."""
        decision = check_decision(rule, None)
        used = adapter or (self._skipping.adapter if self._skipping else None)
        return self._skipping_by(used, self._asked_risk if decision.risky else None, decision)

    @property
    def _asked_risk(self) -> float | None:
        """The risk of method skip-encode. One that nobody asked for refuses no adapter: it asks the target where it was
        calibrated on too little."""
        return self._skipping.risk if self._skipping and self._skipping.risk != USUAL_RISK else None

    def _skipping_by(self, adapter: str | None, risk: float | None, decision: Decision | None = None) -> Pair:
        if (made := skip_encode(self.parts, adapter, risk, decision)) is None:
            raise BadInput(f"pair {self.name} has no adapter that was calibrated: method {SKIP} cannot keep a risk")
        return self.with_method(SKIP, made)

    @property
    def _skipping(self) -> SubstitutedTarget | None:
        """The target of method skip-encode, if there is one."""
        target = self.methods[SKIP].target if SKIP in self.methods else None
        return target if isinstance(target, SubstitutedTarget) else None

    def with_compression(self, compression: str) -> Pair:
        """With another KIND:SIZE (see `compress.lossy`), or packer:SCALE (`compress.packer`), for method compressed-target.
        With a head that was chosen it drafts. BadInput and BadCheckpoint, one line."""
        drafted = self.methods["eagle"] if self.parts.head_chosen else None
        return self.with_method(LOSSY, compressed(self.parts, CompressionSpec.parse(compression), drafted))

    def with_learning(self, methods: Collection[str] = ()) -> Pair:
        """With heads that learn from the target's verdicts while they draft, in all methods that draft with such a head; see
        `drafters.heads.learning`. BadInput unless each of `methods` that could have one has."""
        return replace(self, methods=learning(self.methods, methods))

    @property
    def learns(self) -> bool:
        """Whether a head does."""
        return bool(learning_heads(self.methods.values()))

    def learn_from(self, request: Request, method: Method) -> None:
        """An answer by a method has ended: its heads that learn do so, on the drafter's lane."""
        for head in learning_heads([method]):
            head.answered(request, partial(self.workers.start, "drafter", serving=head))

    def save_learned(self, folder: Path) -> str:
        """Write the head that learned from most answers, as a folder that `with_head` takes; which one it is, in a sentence.
        Nothing is written where none has learned from any. BadInput where none learns, for a folder that is not empty, and for
        one that cannot be written."""
        return save_learned(learning_heads(self.methods.values()), folder, self.parts.ends)

    def with_target(self, target: Target) -> Pair:
        """The same tokens and methods with another target: one of your own, or a wrapper of this one's. Methods whose drafter
        reads the target stay as they are: `Limits` and `Scores` say what it can read."""
        _check_part(target, Target)
        made = replace(self._with_same(target), trained_on="").forgetful()
        # What skip-encode knows of its answers was calibrated on this pair's own target.
        return replace(made, methods={name: own for name, own in made.methods.items() if name != SKIP})

    def _with_same(self, target: Target) -> Pair:
        """With another target object that is as fast."""
        old = self.parts.target
        made = {n: replace(m, target=target) for n, m in self.methods.items() if m.target is old}
        if (skipping := self._skipping) is not None:
            made[SKIP] = replace(self.methods[SKIP], target=skipping.asking(target))
        return replace(self, parts=replace(self.parts, target=target), methods={**self.methods, **made})

    def _reusing(self, below: float) -> Pair:
        """LOSSY: with a target whose frames may have the rows of others."""
        made = self._with_same(LanguageTarget(self.parts.language_target.encoder, lossless=False))
        lossy = f"frames with fewer than {below:g} events a pixel since another have its rows: lossy"
        noted = {n: replace(m, notes=(*m.notes, lossy)) for n, m in made.methods.items() if m.target is made.target}
        return replace(made, methods={**made.methods, **noted})

    def forgetful(self) -> Pair:
        """With methods that learnt nothing yet: what there is now takes other times, and skip-encode remembers what was
        answered from events and how often that would do; heads that learn begin anew."""
        made = {n: replace(m, learnt=None if m.learnt is None else LearntCosts()) for n, m in self.methods.items()}
        made |= {n: replace(m, choice=m.choice.reset()) for n, m in made.items() if m.choice is not None}
        if (known := self._skipping) is not None:
            made[SKIP] = skipping(made[SKIP], known.reset())
        return replace(self, methods=beginning_anew(made))

    def on(self, placement: str) -> Pair:
        """On another placement (auto, one, two) of the same devices, with workers of its own; close them when done."""
        return replace(self, workers=self.workers.on(placement)).forgetful()

    # --------------------------------------------------------------------------------------------------------------- asking
    def open(
        self, recording: Recording | str | Path, window: Window | None = None, store: Path | None = None
    ) -> RecordingContext:
        """A recording, or the one at a path, to ask several questions about: it is encoded once, and only the first of them
        reads its rows. With a folder `store` the target's features of every frame are kept there, by content, for later."""
        recording = opened(recording)
        notes = self.notes_on(recording)
        if store is None:
            return RecordingContext(self, recording, window, notes)
        kept = self.workers.start("target", partial(keeping, self.target, FEATURE_BYTES, store)).result()
        return RecordingContext(self._with_same(kept), recording, window, notes)

    def notes_on(self, recording: Recording) -> tuple[str, ...]:
        """What is to be said of every answer about a whole recording; a live stream does not know what it is of."""
        if recording.source.startswith(self.trained_on):
            return ()
        of = "is of something else" if recording.source else "does not say where it comes from"
        return (
            f"pair {self.name} was trained on the {self.trained_on} only, and this recording {of}: answers may well be wrong",
        )

    def live(self, method: str = DEFAULT_METHOD, feature_bytes: int = FEATURE_BYTES, **policy: Any) -> Live:
        """A stream to push frames and events to, which is read before anybody asks; `method` is what it is read for, `policy`
        are fields of `LivePolicy`, `feature_bytes` bounds the rows of frames that are kept. BadInput for what there is not."""
        check_known("setting of live", policy, [item.name for item in fields(LivePolicy)])
        if isinstance(feature_bytes, bool) or not isinstance(feature_bytes, int) or feature_bytes < 1:
            raise BadInput(f"feature_bytes is {feature_bytes!r}: give a whole number from 1 on")
        kept, wanted = keeping(self.target, feature_bytes), LivePolicy(**policy).checked()
        pair, ahead = self._with_same(kept), None
        if isinstance(kept, LanguageTarget) and isinstance(kept.encoder, FrameEncoder):
            ahead = kept.encoder.of_one() if self.method(method).target is self.target else None
        if wanted.reuse_below:
            if ahead is None:
                raise BadInput(
                    f"reuse_below is nothing to method {method} of pair {self.name}: its frames are not encoded ahead"
                )
            pair = pair._reusing(wanted.reuse_below)
        return Live(pair, method, wanted, ahead)

    def close(self) -> None:
        """End the workers' threads once they are done; the next question starts fresh ones. A dropped pair does the same."""
        self.workers.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def json_schema(self, schema: str | bool | Mapping[str, Any]) -> Constraint:
        """As `TokenSpace.json_schema`."""
        return self.tokens.json_schema(schema)

    def regex(self, pattern: str) -> Constraint:
        """As `TokenSpace.regex`."""
        return self.tokens.regex(pattern)

    def bad_words(self, *texts: str) -> tuple[tuple[int, ...], ...]:
        """As `TokenSpace.bad_words`."""
        return self.tokens.bad_words(*texts)

    def fingerprint(self, adapters: bool = True) -> str | None:
        """SHA-256 over the files of the pair's folder (16 hex digits): figures name the weights they were measured with.
        Without `adapters` it stays what it was when one is added, as do the figures of all methods that have none."""
        return None if self.folder is None else PairFile.read(self.folder).fingerprint(adapters)


def _choosing_anew(method: Method, among: Collection[str]) -> Method:
    """A method, which forgets what it learnt where it chooses among some that are others now."""
    chooses = method.choice is not None and set(among) & set(method.choice.methods)
    return replace(method, choice=method.choice.reset()) if method.choice is not None and chooses else method


def _changed(method: Method, changes: Mapping[str, Any]) -> Method:
    """A method with other fields of its policy. What a cost was learnt to be does not count beside one that is given, and on
    other cores it is another."""
    learnt = None if set(COSTS) & set(changes) else method.learnt
    fresh = learnt is not None and "concurrent" in changes
    given = dict.fromkeys(GUESSED, False) if set(COSTS) & set(changes) else {}
    policy = replace(method.policy, **{**given, **changes}).checked()
    return replace(method, policy=policy, learnt=LearntCosts() if fresh else learnt)


def _check_part(given: object, protocol: type) -> None:
    """BadInput for an object of a reader's own that lacks what a protocol of `core` has. A property is looked up, not run."""
    wanted = dict.fromkeys([*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))])
    if lacking := [name for name in wanted if inspect.getattr_static(given, name, None) is None and not hasattr(given, name)]:
        kind = protocol.__name__
        problem = f"the {kind.lower()} is a {type(given).__name__} without {', '.join(lacking)}"
        raise BadInput(f"{problem}: inherit from eventspec.{kind}")
