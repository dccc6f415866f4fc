"""LOSSY: a target that does not look at the frames where events are enough.

Its language model answers from adapted event rows first. How sure it was, token by token, how likely the answer is to whoever
saw no recording, and how much moved give the probability that this is the answer of the target that sees (`align.acceptance`);
above a threshold that keeps a calibrated risk the answer stands, and no frame is ever encoded. Below it the target is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eventspec.align.acceptance import Calibrated, check_risk
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
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.engine.workers import Workers
from eventspec.models.prompt import Frames
from eventspec.models.session import LanguageTarget

FEATURES = ("least", "sum", "length", "blind", "events")
"""Log-probability of the least sure token, and of all together; the logarithm of how many there are; log-probability to whoever
saw no recording; the logarithm of how many events came a second."""
MOST = 120
"""Tokens whose log-probabilities are looked at."""
SURE = 50.0
"""Logit of a token that is said already."""
_DRAWN = (
    *("temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "bad_words", "min_new_tokens", "constraint"),
)
Blind = Callable[[str, list[int]], float]
"""(question, answer) -> its log-probability to somebody who saw no recording."""


@dataclass(frozen=True)
class Drafted:
    """An answer from adapted event rows, and what is known of it, by `FEATURES`."""

    token_ids: list[int]
    features: tuple[float, ...]


@dataclass(frozen=True)
class Substitute:
    """Answers from events alone: `aligned` reads adapted event rows, `drafts` make that faster and change nothing, `blind`
    knows what answers usually say."""

    aligned: LanguageTarget
    blind: Blind
    drafts: Drafts = field(default_factory=Drafts)
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    workers: Workers = field(default_factory=lambda: Workers("one"))

    def answer(self, media: Media, question: str, sampling: Sampling) -> Drafted:
        """The answer to a question, as plain greedy decoding gives it. On the target's lane. BadInput without events."""
        events, ends = media.events, frozenset(sampling.stop_ids)
        if events is None:
            raise BadInput("the recording has no events: there is nothing to answer from without frames")

        def stop(tokens: Sequence[int]) -> int | None:
            return next((place for place, token in enumerate(tokens, 1) if token in ends), None)

        context, request = self.aligned.encode(media, Trace()), Request(media, question, sampling)
        how = (self.aligned, self.drafts, request, self.policy, self.workers, Trace(), stop)
        tokens = run(*how, encode=lambda trace: context).token_ids
        seen = tokens[:MOST]
        scores = context.open(question, sampling, NO_TAIL, Trace()).score(Proposal.chain(seen[:-1]))
        logs = scores.logits.float().log_softmax(-1)[torch.arange(len(seen)), torch.tensor(seen)]
        seconds = (int(events.t[-1]) - int(events.t[0])) / 1e6 if len(events.t) else 0.0
        rate = len(events.t) / max(1e-3, seconds)
        about = (float(logs.min()), float(logs.sum()), math.log(len(tokens)), self.blind(question, tokens), math.log1p(rate))
        return Drafted(tokens, about)


class SubstitutedTarget:
    """`target`, asked only where the answer from events is not sure enough for `risk`."""

    lossless = False

    def __init__(self, target: Target, substitute: Substitute, calibrated: Calibrated, risk: float) -> None:
        self.target, self.substitute, self.calibrated = target, substitute, calibrated
        self.risk, self.threshold = check_risk(risk), calibrated.threshold(risk)

    @property
    def limits(self) -> Limits:
        """As `core.Target.limits`."""
        return self.target.limits

    def encode(self, media: Media, trace: Trace) -> SubstitutedContext:
        """As `core.Target.encode`; nothing is encoded yet."""
        return SubstitutedContext(self, media)

    def probability(self, drafted: Drafted) -> float:
        """That it is the answer of the target that sees."""
        return float(self.calibrated.predictor.probabilities([drafted.features])[0])


class SubstitutedContext:
    """As `core.Context`: a recording that is encoded with the first question that needs it."""

    def __init__(self, owner: SubstitutedTarget, media: Media) -> None:
        self.owner, self.media = owner, media
        self._context: Context | None = None
        self._later: list[Frames] = []

    def extend(self, frames: Frames, trace: Trace) -> None:
        """As `core.Context.extend`."""
        if self._context is None:
            self._later.append(frames)
        else:
            self._context.extend(frames, trace)

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> TargetSession:
        """As `core.Context.open`; BadInput for sampled answers, whose risk nobody has measured."""
        plain = Sampling(max_new_tokens=sampling.max_new_tokens)
        for name in _DRAWN:
            if getattr(sampling, name) != getattr(plain, name):
                raise BadInput(f"the risk of skip-encode was calibrated on plain greedy answers: leave out {name}")
        owner, began = self.owner, trace.now()
        drafted = owner.substitute.answer(self.media, question, sampling)
        trace.span("draft", "target", began)
        probability = owner.probability(drafted)
        trace.skipped = probability >= owner.threshold
        if trace.skipped:
            trace.note(
                f"answered from events alone, no frame was encoded: the target's answer with probability {probability:.3f}"
            )
            return SaidSession(drafted.token_ids, owner.limits.vocabulary)
        return self._encoded(trace).open(question, sampling, tail, trace, taps)

    def _encoded(self, trace: Trace) -> Context:
        if self._context is None:
            self._context = self.owner.target.encode(self.media, trace)
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
        """As `core.TargetSession.room`."""
        return len(self.tokens)

    def again(self) -> TargetSession:
        """As `core.TargetSession.again`."""
        return SaidSession(self.tokens, self.vocabulary)

    def prompt(self) -> TappedPrompt:
        """As `core.TargetPrompt.prompt`; there is none to be seen."""
        nothing = torch.zeros(0, 0)
        return TappedPrompt(nothing, None, (0, 0))

    def score(self, proposal: Proposal) -> Scores:
        """As `core.TargetSession.score`: a node's row says what follows the answer so far and the node's level."""
        levels: list[int] = []
        for parent in proposal.parents.tolist():
            levels.append(1 if parent < 0 else levels[parent] + 1)
        return Scores(torch.stack([self._row(self.at + level) for level in (0, *levels)]))

    def commit(self, verdict: Verdict) -> None:
        """As `core.TargetSession.commit`."""
        self.at += len(verdict.tokens)

    def _row(self, place: int) -> Tensor:
        row = torch.zeros(self.vocabulary)
        row[self.tokens[min(place, len(self.tokens) - 1)]] = SURE
        return row
