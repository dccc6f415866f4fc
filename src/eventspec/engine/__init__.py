"""Lossless decoding: the loop, the rule, policies, workers. It knows records and protocols of `core`, and no model."""

from eventspec.engine.generate import run, stream
from eventspec.engine.policy import DraftPolicy
from eventspec.engine.verify import verify

__all__ = ["DraftPolicy", "run", "stream", "verify"]
