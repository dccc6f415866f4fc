"""LOSSY: a target that does not look at the frames where events are enough.

Its language model answers from adapted event rows first, and a rule (`align.deciding`) says whether that answer may stand. By
the usual one, how sure it was, token by token, how likely the answer is without any recording, and how much moved give the
probability that this is the answer of the target that sees (`align.acceptance`); above a threshold that keeps a calibrated risk
the answer stands, and no frame is ever encoded. Below it the target is asked, with the answer from events as its draft. Where
earlier answers to a question were mostly not sure enough, and the lanes are two, the frames are encoded beside the answer from
events: being unsure then costs no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from weakref import WeakKeyDictionary

import torch

from eventspec.align.acceptance import Calibrated
from eventspec.align.deciding import FEATURES as FEATURES
from eventspec.align.deciding import Decision
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
from eventspec.models.session import LanguageContext, LanguageTarget
from eventspec.text.pieces import StopDetector
from eventspec.trace import Lane
from eventspec.tree import depths

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
Compare = Callable[[Media, Context, Context], tuple[torch.Tensor, torch.Tensor]]
"""(recording, adapted events, the target's own) -> what the adapter wrote and the target's own at the same places, [T, D]."""


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
    compare: Compare | None = None

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
        logs = self.logits(read, question, tokens).float().log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        sure = float(logs.min()), float(logs.sum())
        about = (*sure, math.log(len(tokens)), self.blind(question, tokens), rate_of(media))
        return Drafted(tokens, about, trace.sizes)

    def logits(self, read: Context, question: str, tokens: list[int]) -> torch.Tensor:
        """At every token of an answer to a question about what was read, [N, V]."""
        return read.open(question, self.plain, NO_TAIL, Trace()).score(Proposal.chain(tokens[:-1])).logits


def rate_of(media: Media) -> float:
    """log(1 + events a second); 0 without any."""
    if media.events is None or not len(times := media.events.t):
        return 0.0
    return math.log1p(len(times) / max(1e-3, (int(times[-1]) - int(times[0])) / 1e6))


@dataclass
class Known:
    """As `deciding.Evidence`, of a recording whose events are encoded by `adapt`, and its frames by `encode`."""

    substitute: Substitute
    media: Media
    question: str
    adapt: Callable[[], Context | None]
    encode: Callable[[], Context]
    seed: int = 0

    @classmethod
    def of(cls, substitute: Substitute, media: Media, question: str, adapted: Context, own: Context) -> Known:
        """Of events and frames that were encoded before."""
        return cls(substitute, media, question, lambda: adapted, lambda: own)

    @property
    def adapted(self) -> LanguageContext:
        """The events as the target's language model reads them."""
        found = self.adapt()
        assert isinstance(found, LanguageContext), "there are events, and `Substitute.aligned` encodes them"
        return found

    @cached_property
    def drafted(self) -> Drafted:
        """The answer from events."""
        return self.substitute.answer(self.media, self.question, self.adapt())

    @property
    def tokens(self) -> list[int]:
        return self.drafted.token_ids

    @property
    def features(self) -> tuple[float, ...] | None:
        return self.drafted.features

    @cached_property
    def rate(self) -> float:
        return rate_of(self.media)

    @cached_property
    def entropy(self) -> tuple[float, ...] | None:
        if not self.rate:
            return None
        logs = self.substitute.logits(self.adapted, self.question, [0])[0].float().log_softmax(-1)
        return (-float((logs.exp() * logs).sum()),)

    @cached_property
    def pooled(self) -> tuple[float, ...] | None:
        if not self.rate:
            return None
        adapted = self.adapted
        prompt = adapted.encoder.prompt(self.question, adapted.visual)
        parts = adapted.visual, prompt.rows[prompt.visual[1] :]
        return tuple(torch.cat([part.float().mean(0) for part in parts]).tolist())

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.substitute.compare is not None, "whoever chose a rule that compares looked"
        return self.substitute.compare(self.media, self.adapted, self.encode())

    @property
    def logits(self) -> tuple[torch.Tensor, torch.Tensor]:
        adapted, own = (self.substitute.logits(read, self.question, self.tokens) for read in (self.adapted, self.encode()))
        return adapted, own


@dataclass(frozen=True)
class Judged:
    """How surely the answer from events may stand, by a rule, and that answer; None where the rule said no before it was made,
    or is yet to be asked."""

    sure: float
    drafted: Drafted | None

    def stands(self, least: float) -> bool:
        """Whether it may, from `least` on. What had no events, or did not end, never does."""
        return self.drafted is not None and self.drafted.features is not None and self.sure >= least


class SubstitutedTarget(Target):
    """`target`, asked only where a rule, `decision`, does not let the answer from events stand; always, where that keeps a
    `risk` and its calibration is of too few recordings. `adapter` is the name of what maps the events."""

    lossless = False

    def __init__(
        self,
        target: Target,
        substitute: Substitute,
        decision: Decision,
        calibrated: Calibrated | None,
        risk: float,
        adapter: str,
    ) -> None:
        self.target, self.substitute, self.decision, self.adapter = target, substitute, decision, adapter
        self.calibrated, self.risk = calibrated, risk
        self.workers = Workers("two", *substitute.devices)  # answers from events beside an encoding of the frames
        self._answers: WeakKeyDictionary[Media, dict[str, Judged]] = WeakKeyDictionary()
        self._sure: dict[str, tuple[float, float]] = {}

    @property
    def threshold(self) -> float:
        """The common one of a rule that keeps a risk."""
        return math.inf if self.calibrated is None else self.calibrated.least(self.risk)

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
        return SubstitutedTarget(self.target, self.substitute, self.decision, self.calibrated, self.risk, self.adapter)

    def answers(self, media: Media) -> dict[str, Judged]:
        """What was answered from a recording's events, by question."""
        return self._answers.setdefault(media, {})

    def drafted(self, media: Media, question: str) -> list[int]:
        """Tokens of an answer from events that was tried before; [] for another question."""
        found = self.answers(media).get(question)
        return [] if found is None or found.drafted is None else found.drafted.token_ids

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
        judged, least = self._judged(question, trace, sampling.seed)
        trace.rule, trace.skipped = str(owner.decision), judged.stands(least)
        if judged.drafted is not None:
            trace.sizes["drafter"] = judged.drafted.sizes.get("visual", 0)
        said = owner.decision.said(judged.sure)
        if not trace.skipped or judged.drafted is None:
            if judged.drafted is None or judged.drafted.features is not None:
                trace.note(f"events were not enough, the target was asked: {said}")
            return self._encoded(trace).open(question, sampling, tail, trace, taps)
        trace.sizes.update(judged.drafted.sizes)
        why = "to decide" if owner.decision.sees_frames else "beside, and not used"
        cost = "no frame was encoded" if self._context is None else f"its frames were encoded {why}"
        trace.note(f"answered from events alone, {cost}: {said}")
        return SaidSession(judged.drafted.token_ids, owner.limits.vocabulary)

    def _judged(self, question: str, trace: Trace, seed: int) -> tuple[Judged, float]:
        """What the rule says of a question, known or new, and from which number on it says yes; a doubtful answer comes from
        the other lane while this one encodes the frames."""
        owner = self.owner
        known, evidence = owner.answers(self.media), self._known(question, trace, seed)
        least = partial(owner.decision.least, evidence, owner.calibrated, owner.risk)
        if (judged := known.get(question)) is not None:
            if judged.drafted is not None:
                evidence.drafted = judged.drafted
            return judged, least()
        # On one device there is no lane to spare.
        if (
            trace.device_plan != "two"
            or self._context is not None
            or not (owner.decision.sees_frames or owner.doubts(question))
        ):
            self._draft(evidence, trace, "target")
        else:
            coming = owner.workers.start("drafter", lambda: self._draft(evidence, trace, "drafter"))
            self._encoded(trace)
            coming.result()
        judged = Judged(owner.decision.sure(evidence, owner.calibrated), vars(evidence).get("drafted"))
        known[question] = judged
        if len(known) > KEPT:
            del known[next(iter(known))]
        owner.remember(question, judged.stands(least()))
        return judged, least()

    def _known(self, question: str, trace: Trace, seed: int) -> Known:
        """What a rule may ask of a question, once the events are encoded."""
        substitute = self.owner.substitute
        return Known(substitute, self.media, question, lambda: self._aligned, lambda: self._encoded(trace), seed)

    def _draft(self, evidence: Known, trace: Trace, lane: Lane) -> None:
        """Encode the events and answer from them, but where the rule says no before."""
        began, owner, decision = trace.now(), self.owner, self.owner.decision
        if self._aligned is None and self.media.events is not None:
            own = trace.beside()
            self._aligned = owner.substitute.aligned.encode(self.media, own)
            # The event model's vision is the drafter's, whoever's thread it ran on: the target saw no frame.
            trace.spans += [replace(span, lane=lane if span.stage == "transfer" else "drafter") for span in own.spans]
            trace.crossed += own.crossed
        asked = evidence, owner.calibrated
        if not decision.early or decision.sure(*asked) >= decision.least(*asked, owner.risk):
            _ = evidence.drafted
        trace.span("draft", lane, began)

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
