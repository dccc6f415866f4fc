"""Lossless decoding: the scheduler, the rule, policies. It knows records and protocols of `core`; no model, sense or thread."""

from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.scheduler import Scheduler, run
from eventspec.engine.verify import verify

__all__ = ["Asking", "Decoding", "DraftPolicy", "Scheduler", "run", "verify"]
