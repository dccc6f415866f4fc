"""The methods by name, and one builder for each: a name means the same however its models were loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from eventspec.align.adapters import KINDS, PROMPTED
from eventspec.align.deciding import USUAL_RULE, Decision
from eventspec.align.substitute import LONGEST, Substitute, SubstitutedTarget
from eventspec.compress import CompressedEncoder, FastVTarget
from eventspec.core import BadCheckpoint, BadInput, Drafter, Sampling, Target
from eventspec.costs import LearntCosts
from eventspec.drafters import (
    Cascade,
    FeatureDrafter,
    LanguageDrafter,
    NgramDrafter,
    PriorDrafter,
    ReferenceDrafter,
    RespelledDrafter,
    ReusedDrafter,
)
from eventspec.drafters.heads import Drafting, load_head
from eventspec.drafters.mixture import WRITTEN
from eventspec.engine.drafts import Drafts
from eventspec.engine.method import Method
from eventspec.models.prompt import FrameEncoder
from eventspec.models.session import LanguageTarget
from eventspec.pairs.auto import Chooser
from eventspec.pairs.names import (
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
    MIXED_HEAD,
    SKIP,
    USUAL_RISK,
    CompressionSpec,
    HeadSpec,
    folder_named,
    uncalibrated,
)
from eventspec.pairs.parts import Parts

USUAL_COMPRESSION = CompressionSpec("pool", 3)


def autoregressive(parts: Parts) -> Method:
    """No drafter."""
    return Method(parts.target, policy=parts.policy, target_needs=parts.target_needs, notes=parts.notes)


def drafted_by(parts: Parts, drafter: Drafter, note: str | None = None) -> Method:
    """A drafter drafts from as early as it can."""
    notes = parts.notes if note is None else (*parts.notes, note)
    return Method(parts.target, Drafts.by(drafter), parts.policy, parts.target_needs, notes=notes)


def ngram(parts: Parts) -> Method:
    """Prompt lookup."""
    encode = parts.tokens.vocabulary.encode
    return drafted_by(parts, NgramDrafter(lambda question: encode(f"\n{question} ASSISTANT:")))


def prior(parts: Parts) -> Method | None:
    """A blind text prior, where there is one. A later round gives five tokens for a step and a half."""
    if parts.prior is None:
        return None
    made = drafted_by(parts, PriorDrafter(parts.prior, parts.tokens.eos_id))
    return replace(made, policy=replace(parts.policy, worth=0.3))


def cross_modal(parts: Parts) -> Method | None:
    """The event drafter, where there is one."""
    return None if parts.event_drafter is None else drafted_by_events(parts, parts.event_drafter, parts.event_note)


def drafted_by_events(parts: Parts, drafter: Drafter, note: str | None = None) -> Method:
    """A drafter drafts that sees events."""
    return replace(drafted_by(parts, drafter, note), drafter_needs="events")


def head(parts: Parts, name: str, spec: HeadSpec, note: bool = True) -> Method:
    """A head on the target's features, its tree one of its policies. BadInput and BadCheckpoint, one line each."""
    folder, ends = folder_named("head", spec.which, parts.heads), parts.ends
    trained = load_head(folder, ends)
    if spec.tree not in (known := trained.head.tree_policies):
        raise BadInput(f"tree policy '{spec.tree}' is unknown for head {folder.name}: choose one of {', '.join(known)}")
    if spec.branch is not None:
        trained.head.force(spec.branch)
    drafter = trained.head.drafter(name, Drafting(ends, parts.text_ids, parts.tokens.eos_id, spec.tree, trained.rates))
    if isinstance(drafter, FeatureDrafter):
        drafter.called = folder.name
    return drafted_by_head(parts, drafter, f"drafter: head {spec}" if note else None)


def drafted_by_head(parts: Parts, drafter: Drafter, note: str | None = None) -> Method:
    """The drafter of a head drafts."""
    made = drafted_by(parts, drafter, note)
    # EAGLE-2's 60 nodes with the root, fewer where a node's cost says so. A token that is not drafted costs a quarter of a
    # step later: a round of two or three steps, its draft included, gives some ten.
    return replace(made, policy=replace(parts.policy, max_nodes=59, level_cost=0.15, worth=0.25))


def compressed(parts: Parts, spec: CompressionSpec, drafted: Method | None = None) -> Method:
    """LOSSY: the target on fewer of its visual rows, alone or as `drafted` drafts: those drafts are verified by the target that
    sees fewer, so its own answer stays as it is. BadInput and BadCheckpoint, one line each."""
    target = parts.language_target
    made: Target
    if spec.kind == "fastv":
        made = FastVTarget(target.encoder, spec.size)
    elif spec.kind != "packer":
        encoder = CompressedEncoder(target.encoder, spec.kind, spec.size)
        made = LanguageTarget(encoder, lossless=False)
    elif parts.packers is None:
        raise BadInput(f"there is no trained packer: {spec} is for a pair of ours, as `eventspec train` makes")
    else:
        made = LanguageTarget(parts.packers.encoder(spec.size), lossless=False)
    lossy = f"{spec}: lossy, this is not the answer of the target that sees everything"
    own = autoregressive(parts) if drafted is None else drafted
    return replace(own, target=made, notes=(*own.notes, lossy))


def named_head(parts: Parts, name: str) -> Method | None:
    """The head that a pair has under a method's own name."""
    return head(parts, name, HeadSpec(name), note=False) if name in parts.heads else None


def mixed_head(parts: Parts, methods: Mapping[str, Method]) -> Method | None:
    """The head of mixes; one for all of them, which reads a prompt once."""
    mixes = [methods[name] for name in (HYBRID, BLIND) if name in methods]
    known = [one for mix in mixes for one in mix.drafts.after if one.name == MIXED_HEAD and isinstance(one, FeatureDrafter)]
    return drafted_by_head(parts, known[0]) if known else named_head(parts, MIXED_HEAD)


def usual_compression(parts: Parts) -> Method | None:
    """The usual compression of a target that sees frames."""
    frames = isinstance(parts.target, LanguageTarget) and isinstance(parts.target.encoder, FrameEncoder)
    return compressed(parts, USUAL_COMPRESSION) if frames else None


def hybrid(parts: Parts, methods: Mapping[str, Method], blind: bool = False) -> Method | None:
    """Every drafter that there is: the one on events (`Parts.sees_events`), the prior and n-grams while the target encodes;
    after the prefill the head on the target's features, or the prior and n-grams where those pay better
    (`Mixture.worth_it`), and what the drafter on events wrote meanwhile. None without any but n-grams. `blind`: without
    events. A drafter on events that the mixture does not know is weighed as the event drafter, a head as the head that it
    knows.

    After the prefill the event drafter would name little that the head does not, and slow the target down (AMD EPYC, n = 30:
    1.97 rounds an answer with it and without, decoding 2.98x and 3.26x as fast as plainly)."""
    own = None if parts.head_chosen else mixed_head(parts, methods)
    heads = [made for made in (own, *map(methods.get, HEAD_METHODS)) if made is not None][:1]
    models = [methods[name] for name in (parts.sees_events,) if name in methods and not blind]
    texts = [made for made in (prior(parts), ngram(parts)) if made is not None]
    if not heads and not models:
        return None
    first = (heads or models)[0]
    drafters = [one for method in (*(heads or models), *texts) for one in method.drafts.after]
    ahead = tuple(one for method in (*models, *texts) for one in method.drafts.ahead)
    writing = tuple(one for one in ahead if isinstance(one, LanguageDrafter))
    reused = [ReusedDrafter(one.written) for one in writing]
    known = next((name for name in (MIXED_HEAD, *HEAD_METHODS) if name in parts.mixture.weights), None)
    like = {one.name: EVENT_METHOD for method in models for one in method.drafts.of_all}
    like |= {one.name: known for method in heads for one in method.drafts.after if known is not None}
    mixture = replace(parts.mixture.standing_in(like), end=parts.tokens.eos_id)
    if mixture.weights:
        mixture = replace(mixture, weights={ReusedDrafter.name: WRITTEN, **mixture.weights})
    drafts = Drafts(ahead, (*drafters, *reused), mixture, mixture.worth_it, writing)
    notes = dict.fromkeys(note for method in (*heads, *models) for note in method.notes)
    return replace(first, drafts=drafts, policy=replace(first.policy, patience=2.0), drafter_needs=None, notes=tuple(notes))


def cascade(parts: Parts, methods: Mapping[str, Method]) -> Method | None:
    """The event drafter, whose drafts the target on a single frame looks through first. None without an event drafter, and for
    a target that is not ours."""
    events, target = methods.get(EVENT_METHOD), parts.target
    if events is None or not isinstance(target, LanguageTarget) or not isinstance(target.encoder, FrameEncoder):
        return None
    qualifier = LanguageTarget(target.encoder.of_one(), lossless=False)
    drafter = Cascade(CASCADE, events.drafts.after[0], qualifier, parts.tokens.eos_id)
    # A level of its draft costs what the drafter's costs, and its look at all of them a target's forward.
    return replace(events, drafts=Drafts.by(drafter))


def aligned(parts: Parts, name: str | None = None) -> Method | None:
    """The target's own language model on adapted event rows, ahead only: after the prefill its step costs what the target's
    own does. `name` of an adapter or its folder, by default the pair's first; None where there is none. BadInput and
    BadCheckpoint, one line each."""
    if parts.adapters is None or (which := name or parts.adapters.usual(*PROMPTED)) is None:
        return None
    lookahead = None if parts.prior is None else parts.prior.sure_of
    encoder = parts.adapters.encoder(which, parts.language_target.seen)
    drafter = LanguageDrafter(ALIGNED, encoder, parts.tokens.eos_id, lookahead=lookahead)
    note = parts.notes if name is None else (*parts.notes, f"drafter: adapter {name}")
    return replace(autoregressive(parts), drafts=Drafts((drafter,)), drafter_needs="events", notes=note)


def event_eagle(parts: Parts, name: str | None = None) -> Method | None:
    """The event drafter, whose features an adapter maps to those of the target, so that the target's own head names its tokens.
    `name` of an adapter to features or its folder, by default the pair's first; None where there is none. BadInput and
    BadCheckpoint, one line each."""
    adapters = parts.adapters
    if adapters is None or (which := name or adapters.usual("features")) is None:
        return None
    drafter: Drafter
    scored = adapters.scored(which, parts.language_target.seen)
    if adapters.other_ids is not None or KINDS[adapters.config(which).kind].rolls:
        drafter = RespelledDrafter(EVENT_EAGLE, adapters.events, parts.tokens, adapters.other_ids, scored)
    else:
        lookahead = None if parts.prior is None else parts.prior.sure_of
        events, rows = adapters.events, adapters.events.language.config.vocab_size  # what it reads must have a row there
        drafter = LanguageDrafter(EVENT_EAGLE, events, parts.tokens.eos_id, rows, lookahead, scored)
    return drafted_by_events(parts, drafter, None if name is None else f"drafter: the event drafter through adapter {name}")


def drafting_by(parts: Parts, adapter: str) -> str:
    """The method that drafts through an adapter. BadInput and BadCheckpoint, one line each."""
    if parts.adapters is None:
        raise BadInput("adapters are for a pair of ours, see `eventspec train adapter`")
    return EVENT_EAGLE if parts.adapters.config(adapter).output == "features" else ALIGNED


def skip_encode(
    parts: Parts, name: str | None = None, risk: float | None = None, decision: Decision | None = None
) -> Method | None:
    """LOSSY: answers from events alone where a rule allows it, usually where the share of wrong ones among all stays below
    `risk` (default `USUAL_RISK`). None where there is no adapter that was calibrated for it; BadInput and BadCheckpoint for an
    adapter, a risk or a rule that was asked for and cannot be had: who does not ask, and uses other methods, is not kept from
    it by a calibration that cannot be read."""
    adapters, allowed, asked = parts.adapters, USUAL_RISK if risk is None else risk, (name, risk, decision) != (None,) * 3
    if adapters is None or (which := name or adapters.usual(*PROMPTED)) is None:
        return None
    rule, calibrated = decision or Decision(USUAL_RULE), None
    try:
        calibrated = None if rule.calibration is None else adapters.calibrated(which, rule.calibration)
    except BadCheckpoint:
        if not asked:
            return None
        raise
    grouped = rule.argument if rule.risky else ""
    if rule.calibration is not None and (calibrated is None or (grouped and grouped not in calibrated.groups.labels)):
        if not asked:
            return None
        raise uncalibrated(which, str(rule) if grouped else rule.calibration)
    few = calibrated.few(allowed) if calibrated is not None and rule.risky else None
    if few is not None and risk is not None:
        raise BadInput(few)
    target = SubstitutedTarget(parts.target, substitute_of(parts, which), rule, calibrated, allowed, which)
    how = f"lossy, by adapter {which}" + ("" if rule == Decision(USUAL_RULE) else f" and rule {rule}")
    if rule.risky:
        kept = f"{allowed:.3g} at most are not the target's on average; for other recordings nothing is known"
        notes = (*parts.notes, f"{how}: of answers about recordings like those of its calibration, {kept}")
    else:
        notes = (*parts.notes, f"{how}: how many of its answers are not the target's is not known")
    if rule.sees_frames:
        notes = (*notes, f"rule {rule} compares with the target's own: its frames are encoded, and no time is saved there")
    if few is not None:
        notes = (*notes, f"{few}; the target is always asked")
    elif rule.risky and not grouped and target.threshold > 1:
        notes = (*notes, f"at a risk of {allowed:.3g} no answer is sure enough: the target is always asked")
    made = skipping(replace(autoregressive(parts), policy=replace(parts.policy, max_nodes=24)), target)
    return replace(made, drafter_needs="events", notes=notes)


def skipping(method: Method, target: SubstitutedTarget) -> Method:
    """A method with a target that answers from events where they are enough. Where the frames are asked after all, what was
    answered is the draft; it costs nothing any more."""
    return replace(method, target=target, drafts=Drafts((), (ReferenceDrafter(ALIGNED, target.drafted),)))


def substitute_of(parts: Parts, name: str) -> Substitute:
    """Who answers from events alone, through an adapter. BadInput and BadCheckpoint, one line each."""
    if parts.adapters is None:
        raise BadInput("adapters are for a pair of ours, see `eventspec train adapter`")
    adapters, prior = parts.adapters, parts.prior
    target, plain = LanguageTarget(adapters.encoder(name), lossless=False), Sampling(max_new_tokens=LONGEST)
    made = Substitute(target, lambda question, answer: 0.0, parts.tokens.sampling(plain))
    made = replace(made, devices=adapters.devices, compare=adapters.compared)
    if prior is None:
        return made
    return replace(made, blind=prior.log_probability, drafts=Drafts.by(PriorDrafter(prior, parts.tokens.eos_id)))


def auto(parts: Parts, methods: Mapping[str, Method]) -> Method | None:
    """One of several methods, chosen for each question; None where there is nothing to choose from: the two mixes and the
    baseline, else one of each kind. A mix has the drafters of the single methods, and those alone that pay; they are so close
    to it that telling them apart costs more answers than it saves. Only where a recording was read before, so that a head finds
    its features there, a head alone is better for all but brief answers."""
    mixes, singles = ((HYBRID,), (BLIND,)), (HEAD_METHODS, (EVENT_METHOD,), ("prior", "ngram"))
    both = HYBRID in methods and BLIND in methods
    kinds = (*(() if both else singles), *mixes, (BASELINE,))  # tried in this order
    found = [next((name for name in kind if name in methods), None) for kind in kinds]
    names = [name for name in found if name is not None]
    if len(names) < 2:
        return None
    heads = [name for name in HEAD_METHODS if name in methods][:1] if both else []
    needs = dict.fromkeys({EVENT_METHOD, HYBRID} & set(names), "events")
    preferred = HYBRID if both else ""
    chooser = Chooser([*names, *heads], needs, parts.prior, frozenset({BASELINE}), frozenset(heads), preferred)
    return replace(autoregressive(parts), choice=chooser)


@dataclass(frozen=True)
class Shipped:
    """What builds a method of a target's parts (None where they are not enough). `composed`: and of the methods above it in
    `BUILDERS`, so that it is another one when one of them is."""

    build: Callable[..., Method | None]
    composed: bool = False

    def of(self, parts: Parts, methods: Mapping[str, Method]) -> Method | None:
        """The method, of these parts and methods."""
        return self.build(parts, methods) if self.composed else self.build(parts)


BUILDERS = {
    BASELINE: Shipped(autoregressive),
    EVENT_METHOD: Shipped(cross_modal),
    "eagle": Shipped(partial(named_head, name="eagle")),
    "specvlm": Shipped(partial(named_head, name="specvlm")),
    HYBRID: Shipped(hybrid, composed=True),
    BLIND: Shipped(partial(hybrid, blind=True), composed=True),
    CASCADE: Shipped(cascade, composed=True),
    ALIGNED: Shipped(aligned),
    EVENT_EAGLE: Shipped(event_eagle),
    SKIP: Shipped(skip_encode),
    LOSSY: Shipped(usual_compression),
    "ngram": Shipped(ngram),
    "prior": Shipped(prior),
    AUTO: Shipped(auto, composed=True),
}
"""What builds each of `METHODS`, in their order."""


def build_methods(parts: Parts) -> dict[str, Method]:
    """Every method that the parts are enough for, in the usual order."""
    methods = dict[str, Method]()
    for name, shipped in BUILDERS.items():
        if (method := shipped.of(parts, methods)) is not None:
            methods[name] = method
    return methods


def rebuild_methods(parts: Parts, before: Mapping[str, Method], made: Mapping[str, Method]) -> dict[str, Method]:
    """The methods of `before` with others `made` in their place, and those that are composed of others built again. What a
    method was measured to cost stays until it is measured again; a new one begins with what verification is known to cost."""
    for name, shipped in BUILDERS.items():
        if shipped.composed and (method := shipped.of(parts, {**before, **made})) is not None:
            made = {**made, name: method}

    def costing(name: str, method: Method) -> Method:
        known = before.get(name, before.get(BASELINE))
        if known is None:
            return method
        policy = method.policy.costing_as(known.policy) if name in before else method.policy.verifying_as(known.policy)
        return replace(method, policy=policy, learnt=known.learnt and LearntCosts())

    return {**before, **{name: costing(name, method) for name, method in made.items()}}
