"""One answer in the making: what it waits for, what its next forward verifies, and what it makes of the scores.

It never waits, and knows no thread: `engine.scheduler` asks it what is due and hands it scores, for one answer or for many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from torch import Tensor

from eventspec.core import Context, Proposal, Request, Scores, Target, TargetSession, Trace, never
from eventspec.engine.answer import Answer, Outcome, StopCheck
from eventspec.engine.display import Display, Emit, ignore
from eventspec.engine.distribution import plain_greedy
from eventspec.engine.drafting import Drafting
from eventspec.engine.drafts import Drafts
from eventspec.engine.executor import Executor
from eventspec.engine.numerics import Numerics, PlainDecoding
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.trace.record import Round
from eventspec.tree import named_by, within

Encode = Callable[[Trace], Context]
"""Gives a recording as a target sees it."""


class Due(Enum):
    """What an answer waits for."""

    PROMPT = auto()
    """The target is to encode the recording and open a session: `Decoding.read`."""
    DRAFT = auto()
    """A draft that is in the making, for `Decoding.waits` seconds at most."""
    FORWARD = auto()
    """A forward of the target over `Decoding.proposal`, whose scores `Decoding.take` takes."""
    NOTHING = auto()
    """It has ended."""


@dataclass(frozen=True)
class Asking:
    """A question, who answers it and how. `emit` hears every update, `cancelled` is asked once a round. `encode` gives the
    recording as the target sees it where it may have been encoded before, and `encode_again` does so as for a first question;
    without them the target encodes it."""

    target: Target
    request: Request
    stop: StopCheck
    drafts: Drafts = Drafts()  # noqa: RUF009 - frozen
    policy: DraftPolicy = DraftPolicy()  # noqa: RUF009 - frozen
    emit: Emit = ignore
    cancelled: Callable[[], bool] = never
    encode: Encode | None = None
    encode_again: Encode | None = None


class Decoding:
    """One answer; `trace` says what happened. Call it on the target's lane."""

    def __init__(self, asked: Asking, executor: Executor, trace: Trace) -> None:
        self.asked, self.target, self.trace, self._executor = asked, asked.target, trace, executor
        self._limits = asked.target.limits
        sampling = copy(asked.request.sampling)  # drafters have the request
        self.answer = Answer(sampling, Numerics(self._limits.rounding), asked.stop)
        self.display = Display(asked.emit, sampling, self._limits.vocabulary, trace, executor.lock())
        how = (asked.policy, executor, self._limits, self.display)
        self.drafting = Drafting(asked.drafts, asked.request, *how)
        self.error: BaseException | None = None
        self._session: TargetSession | None = None
        self._plainly: PlainDecoding | None = None
        self._round: tuple[Proposal, Round] | None = None  # in the target's forward
        self.over, self._encoded_plainly = False, False
        self.forwards = 0  # of the target beside those of rounds: over the prompt's first rows, in the end to settle near ties

    @property
    def session(self) -> TargetSession:
        """The target's, from `read` on."""
        assert self._session is not None, "the prompt was not read yet"
        return self._session

    def due(self) -> Due:
        """What it waits for just now; drafters go on as far as that takes no waiting."""
        if self.over:
            return Due.NOTHING
        if self.waits() > 0:
            return Due.DRAFT
        return Due.PROMPT if self._session is None else Due.FORWARD

    def waits(self) -> float:
        """Seconds for which a draft may still be waited for."""
        return self.drafting.come_first() if self._session is None else self.drafting.waits()

    def start(self, placement: str) -> None:
        """Begin the head start. `placement`: which of `one` and `two` this is."""
        self.trace.device_plan = placement
        self.drafting.start(self.answer)

    def read(self, alone: bool = True) -> None:
        """Vision encoding, and the prompt as far as it does not wait for the head start. `alone`: no other answer shares its
        forwards; of those that do, prompts are read in one forward whole."""
        asked = self.asked
        context = self.target.encode(asked.request.media, self.trace) if asked.encode is None else asked.encode(self.trace)
        self._encoded_plainly = self._executor.uniform or (asked.encode is None and self._executor.as_plain)
        # What is there is verified in the forward that reads the prompt.
        tail = asked.policy.tail if alone and self.drafting.coming else NO_TAIL
        taps = self.drafting.taps
        session = context.open(asked.request.question, asked.request.sampling, tail, self.trace, taps)
        sampling = self.answer.sampling
        prompt_ids = getattr(context, "prompt_ids", None)  # a context that inherits nothing has no such ids
        if prompt_ids is not None and not plain_greedy(sampling) and (ids := prompt_ids(asked.request.question)):
            self.answer.sampling = self.display.sampling = replace(sampling, prompt_ids=tuple(ids))
        self._session, self.forwards = session, sum(s.stage == "prefill" and s.lane == "target" for s in self.trace.spans)
        self.drafting.attach(session)
        self._plainly = PlainDecoding(self._begun_plainly)
        self.answer.numerics = Numerics(self._limits.rounding, self._settle if asked.policy.settle else None, self._settle)
        self.answer.plain = not session.chunked and self._executor.as_plain

    def proposal(self) -> Proposal:
        """What the next forward verifies; drafters go on meanwhile. Ask for it once a forward."""
        proposal = self.drafting.collected(self.answer)
        self.drafting.look_ahead(self.answer.remaining)
        proposal = within(proposal, self.session.room)
        made = self.trace.round(len(proposal), proposal.depth, proposal.origin)
        proposal = self.answer.admissible(proposal)
        self._round = proposal, made
        return proposal

    def take(self, scores: Scores, alone: bool = True) -> None:
        """Commit what the target's scores of the proposal allow, and begin the next draft. `alone`: no other answer shared the
        forward."""
        assert self._round is not None, "a forward verifies a proposal"
        (proposal, made), self._round = self._round, None
        self.trace.scored(made)
        if self.answer.plain:
            self.answer.plain = alone and self._executor.as_plain
        self.trace.shared |= not alone
        verdict = self.answer.verify(scores.logits, proposal)
        self.session.commit(verdict)
        fresh = self.answer.extend(verdict)
        self.display.commit(fresh)
        named = named_by(proposal, verdict.path[: len(fresh)])
        self.trace.decided(made, len(proposal), len(verdict.path), fresh, named)
        if self.answer.finished or self.asked.cancelled():
            self.end()
        else:
            self.drafting.next(verdict, scores, self.answer)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows; `error` says why where that is no answer."""
        if self.over:
            return
        self.over, self.error = True, error
        self.drafting.end()
        self.display.end()
        self.trace.near_ties = self.answer.near_ties
        if self._plainly is not None:
            self.forwards += self._plainly.forwards
            if why := self._plainly.failure:
                self.trace.note(f"near ties could not be settled ({why}): another numerical path may decide them otherwise")
        # Who holds this object holds no cache: the next question may have it.
        self._session = self._plainly = None
        self.answer.numerics = Numerics(self._limits.rounding)

    def outcome(self) -> Outcome:
        """The answer, once it has ended; raises what ended it otherwise."""
        if self.error is not None:
            raise self.error
        return self.answer.outcome()

    def _settle(self, answer: Sequence[int]) -> Tensor | None:
        assert self._plainly is not None
        with self._executor.plainly():
            return self._plainly.settle(answer)

    def _begun_plainly(self) -> TargetSession:
        """A session as plain decoding has it: of the same visual rows where they were encoded as for plain decoding, else of
        what an encoding with all cores gives."""
        if self._encoded_plainly:
            return self.session.fresh_copy()
        request, trace = self.asked.request, Trace()
        encode = self.asked.encode_again or partial(self.target.encode, request.media)
        return encode(trace).open(request.question, request.sampling, NO_TAIL, trace)
