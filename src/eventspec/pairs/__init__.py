"""A target with its drafters on named devices, and the methods that can be run with them."""

from eventspec.pairs.answer import Answering, Result, answering, generate, stream, stream_text
from eventspec.pairs.event_drafters import VOCABULARY_WAYS, with_drafter
from eventspec.pairs.folders import load_folders
from eventspec.pairs.methods import METHODS, check_choices, check_method
from eventspec.pairs.pair import Pair, bundled, load_pair
from eventspec.pairs.variants import find_head, with_compression, with_head
from eventspec.pairs.warming import warm_up

__all__ = [
    "METHODS",
    "VOCABULARY_WAYS",
    "Answering",
    "Pair",
    "Result",
    "answering",
    "bundled",
    "check_choices",
    "check_method",
    "find_head",
    "generate",
    "load_folders",
    "load_pair",
    "stream",
    "stream_text",
    "warm_up",
    "with_compression",
    "with_drafter",
    "with_head",
]
