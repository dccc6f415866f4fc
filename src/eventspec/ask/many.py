"""Many questions at once: their rounds share forwards of the target, whatever their methods, lengths and trees."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventspec.ask.generation import DEFAULT_METHOD, Generation, Methods, generation
from eventspec.ask.result import Result
from eventspec.core import BadInput, Sampling, Window
from eventspec.engine.decoding import Decoding
from eventspec.engine.scheduler import Scheduler
from eventspec.recordings import Recording
from eventspec.sampling import check_settings


class Ask:
    """One question of many, as `generate` takes it; `settings` are fields of Sampling."""

    def __init__(
        self,
        recording: Recording | str | Path,
        question: str,
        method: str = DEFAULT_METHOD,
        window: Window | None = None,
        sampling: Sampling | None = None,
        **settings: Any,
    ) -> None:
        self.recording, self.question, self.method, self.window = recording, question, method, window
        if sampling is None:
            check_settings(settings)  # the pair knows the others
        else:
            sampling.but(**settings)
        self.sampling, self.settings = sampling, settings

    def __repr__(self) -> str:
        return f"<Ask {self.question!r} by {self.method}>"


@dataclass(frozen=True)
class Batch:
    """Answers in the order of their questions, and how many forwards of target language models they took together."""

    results: list[Result]
    forwards: int


def generate_many(pair: Methods, asks: Iterable[Ask], most: int = 8) -> Batch:
    """Answer many questions, at most `most` of them at a time; each answer is what `generate` gives. BadInput for a question
    that cannot be asked, before any is answered. An answer that fails later ends those that are running: the error says in a
    note which it was, and has `results`: the answers that were finished, None for each of the others."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadInput(f"most is {most!r}: give a whole number from 1 on")
    if isinstance(asks, Ask) or not isinstance(asks, Iterable):
        raise BadInput(f"asks is a {type(asks).__name__}: give a list of eventspec.Ask")
    asked = list(asks)
    opened = functools.cache(Recording.open)  # once, where several ask about it
    made = [_generation(pair, number, ask, opened) for number, ask in enumerate(asked)]
    try:
        forwards = pair.workers.start("target", functools.partial(_answer, pair, made, most)).result()
    except KeyboardInterrupt:
        for one in made:
            one.cancel()
        raise
    except Exception as error:
        error.results = [one.result() if one.finished else None for one in made]  # type: ignore[attr-defined]
        raise
    return Batch([one.result() for one in made], forwards)


def _generation(pair: Methods, number: int, ask: Ask, opened: Callable[[str], Recording]) -> Generation:
    """A question ready to run."""
    if not isinstance(ask, Ask):
        raise BadInput(f"asks[{number}] is a {type(ask).__name__}: give an eventspec.Ask(recording, question)")
    try:
        recording = opened(str(ask.recording)) if isinstance(ask.recording, str | Path) else ask.recording
        return generation(pair, recording, ask.question, ask.method, ask.window, ask.sampling, **ask.settings)
    except BadInput as error:
        raise BadInput(f"asks[{number}]: {error}") from None


def _answer(pair: Methods, asked: Sequence[Generation], most: int) -> int:
    """On the target's lane: all answers to their ends; the forwards that took."""
    scheduler, waiting = Scheduler(pair.workers), deque(enumerate(asked))
    running: dict[Decoding, tuple[int, Generation]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                number, one = waiting.popleft()
                if not one.cancelled:
                    running[scheduler.add(one.begin())] = number, one
            for decoding in scheduler.step():
                number, one = running.pop(decoding)
                try:
                    one.end(decoding)
                except Exception as error:
                    error.add_note(f"asks[{number}] failed: {one.request.question!r}")
                    raise
    finally:
        scheduler.end()
    return scheduler.forwards
