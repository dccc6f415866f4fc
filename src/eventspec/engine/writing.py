"""A drafter writes its answer to the end, after its head start, on a lane that nothing waits for."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from eventspec.core import Proposal
from eventspec.engine.draft_worker import DraftWorker
from eventspec.engine.executor import Pending
from eventspec.engine.guard import described
from eventspec.engine.policy import DraftPolicy

SHARE = 0.5
"""Of a worker's deadline: so long it may write, since a drafter may be slow without hanging."""


class Writing:
    """Up to `left` tokens, in the lane's own time: the target has the head start as soon as that is there, and the lane is free
    for others one step after `stop`. A session that fails here drafts no more: it may be anywhere."""

    def __init__(self, worker: DraftWorker, policy: DraftPolicy, left: int) -> None:
        self.worker, self.policy, self.left, self._stopped = worker, policy, left, False
        if worker.ahead is not None and worker.overlaps:
            with suppress(RuntimeError):  # the lane was closed just now
                worker.executor.start("drafter", partial(self._write, worker.ahead), worker.drafter)

    def stop(self) -> None:
        """End with the step it is in."""
        self._stopped = True

    def _write(self, ahead: Pending[Proposal]) -> None:
        """What runs on the lane, after a head start that did not fail."""
        worker, began, until = self.worker, self.worker.trace.now(), time.perf_counter() + SHARE * self.worker.deadline
        if self._stopped or not ahead.done() or ahead.exception() is not None:
            return
        try:
            assert worker.session is not None, "its head start was drafted"
            worker.session.write_on(self.policy.meanwhile(lambda: self._stopped or time.perf_counter() > until, self.left))
            worker.trace.span("draft", "drafter", began)
            worker.trace.take(worker.own)
        except BaseException as error:
            why = described(error)
            worker.broken = why
            worker.trace.note(f"drafter {worker.name}, writing on, {why}")
