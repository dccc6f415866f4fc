"""Where work runs: a thread for each lane, its core or stream, its deadline. The engine knows `engine.executor` only."""

from eventspec.lanes.worker import LaneTimeout, Pending, Worker
from eventspec.lanes.workers import Workers, choose_placement, described_placement

__all__ = ["LaneTimeout", "Pending", "Worker", "Workers", "choose_placement", "described_placement"]
