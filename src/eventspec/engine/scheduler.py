"""The one loop: answers take turns at the target, and those that are due a forward at the same time share it.

A caller adds a `Decoding` for each answer and calls `step` until they have ended, on the target's lane. How long a round waits
for drafts is decided here: as long as the patience of the answer that waits for them lasts, and then it goes on without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventspec.core import Target
from eventspec.engine.decoding import Decoding, Due
from eventspec.engine.executor import Executor


class Scheduler:
    """Answers in the making. `forwards`: of the language models of targets, by now."""

    def __init__(self, executor: Executor) -> None:
        self.running: list[Decoding] = []
        self.forwards = 0
        self._executor = executor

    def add(self, decoding: Decoding) -> Decoding:
        """One more answer; its drafters begin at once."""
        self.running.append(decoding)
        placement = self._executor.share(any(one.overlaps for one in self.running))
        self._each([decoding], lambda one: one.start(placement))
        return decoding

    def step(self) -> list[Decoding]:
        """At most one forward of every target, over the rounds of all answers that are due one; the answers that ended."""
        self._wait()
        targets = {id(one.target): one.target for one in self.running if one.due() is Due.FORWARD}
        for place, target in targets.items():
            self._forward(target, [one for one in self.running if id(one.target) == place and one.due() is Due.FORWARD])
        ended = [one for one in self.running if one.due() is Due.NOTHING]
        self.running = [one for one in self.running if one not in ended]
        self.forwards += sum(one.forwards for one in ended)
        return ended

    def end(self) -> None:
        """End all answers as they are."""
        for one in self.running:
            one.end()
        self.running = []

    def _wait(self) -> None:
        """Read prompts, and wait until no answer waits for a draft any more."""
        alone = len(self.running) == 1
        while True:
            self._each([one for one in self.running if one.due() is Due.PROMPT], lambda one: one.read(alone))
            if (seconds := min((one.waits() for one in self.running if one.due() is Due.DRAFT), default=0.0)) <= 0:
                return
            self._executor.wait(seconds)

    def _forward(self, target: Target, due: Sequence[Decoding]) -> None:
        """One forward over the rounds of some answers of one target."""
        proposals = {one: one.proposal() for one in due}
        try:
            scores = target.score([(one.session, proposal) for one, proposal in proposals.items()])
        except Exception as error:
            for one in due:
                one.end(error)
            return
        self.forwards += 1 if target.limits.batches else len(due)
        found = dict(zip(proposals, scores, strict=True))
        self._each(due, lambda one: one.take(found[one], alone=len(due) == 1))

    @staticmethod
    def _each(answers: Sequence[Decoding], work: Callable[[Decoding], None]) -> None:
        """Do something for each of some answers: one that fails ends, and the others go on."""
        for one in answers:
            try:
                work(one)
            except Exception as error:
                one.end(error)
