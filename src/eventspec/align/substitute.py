"""LOSSY: a target that does not look at the frames where events are enough.

Its language model answers from adapted event rows first. How sure it was, token by token, how likely the answer is without any
recording, and how much moved give the probability that this is the answer of the target that sees (`align.acceptance`);
above a threshold that keeps a calibrated risk the answer stands, and no frame is ever encoded. Below it the target is asked,
with the answer from events as its draft. Where earlier answers to a question were mostly not sure enough, and the lanes are
two, the frames are encoded beside the answer from events: being unsure then costs no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import torch

from eventspec.align.acceptance import Calibrated
from eventspec.core import (
    BadInput,
    Context,
    Limits,
    Media,
    Proposal,
    Request,
    Sampling,
    Scores,
    TappedPrompt,
    Target,
    TargetSession,
    Trace,
    Verdict,
)
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.models.prompt import Frames
from eventspec.models.session import LanguageTarget
from eventspec.text.pieces import StopDetector
from eventspec.trace import Lane
from eventspec.tree import depths

FEATURES = ("least", "sum", "length", "blind", "events")
"""Log-probability of the least sure token, and of all together; the logarithm of how many there are; log-probability without
any recording; the logarithm of how many events came a second."""
LONGEST = 256
"""Tokens of an answer that is judged, at most; a longer one is left to the target."""
SURE = 50.0
"""Logit of a token that is said already."""
KEPT = 32
"""Questions about a recording whose answers from events are kept."""
REMEMBERED = 256
"""Questions of which it is kept how often their answers from events were sure enough."""
FORGETS = 0.9
"""What an earlier answer counts beside one more."""
_FREE = ("max_new_tokens", "stop_strings", "seed", "skip_special_tokens")
"""Settings that cut an answer, or do nothing to a greedy one."""
Blind = Callable[[str, list[int]], float]
"""(question, answer) -> its log-probability without a recording."""


@dataclass(frozen=True)
class Drafted:
    """An answer from adapted event rows, what is known of it, by `FEATURES`, and how many rows its prompt had, text and visual.
    Features are None where there were no events, or it did not end."""

    token_ids: list[int]
    features: tuple[float, ...] | None
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Substitute:
    """Answers from events alone: `aligned` reads adapted event rows, `drafts` make that faster and change nothing, `blind`
    knows what answers usually say; `plain` is how a pair answers with default settings and LONGEST tokens."""

    aligned: LanguageTarget
    blind: Blind
    plain: Sampling
    drafts: Drafts = field(default_factory=Drafts)
    workers: Workers = field(default_factory=lambda: Workers("one"))
    devices: tuple[str, str] = ("cpu", "cpu")
    """Where the target and the event model compute."""

    def answer(self, media: Media, question: str, context: Context | None = None) -> Drafted:
        """The whole answer to a question, as plain greedy decoding gives it. On the target's lane; cancelling does not stop it.
        `context` where the events were encoded before. BadInput without events."""
        events, ends, trace = media.events, self.plain.stop_ids, Trace()
        if events is None:
            raise BadInput("the recording has no events: there is nothing to answer from without frames")
        read, stop = context or self.aligned.encode(media, Trace()), StopDetector(ends)
        request = Request(media, question, self.plain)
        asked = Asking(self.aligned, request, stop, self.drafts, DraftPolicy(), encode=lambda trace: read)
        tokens = run(Decoding(asked, self.workers, trace), self.workers).token_ids
        if not len(events.t) or tokens[-1] not in ends:
            return Drafted(tokens, None, trace.sizes)
        scores = read.open(question, self.plain, NO_TAIL, Trace()).score(Proposal.chain(tokens[:-1]))
        logs = scores.logits.float().log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        rate = len(events.t) / max(1e-3, (int(events.t[-1]) - int(events.t[0])) / 1e6)
        about = (float(logs.min()), float(logs.sum()), math.log(len(tokens)), self.blind(question, tokens), math.log1p(rate))
        return Drafted(tokens, about, trace.sizes)


class SubstitutedTarget(Target):
    """`target`, asked only where the answer from events is not sure enough for `risk`; always, where the calibration is of too
    few recordings for that. `adapter` is the name of what maps the events."""

    lossless = False

    def __init__(self, target: Target, substitute: Substitute, calibrated: Calibrated, risk: float, adapter: str) -> None:
        self.target, self.substitute, self.calibrated, self.adapter = target, substitute, calibrated, adapter
        self.risk, self.threshold = risk, math.inf if calibrated.few(risk) else calibrated.threshold(risk)
        self.workers = Workers("two", *substitute.devices)  # answers from events beside an encoding of the frames
        self._answers: WeakKeyDictionary[Media, dict[str, Drafted]] = WeakKeyDictionary()
        self._sure: dict[str, tuple[float, float]] = {}

    @cached_property
    def limits(self) -> Limits:
        return self.target.limits

    def asking(self, target: Target) -> SubstitutedTarget:
        """The same, with another object of the same target."""
        made = copy(self)  # what was answered from events is known to both
        made.target = target
        return made

    def reset(self) -> SubstitutedTarget:
        """The same without any answers yet."""
        return SubstitutedTarget(self.target, self.substitute, self.calibrated, self.risk, self.adapter)

    def answers(self, media: Media) -> dict[str, Drafted]:
        """What was answered from a recording's events, by question."""
        return self._answers.setdefault(media, {})

    def drafted(self, media: Media, question: str) -> list[int]:
        """Tokens of an answer from events that was tried before; [] for another question."""
        found = self.answers(media).get(question)
        return [] if found is None else found.token_ids

    def doubts(self, question: str) -> bool:
        """Whether earlier answers to a question, or to all where it is a new one, were sure enough less than half of the time;
        True without any."""
        known = [self._sure[question]] if question in self._sure else list(self._sure.values())
        return 2 * sum(sure for sure, _ in known) <= sum(count for _, count in known)

    def remember(self, question: str, sure: bool) -> None:
        """One more answer that was sure enough, or not."""
        before, count = self._sure.pop(question, (0.0, 0.0))
        self._sure[question] = (FORGETS * before + sure, FORGETS * count + 1)
        while len(self._sure) > REMEMBERED:
            del self._sure[next(iter(self._sure))]

    def encode(self, media: Media, trace: Trace) -> SubstitutedContext:
        """As `core.Target.encode`; nothing is encoded yet."""
        return SubstitutedContext(self, media)

    def score(self, batch: Sequence[tuple[TargetSession, Proposal]]) -> list[Scores]:
        """As `core.Target.score`; what was said already takes no forward."""
        asked = [(session, proposal) for session, proposal in batch if not isinstance(session, SaidSession)]
        found = iter(self.target.score(asked) if asked else [])
        return [session.score(proposal) if isinstance(session, SaidSession) else next(found) for session, proposal in batch]

    def probability(self, drafted: Drafted) -> float:
        """That it is the answer of the target that sees; 0 for one that is not to be judged, or of which nothing can be
        computed: the target is asked then."""
        if drafted.features is None or not all(map(math.isfinite, drafted.features)):
            return 0.0
        return float(self.calibrated.predictor.probabilities([drafted.features])[0])


class SubstitutedContext(Context):
    """As `core.Context`: a recording whose frames are encoded with the first question that needs them."""

    def __init__(self, owner: SubstitutedTarget, media: Media) -> None:
        self.owner, self.media = owner, media
        self._context: Context | None = None
        self._aligned: Context | None = None
        self._later: list[Frames] = []
        self._whole = False

    def keep_outputs(self) -> None:
        self._whole = True

    def extend(self, frames: Frames, trace: Trace) -> None:
        if self._context is None:
            self._later.append(frames)
        else:
            self._context.extend(frames, trace)

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> TargetSession:
        """As `core.Context.open`; BadInput for settings that change an answer, whose risk was not measured."""
        owner, plain = self.owner, self.owner.substitute.plain
        for item in fields(Sampling):
            if item.name not in _FREE and getattr(sampling, item.name) != getattr(plain, item.name):
                raise BadInput(f"the risk of skip-encode was calibrated on plain greedy answers: leave out {item.name}")
        drafted = self._drafted(question, trace)
        trace.sizes["drafter"] = drafted.sizes.get("visual", 0)
        probability = owner.probability(drafted)
        trace.skipped = drafted.features is not None and probability >= owner.threshold
        if not trace.skipped:
            if drafted.features is not None:
                trace.note(f"events were not enough, the target was asked: probability {probability:.3f} of its answer")
            return self._encoded(trace).open(question, sampling, tail, trace, taps)
        trace.sizes.update(drafted.sizes)
        cost = "no frame was encoded" if self._context is None else "its frames were encoded beside, and not used"
        trace.note(f"answered from events alone, {cost}: the target's answer with probability {probability:.3f}")
        return SaidSession(drafted.token_ids, owner.limits.vocabulary)

    def _drafted(self, question: str, trace: Trace) -> Drafted:
        """The answer from events, known or new; a doubtful one comes from the other lane while this one encodes the frames."""
        owner = self.owner
        if (known := owner.answers(self.media).get(question)) is not None:
            return known
        # On one device there is no lane to spare.
        if trace.device_plan != "two" or self._context is not None or not owner.doubts(question):
            drafted = self._answered(question, trace, "target")
        else:
            coming = owner.workers.start("drafter", lambda: self._answered(question, trace, "drafter"))
            self._encoded(trace)
            drafted = coming.result()
        owner.remember(question, drafted.features is not None and owner.probability(drafted) >= owner.threshold)
        return drafted

    def _answered(self, question: str, trace: Trace, lane: Lane) -> Drafted:
        """A new answer from events, which is kept: a recording that is read in parts is opened often."""
        began, known, substitute = trace.now(), self.owner.answers(self.media), self.owner.substitute
        if self._aligned is None and self.media.events is not None:
            own = trace.beside()
            self._aligned = substitute.aligned.encode(self.media, own)
            # The event model's vision is the drafter's, whoever's thread it ran on: the target saw no frame.
            trace.spans += [replace(span, lane=lane if span.stage == "transfer" else "drafter") for span in own.spans]
            trace.crossed += own.crossed
        drafted = known[question] = substitute.answer(self.media, question, self._aligned)
        if len(known) > KEPT:
            del known[next(iter(known))]
        trace.span("draft", lane, began)
        return drafted

    def _encoded(self, trace: Trace) -> Context:
        if self._context is None:
            self._context = self.owner.target.encode(self.media, trace)
            if self._whole:
                self._context.keep_outputs()
            for frames in self._later:
                self._context.extend(frames, trace)
            self._later = []
        return self._context


class SaidSession:
    """As `core.TargetSession`, of an answer that is there: every score says its next tokens."""

    chunked = False

    def __init__(self, tokens: list[int], vocabulary: int, at: int = 0) -> None:
        self.tokens, self.vocabulary, self.at = tokens, vocabulary, at

    @property
    def room(self) -> int:
        return len(self.tokens)

    def fresh_copy(self) -> TargetSession:
        return SaidSession(self.tokens, self.vocabulary)

    def prompt(self, visual: bool = True) -> TappedPrompt:
        """As `core.TargetPrompt.prompt`; there is none to be seen."""
        return TappedPrompt(torch.zeros(0, 0), None, (0, 0))

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`, logits float32 [N+1, V]: a node's row says what follows the answer and its level."""
        levels = [0, *(depth + 1 for depth in depths(proposal.parents.tolist()))]
        said = torch.tensor([self.tokens[min(self.at + level, len(self.tokens) - 1)] for level in levels])
        return Scores(SURE * torch.nn.functional.one_hot(said, self.vocabulary).float())

    def commit(self, verdict: Verdict) -> None:
        self.at += len(verdict.tokens)
