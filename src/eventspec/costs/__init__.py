"""What drafting costs on the machine at hand: measured when a pair is loaded first, kept in a file, learnt from rounds."""

from eventspec.costs.fit import warm_up
from eventspec.costs.rounds import LearntCosts
from eventspec.costs.store import fitted, learning, store_of
from eventspec.engine.policy import Costs

__all__ = ["Costs", "LearntCosts", "fitted", "learning", "store_of", "warm_up"]
