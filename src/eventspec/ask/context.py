"""Several questions about one recording: every target encodes it once, and each question reads its own rows only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from eventspec.ask.generation import DEFAULT_METHOD, Generation, Methods, check_media, media_of, seen_in
from eventspec.ask.result import Result
from eventspec.core import BadInput, Context, Drafter, Proposal, Request, Sampling, Scores, Target, Trace, Window
from eventspec.engine.drafts import all_of
from eventspec.engine.policy import NO_TAIL
from eventspec.recordings import Recording
from eventspec.recordings.qa import check_question
from eventspec.text import Piece

Frames = np.ndarray[Any, np.dtype[np.uint8]]
ANY_QUESTION = "What is ahead?"
"""Asked for what it leaves behind: everything that a target and drafters keep of a recording, whatever is asked next."""
SEVERAL = 4
"""Tokens of its answer: enough for a second draft after a first one of one token."""


class RecordingContext:
    """A window of a recording, as `pair.open` gives it. Answers are those of fresh questions. Not for several threads at once,
    but several answers may be in the making.

    A target that encodes differently (a lossy one) has a context of its own; drafters keep what they have seen of the recording
    for as long as this object lives. notes: what is said of every answer.
    """

    def __init__(self, pair: Methods, recording: Recording, window: Window | None = None, notes: tuple[str, ...] = ()) -> None:
        view = seen_in(recording, window)
        self.notes = (*view.notes, *notes)
        self.pair, self.name, self.media = pair, recording.name, media_of(view)
        self._contexts: list[tuple[Target, Context]] = []
        self._later: list[Frames] = []

    def __repr__(self) -> str:
        return f"<RecordingContext of {self.name}: pair {self.pair.name}, read by {len(self._contexts)} target(s)>"

    def generation(
        self,
        question: str,
        method: str = DEFAULT_METHOD,
        sampling: Sampling | None = None,
        may_be_empty: Collection[str] = (),
        **settings: Any,
    ) -> Generation:
        """A question, ready to run; as `ask.generation`."""
        found = self.pair.method(method)
        check_question(question)
        check_media(self.name, self.media, method, found, may_be_empty, coming=("frames",) if self._later else ())
        request = Request(self.media, question, self.pair.tokens.sampling(self.pair.tokens.settings(sampling, settings)))
        before = any(target is found.target for target, _ in self._contexts)
        ways = partial(self._encoded, found.target), partial(self._encoded_again, found.target)
        return Generation(self.pair, request, method, ways, before, self.notes)

    def ask(self, question: str, method: str = DEFAULT_METHOD, sampling: Sampling | None = None, **settings: Any) -> Result:
        """Answer a question; as `generate`."""
        return self.generation(question, method, sampling, **settings).result()

    def stream_text(
        self, question: str, method: str = DEFAULT_METHOD, sampling: Sampling | None = None, **settings: Any
    ) -> Iterator[Piece]:
        """Answer a question as text while it grows; as `stream_text`."""
        return self.generation(question, method, sampling, **settings).pieces()

    def reread(self, question: str, answer: Sequence[int], method: str) -> Scores:
        """What a method's target says of an answer in ids, read in one go: logits float [N, V] before each of its tokens. For
        those who learn from it."""
        target = self.pair.method(method).target

        def read() -> Scores:
            sampling = self.pair.tokens.sampling(Sampling(max_new_tokens=len(answer)))
            session = self._encoded(target, Trace()).open(question, sampling, 1, Trace())
            return session.score(Proposal.chain(list(answer[:-1])))

        return self.pair.workers.start("target", read).result()

    def prepare(self, method: str = DEFAULT_METHOD, may_be_empty: Collection[str] = ()) -> None:
        """Do what does not depend on a question before there is one: the target and the drafters of a method read the
        recording. The next question reads its own rows only."""
        for _ in self.preparing(method, may_be_empty=may_be_empty):
            pass

    def preparing(
        self, method: str = DEFAULT_METHOD, rows: int = NO_TAIL, may_be_empty: Collection[str] = ()
    ) -> Iterator[None]:
        """`prepare` in parts, of which each step does one: vision encoding, at most `rows` rows of the prompt at a time, and
        what a method's drafters read. Between two parts the target's lane is free for others; a caller that stops early keeps
        the parts that are done."""
        widest = self._widest(method)
        asked = self.generation(ANY_QUESTION, widest, None, may_be_empty, max_new_tokens=SEVERAL)
        # A drafter on the target's features reads the prompt after the first round, so a head start should not end the answer
        # in it. All drafters read, whatever pays at today's costs, and no costs are learnt from so short an answer.
        asked.policy = replace(asked.policy, head_nodes=1)
        drafts = asked.method.drafts
        drafts = replace(drafts, after=(*drafts.after, *self._other_readers(method, drafts.of_all)), select=all_of)
        asked.method = replace(asked.method, drafts=drafts, learnt=None)
        target, lane = asked.method.target, self.pair.workers
        taps = next((drafter.taps for drafter in asked.method.drafts.later(asked.policy) if drafter.taps), ())

        short = asked.request.sampling
        usual = short.but(max_new_tokens=self.pair.tokens.usual.max_new_tokens)  # room for an answer, which needs no copy then

        def left(tail: int) -> int:
            """Rows of the prompt, of which all but the last `tail` are read now."""
            trace = Trace()
            context = self._encoded(target, trace)
            try:
                context.open(ANY_QUESTION, usual, tail, trace, taps)
            except BadInput:  # the context is too small for that
                context.open(ANY_QUESTION, short, tail, trace, taps)
            return trace.sizes.get("prompt", 0)  # a target of one's own may not say

        total = lane.start("target", partial(left, NO_TAIL)).result()
        yield
        for tail in range(total - rows, 0, -rows):
            lane.start("target", partial(left, tail)).result()
            yield
        asked.result()
        yield

    def _widest(self, method: str) -> str:
        """The method itself; for one that chooses, that of its choice with the most drafters, which read for the others too."""
        choice = self.pair.method(method).choice
        if choice is None:
            return method
        return max(choice.suited(self.media), key=lambda name: len(self.pair.method(name).drafts.of_all))

    def _other_readers(self, method: str, known: Sequence[Drafter]) -> list[Drafter]:
        """Of the methods that one chooses from, the drafters that read the target's prompt, beside those that are `known`."""
        choice = self.pair.method(method).choice
        able = [] if choice is None else [self.pair.method(name).drafts.after for name in choice.methods]
        readers = {id(drafter): drafter for after in able for drafter in after if drafter.needs_target}
        return [drafter for drafter in readers.values() if drafter not in known]

    def extend(self, frames: Frames) -> None:
        """More frames uint8 [K, H, W, 3] of the same window, as they arrive; a recording that is to grow begins without any.
        BadInput where a target that was asked takes no more."""
        if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            raise BadInput(f"frames are {frames.dtype} {list(frames.shape)}: wanted uint8 [K, H, W, 3]")
        self.pair.workers.start("target", partial(self._extend, frames)).result()

    def _extend(self, frames: Frames) -> None:
        for _, context in self._contexts:
            context.extend(frames, Trace())
        self._later.append(frames)

    def _encoded(self, target: Target, trace: Trace) -> Context:
        """The recording as a target sees it; encoded with the first question about it, beside the drafter. On the target's
        lane."""
        for known, context in self._contexts:
            if known is target:
                return context
        context = self._encoded_again(target, trace)
        self._contexts.append((target, context))
        return context

    def _encoded_again(self, target: Target, trace: Trace) -> Context:
        """As `_encoded`, but as for a first question."""
        context = target.encode(self.media, trace)
        context.keep_outputs()
        for frames in self._later:
            context.extend(frames, trace)
        return context
