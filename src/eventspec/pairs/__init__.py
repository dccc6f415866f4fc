"""A target with its drafters on named devices, and the methods that can be run with them."""

from eventspec.costs import warm_up
from eventspec.pairs.event_drafters import VOCABULARY_MAPPINGS
from eventspec.pairs.loading import load_folders, load_pair
from eventspec.pairs.methods import METHODS, check_choices, check_method
from eventspec.pairs.pair import Pair
from eventspec.pairs.pair_file import PairFile, bundled

__all__ = [
    "METHODS",
    "VOCABULARY_MAPPINGS",
    "Pair",
    "PairFile",
    "bundled",
    "check_choices",
    "check_method",
    "load_folders",
    "load_pair",
    "warm_up",
]
