"""A target with its drafters on named devices, and the methods that can be run with them."""

from eventspec.pairs.answer import Answering, Result, answering, generate, stream, window_of
from eventspec.pairs.methods import METHODS, check_method
from eventspec.pairs.pair import Pair, bundled, load_pair, warm_up

__all__ = [
    "METHODS",
    "Answering",
    "Pair",
    "Result",
    "answering",
    "bundled",
    "check_method",
    "generate",
    "load_pair",
    "stream",
    "warm_up",
    "window_of",
]
