"""One answer on the calling thread: a scheduler with a single answer. Several: add them to one `engine.scheduler.Scheduler`.

What a round is stands in `engine.decoding`, the acceptance rule in `engine.verify`, waiting for drafts in
`engine.draft_worker`, and what rounding can do to an answer in `engine.numerics`.
"""

from __future__ import annotations

from eventspec.engine.answer import Outcome
from eventspec.engine.decoding import Decoding
from eventspec.engine.executor import Executor
from eventspec.engine.scheduler import Scheduler


def run(decoding: Decoding, executor: Executor) -> Outcome:
    """One answer to its end; call it on the target's lane. Raises what the target raises."""
    scheduler = Scheduler(executor)
    try:
        scheduler.add(decoding)
        while scheduler.running:
            scheduler.step()
    finally:
        scheduler.end()
    return decoding.outcome()
