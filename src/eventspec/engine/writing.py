"""A drafter writes its answer to the end, behind its head start and on a lane that nobody waits for."""

from __future__ import annotations

import time
from contextlib import suppress

from eventspec.core import DraftSession, WritesOn
from eventspec.engine.draft_worker import DraftWorker
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.worker import Pending

SHARE = 0.5
"""Of a worker's deadline: so long it may write, since a drafter may be slow without hanging."""


class Writing:
    """Up to `left` tokens, in the lane's own time: the target has the head start as soon as that is there, and the lane is free
    for others one step behind `stop`. A drafter that fails here is given up from there on."""

    def __init__(self, worker: DraftWorker, policy: DraftPolicy, left: int) -> None:
        self.worker, self.policy, self.left, self._stopped = worker, policy, left, False
        self._job: Pending[None] | None = None
        with suppress(RuntimeError):  # the lane was closed just now
            self._job = worker.behind_head_start(self._write)

    def stop(self) -> None:
        """End with the step it is in."""
        self._stopped = True
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            if job.error is not None and self.worker.alive:
                self.worker.failed(job.error)

    def _write(self, session: DraftSession) -> None:
        began, until = self.worker.trace.now(), time.perf_counter() + SHARE * self.worker.deadline
        if not self._stopped and isinstance(session, WritesOn):
            session.write_on(self.policy.meanwhile(lambda: self._stopped or time.perf_counter() > until, self.left))
            self.worker.trace.span("draft", "drafter", began)
