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
        placement = self._share()
        self._each([decoding], lambda one: one.start(placement))
        return decoding

    def step(self) -> list[Decoding]:
        """At most one forward of every target, over the rounds of all answers that are due one; the answers that ended."""
        by_target: dict[int, list[Decoding]] = {}
        for one in self._ready():
            by_target.setdefault(id(one.target), []).append(one)
        for due in by_target.values():
            self._forward(due[0].target, due)
        ended = [one for one in self.running if one.over]
        if ended:
            self.running = [one for one in self.running if not one.over]
            self.forwards += sum(one.forwards for one in ended)
            if self.running:
                self._share()
        return ended

    def end(self) -> None:
        """End all answers as they are."""
        for one in self.running:
            one.end()
        self.running = []

    def _share(self) -> str:
        """Give the target the cores that the running answers' drafters leave it; the placement that this is."""
        return self._executor.share(any(one.drafting.overlaps for one in self.running))

    def _ready(self) -> list[Decoding]:
        """The answers that are due a forward, once prompts are read and no answer waits for a draft any more."""
        alone = len(self.running) == 1
        while True:
            states = [(one, one.due()) for one in self.running]
            if prompts := [one for one, due in states if due is Due.PROMPT]:
                self._each(prompts, lambda one: one.read(alone))
            elif waiting := [one.waits() for one, due in states if due is Due.DRAFT]:
                self._executor.wait(min(waiting))
            else:
                return [one for one, due in states if due is Due.FORWARD]

    def _forward(self, target: Target, due: Sequence[Decoding]) -> None:
        """One forward over the rounds of some answers of one target."""
        batch = [(one.session, one.proposal()) for one in due]
        try:
            found = target.score(batch)
            if len(found) != len(due):
                raise ValueError(
                    f"the target gave scores for {len(found)} of {len(due)} rounds: Target.score returns one for each"
                )
        except Exception as error:
            for one in due:
                one.end(error)
            return
        self.forwards += 1 if target.limits.batches else len(due)
        scores, alone = iter(found), len(due) == 1
        self._each(due, lambda one: one.take(next(scores), alone))

    @staticmethod
    def _each(answers: Sequence[Decoding], work: Callable[[Decoding], None]) -> None:
        """Do something for each of some answers: one that fails ends, and the others go on."""
        for one in answers:
            try:
                work(one)
            except Exception as error:
                one.end(error)
