"""Lossless decoding: the loop, the rule, trees, budgets, lanes. It knows records and protocols of `core`, and no model."""

from eventspec.engine.generate import run, stream
from eventspec.engine.plan import Plan
from eventspec.engine.verify import verify

__all__ = ["Plan", "run", "stream", "verify"]
