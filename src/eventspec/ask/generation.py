"""One question about one recording with one method: whole, or as a stream of updates."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from eventspec.ask.result import Result
from eventspec.core import BadInput, Media, Request, Sampling, Trace, Update, Window
from eventspec.engine.answer import Outcome
from eventspec.engine.decoding import Asking, Decoding, Encode
from eventspec.engine.display import Emit, ignore
from eventspec.engine.generate import run
from eventspec.engine.method import AnswerTimes, Method, QuestionInfo
from eventspec.lanes.workers import Workers
from eventspec.media import check_senses
from eventspec.recordings import Recording
from eventspec.recordings.qa import check_question
from eventspec.text import Piece, StopDetector, TokenSpace, pieces, texts_of

DEFAULT_METHOD = "auto"


class Methods(Protocol):
    """What questions are asked of; `pairs.Pair` is one."""

    @property
    def name(self) -> str: ...
    @property
    def tokens(self) -> TokenSpace: ...
    @property
    def workers(self) -> Workers: ...
    def method(self, name: str) -> Method:
        """What a name means; BadInput when there is no such method."""

    def notes_on(self, recording: Recording) -> tuple[str, ...]:
        """What is to be said of every answer about a whole recording."""

    def learn_from(self, request: Request, method: Method) -> None:
        """An answer by a method has ended: its heads that learn may do so, on the drafter's lane."""


def opened(recording: Recording | str | Path) -> Recording:
    """A recording, or what `Recording.open` makes of a path. BadInput for what is neither."""
    if isinstance(recording, str | Path):
        return Recording.open(recording)
    if not isinstance(recording, Recording):
        raise BadInput(f"the recording is a {type(recording).__name__}: give a Recording, or the path of one")
    return recording


def seen_in(recording: Recording, window: Window | None) -> Recording:
    """What was recorded in a window. BadInput for what is no window."""
    if window is not None and not isinstance(window, Window):
        raise BadInput(f"the window is a {type(window).__name__}: give a Window(start_us, end_us)")
    return recording.slice(window)


def media_of(recording: Recording) -> Media:
    """What a recording holds, read-only."""
    return Media(**{sense: stream.read_only() for sense, stream in recording.streams.items()})


def check_media(
    name: str,
    media: Media,
    method: str,
    how: Method,
    may_be_empty: Collection[str] = (),
    coming: Collection[str] = (),
) -> None:
    """BadInput when the recording `name` lacks what the method of that name needs. Of senses that `may_be_empty` there may be a
    stream in which nothing happened; what is `coming` is there later."""
    there = {sense for sense in media if len(media[sense]) or sense in may_be_empty}
    check_senses(name, {*there, *coming}, method, how)


class Generation:
    """One question being answered: iterate `updates` to see it grow, or take the `result` at once. It runs once.

    encode: gives the recording as the method's target sees it, as it was encoded before, and as for a first question; None: the
    target encodes it. read_before: whether it was read for another question. notes: what is said of the answer whatever comes
    of it. chosen: the name of the method that answers, `name` unless that one leaves the choice to what was learnt.
    """

    def __init__(
        self,
        pair: Methods,
        request: Request,
        name: str,
        encode: tuple[Encode, Encode] | tuple[None, None] = (None, None),
        read_before: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.pair, self.request, self.name, self.notes = pair, request, name, notes
        self.trace, self.encode = Trace(question=request.question), encode
        asked, step = pair.method(name), pair.method(name).policy.step_seconds
        most, senses = request.sampling.max_new_tokens, frozenset(request.media)
        self._asked, self._choice = QuestionInfo(request.question, most, senses, read_before, step), asked.choice
        self.chosen = name if self._choice is None else self._choice.choose(self._asked)
        self.method = pair.method(self.chosen)
        self.policy = self.method.current_policy
        if read_before:  # what a drafter reads of the prompt is there, or serves the questions to come
            self.policy = replace(self.policy, open_cost=0.0)
        self._outcome: Outcome | None = None
        self._begun = self.cancelled = False

    @property
    def finished(self) -> bool:
        """Whether it has run to its end."""
        return self._outcome is not None

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens of the answer as text, with its special tokens or without."""
        return self.pair.tokens.vocabulary.decode(ids, self.request.sampling.skip_special_tokens)

    def cancel(self) -> None:
        """Stop after the round that is running."""
        self.cancelled = True

    def updates(self) -> Generator[Update, None, None]:
        """Provisional, Committed and Retracted tokens as they come; nothing once it has run. Leaving early cancels."""
        if self._begun:
            return
        self._begun = True
        try:
            yield from self.pair.workers.stream(self._run)
        finally:
            self.cancel()

    def pieces(self) -> Iterator[Piece]:
        """The same as text: joined, the pieces' `text` is the result's."""
        return pieces(self.updates(), self.decode, self.request.sampling.stop_strings)

    def result(self) -> Result:
        """The finished answer; runs it if `updates` did not."""
        begun, self._begun = self._begun, True
        if self._outcome is None:
            try:
                if begun:  # work is done in order: this waits for the end of a run that was left early
                    self.pair.workers.worker("target").finished().result()
                else:
                    self.pair.workers.start("target", self._run).result()
            except KeyboardInterrupt:
                self.cancel()  # its result is not wanted any more, and the next question waits
                raise
        outcome = self._outcome
        if outcome is None:
            raise RuntimeError("this question failed when it ran; ask it again")
        rows, visual = self.trace.sizes.get("prompt", 0), self.trace.sizes.get("visual", 0)
        where, lossless = (self.trace.device_plan, self.pair.workers.devices), self.method.target.lossless
        about = (self.name, self.chosen, lossless, outcome.finish_reason, rows - visual, visual, *where, self.trace)
        return Result("".join(made.text for made in self.trace.rounds), outcome.token_ids, *about)

    def begin(self, emit: Emit = ignore) -> Decoding:
        """The answer in the making, for a scheduler. On the target's lane; `end` takes what comes of it."""
        pair, request, method = self.pair, self.request, self.method
        sampling = request.sampling
        stop = StopDetector(sampling.stop_ids, sampling.stop_strings, self.decode)
        _ = method.target.limits  # measured on first use, which is no part of this answer
        self._begun = True
        self.trace.restart()
        if method.drafts.of_all:  # those with a vision of their own say how many they read
            self.trace.sizes["drafter"] = 0
        for note in (*method.notes, *self.notes):
            self.trace.note(note)
        how = (method.drafts, self.policy, emit, lambda: self.cancelled, *self.encode)
        return Decoding(Asking(method.target, request, stop, *how), pair.workers, self.trace)

    def end(self, decoding: Decoding) -> Outcome:
        """What came of the answer, which has ended; raises what it failed with."""
        outcome, rounds = decoding.outcome(), self.trace.rounds
        parts = texts_of([made.tokens for made in rounds], self.decode, self.request.sampling.stop_strings)
        for made, part in zip(rounds, parts, strict=True):
            made.text = part
        if rounds:  # from the last verdict on
            self.trace.span("post-processing", "target", rounds[-1].began + rounds[-1].seconds)
        self.trace.mark("end")
        self._outcome = outcome
        self._note(self.method.target.limits.rounding)
        self._learn(self._outcome)
        return self._outcome

    def _run(self, emit: Emit = ignore) -> Outcome:
        """The whole answer, on the target's lane."""
        decoding = self.begin(emit)
        run(decoding, self.pair.workers)
        return self.end(decoding)

    def _learn(self, outcome: Outcome) -> None:
        """Let the method's heads, its choice and its costs learn from it; a choice learns nothing from an answer that was
        cancelled."""
        marks, method = self.trace.marks, self.method
        self.pair.learn_from(self.request, method)
        if self.trace.shared:
            return  # its times are other answers' too
        # A grammar may refuse what was drafted, and what was answered from events another model verified.
        if method.learnt is not None and self.request.sampling.constraint is None and not self.trace.skipped:
            method.learnt.learn(method.policy, self.trace.rounds)
        if self._choice is not None and outcome.finish_reason != "cancelled" and "first_committed" in marks:
            first = marks["first_committed"]
            complete = outcome.finish_reason == "stop"
            took = AnswerTimes(first, marks["end"] - first, len(outcome.token_ids), complete)
            self._choice.learn(self.chosen, self._asked, took)

    def _note(self, rounding: float) -> None:
        """Note what the run met: lanes that are not as they should be, decisions as close as rounding."""
        for trouble in self.pair.workers.troubles:
            self.trace.note(trouble)
        if who := self.trace.declined:
            reason = f"the drafts of {' and '.join(who)} would cost more than they save, as measured here"
            self.trace.note(f"declined: cost ({reason}; --draft always drafts all the same)")
        if ties := self.trace.near_ties:
            settled = self.method.policy.settle
            how = "settled by plain decoding" if settled else "not settled: another numerical path may decide them otherwise"
            self.trace.note(f"{ties} near tie{'s' * (ties > 1)} (best two closer than {rounding:.1g}), {how}")


def generation(
    pair: Methods,
    recording: Recording | str | Path,
    question: str,
    method: str = DEFAULT_METHOD,
    window: Window | None = None,
    sampling: Sampling | None = None,
    may_be_empty: Collection[str] = (),
    **settings: Any,
) -> Generation:
    """One question about a window of a recording, or of the one at a path, ready to run; BadInput when it lacks what the method
    needs."""
    if not hasattr(pair, "method"):
        raise BadInput(f"the pair is a {type(pair).__name__}: give what load_pair returns")
    wanted = pair.tokens.settings(sampling, settings)
    found = pair.method(method)
    check_question(question)
    recording = opened(recording)
    view = seen_in(recording, window)
    media = media_of(view)
    check_media(recording.name, media, method, found, may_be_empty)
    request = Request(media, question, pair.tokens.sampling(wanted))
    return Generation(pair, request, method, notes=(*view.notes, *pair.notes_on(recording)))


def generate(
    pair: Methods,
    recording: Recording | str | Path,
    question: str,
    method: str = DEFAULT_METHOD,
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Result:
    """Answer one question about a recording, or about the one at a path. `settings` are fields of Sampling
    (max_new_tokens=256, temperature=0, ...)."""
    return generation(pair, recording, question, method, window, sampling, **settings).result()


def stream(
    pair: Methods,
    recording: Recording | str | Path,
    question: str,
    method: str = DEFAULT_METHOD,
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Iterator[Update]:
    """Answer one question as Provisional, Committed and Retracted updates."""
    return generation(pair, recording, question, method, window, sampling, **settings).updates()


def stream_text(
    pair: Methods,
    recording: Recording | str | Path,
    question: str,
    method: str = DEFAULT_METHOD,
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Iterator[Piece]:
    """Answer one question as text: final pieces, each with the provisional text after it."""
    return generation(pair, recording, question, method, window, sampling, **settings).pieces()
