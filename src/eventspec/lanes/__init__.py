"""Where work runs: a thread for each lane, its core or stream, its deadline. The engine knows `engine.executor` only."""

from eventspec.lanes.worker import LaneThread, LaneTimeout, Worker
from eventspec.lanes.workers import Workers, choose_placement, described_placement

__all__ = ["LaneThread", "LaneTimeout", "Worker", "Workers", "choose_placement", "described_placement"]
