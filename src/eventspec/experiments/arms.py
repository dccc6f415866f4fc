"""The one way to run questions in several arms: interleaved, each arm with its events or a control's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from eventspec.ask import Generation, generation
from eventspec.ask.context import ANY_QUESTION
from eventspec.core import BadInput, Sampling
from eventspec.engine.method import AnswerTimes, QuestionInfo
from eventspec.events import EventStream
from eventspec.experiments.figures import Row
from eventspec.experiments.names import CONTEXTS
from eventspec.pairs import Pair
from eventspec.recordings import Recording
from eventspec.recordings.qa import Ends, Opening, Question, another

CUT = 8
"""Windows of recordings that are kept: those of long files are in memory."""
OTHER_QUESTIONS = (ANY_QUESTION, "Describe the scene.")
"""The question before the one that is timed, in a warm context: the first that is another."""


@dataclass(frozen=True)
class Arm:
    """A row of the table: a method, whose events its drafter sees, and the pair on the device plan it runs on."""

    name: str
    method: str
    pair: Pair
    events: str = "real"
    context: str = "cold"
    """What was done before the question: nothing (cold), another question about the recording (warm), or all that a live stream
    does before there is any (live)."""


class Recordings:
    """What questions are about, opened: recordings, or windows of them; and what a control makes of their events."""

    def __init__(self, questions: Sequence[Question], opening: Opening = Recording.open) -> None:
        self.asked: list[Question] = list({question.seen: question for question in questions}.values())
        self._opening = opening
        self._opened: dict[Path, Recording] = {}
        self._cut: dict[tuple[Path, Ends | None], Recording] = {}

    def real(self, question: Question) -> Recording:
        """The recording of a question, or its window: one object for all questions about it."""
        if question.window is None:
            return self._whole(question)
        if question.seen not in self._cut:
            self._cut[question.seen] = question.cut(self._whole(question))
            if len(self._cut) > CUT:
                del self._cut[next(iter(self._cut))]
        return self._cut[question.seen]

    def frames(self, question: Question) -> int:
        """How many frames there are to be seen; no event is read for it."""
        whole = self._whole(question)
        window = None if question.window is None else whole.window(*question.window)
        if whole.video is None or window is None:
            return len(whole.video or ())
        return len(whole.video.slice(window))

    def _whole(self, question: Question) -> Recording:
        if question.recording not in self._opened:
            self._opened[question.recording] = self._opening(question.recording)
        return self._opened[question.recording]

    def get(self, question: Question, events: str = "real") -> Recording:
        """The recording with its own events, none, those of the next recording, or its own at random pixels."""
        own = self.real(question)
        if events == "real" or own.events is None:
            return own
        if events == "blank":
            return replace(own, events=own.events.empty_copy())
        place = [one.seen for one in self.asked].index(question.seen)
        if events == "scattered":
            return replace(own, events=scattered(own.events, np.random.default_rng(place)))
        others = [*self.asked[place + 1 :], *self.asked[:place]]
        at = another(question.seen, [one.seen for one in others])
        if at is None:
            raise BadInput("shuffled events need at least two recordings, or two windows of one that share no moment")
        other = self.real(others[at])
        # Another recording's events on this one's clock: both windows begin at their own start.
        shift = own.span.start_us - other.span.start_us
        return replace(own, events=None if other.events is None else other.events.shifted(shift))


def scattered(stream: EventStream, rng: np.random.Generator) -> EventStream:
    """The same times and polarities at random pixels: the event rate stays, the scene is gone."""
    x = rng.integers(0, stream.width, len(stream)).astype(np.uint16)
    y = rng.integers(0, stream.height, len(stream)).astype(np.uint16)
    return EventStream(x, y, stream.t, stream.p, stream.width, stream.height, stream.ordered)


def ask(arm: Arm, recordings: Recordings, question: Question, sampling: Sampling) -> Generation:
    """A question ready to run in one arm."""
    recording = recordings.get(question, arm.events)
    return generation(arm.pair, recording, question.question, arm.method, None, sampling, may_be_empty=("events",))


def ready(arm: Arm, recordings: Recordings, question: Question, sampling: Sampling) -> Generation:
    """The same after the work that the arm's context stands for, which is done by then."""
    if arm.context == "cold":
        return ask(arm, recordings, question, sampling)
    context = arm.pair.open(recordings.get(question, arm.events))
    if arm.context == "live":
        context.prepare(arm.method, may_be_empty=("events",))
    else:
        other = next(text for text in OTHER_QUESTIONS if text != question.question)
        context.generation(other, arm.method, sampling, may_be_empty=("events",)).result()
    return context.generation(question.question, arm.method, sampling, may_be_empty=("events",))


def interleaved(
    arms: Sequence[Arm],
    recordings: Recordings,
    questions: Iterable[Question],
    sampling: Sampling,
    known: Callable[[Question, Arm], Row | None] = lambda question, arm: None,
    keep: Callable[[Row], None] = lambda row: None,
) -> Iterator[tuple[Question, dict[str, Row]]]:
    """Every question in every arm, in an order drawn for each: rows by arm, after every question.

    The first question is asked once before, in all arms, and thrown away: caches, threads and kernels of every path are warm.
    `known` gives what an earlier run measured, which is not measured again; `keep` is called with every other row at once.
    """
    rng, warm = np.random.default_rng(0), False
    for question in questions:
        found = {arm.name: row for arm in arms if (row := known(question, arm)) is not None}
        order = [arms[place] for place in rng.permutation(len(arms))]
        if len(found) < len(arms) and not warm:
            for arm in arms:  # a head that learns is not to learn from a question before it is asked it
                own = replace(arm, pair=arm.pair.forgetful()) if arm.pair.learns else arm
                ask(own, recordings, question, sampling).result()
            warm = True
        for arm in order:
            if arm.name in found:
                _recall(arm, recordings, question, sampling, found[arm.name])
            else:
                found[arm.name] = _timed(arm, recordings, question, sampling)
                keep(found[arm.name])
        yield question, {arm.name: found[arm.name] for arm in arms}


def _recall(arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, row: Row) -> None:
    """Let an arm that chooses learn again from a row that was measured before."""
    choice, times = arm.pair.method(arm.method).choice, row["timing_ms"]
    if choice is None or times["first_committed"] is None or times["decode"] is None:
        return
    senses = frozenset(recordings.real(question).streams)
    asked = QuestionInfo(question.question, sampling.max_new_tokens, senses, arm.context != CONTEXTS[0])
    seconds = times["first_committed"] / 1e3, times["decode"] / 1e3
    choice.learn(row["chosen"], asked, AnswerTimes(*seconds, len(row["token_ids"]), row["finish_reason"] == "stop"))


def _timed(arm: Arm, recordings: Recordings, question: Question, sampling: Sampling) -> Row:
    asking = ready(arm, recordings, question, sampling)
    arm.pair.workers.drain()
    result = asking.result()
    row: Row = {**result.as_json(), "method": arm.name, "drafter": arm.method, "events": arm.events, "context": arm.context}
    row |= {"question_id": question.id, "recording": question.recording.name, "question": question.question}
    window = None if question.window is None else list(question.window)
    return {**row, "window": window, "kind": question.kind, "answer": question.answer}
