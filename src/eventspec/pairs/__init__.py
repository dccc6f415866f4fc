"""A target with its drafters on named devices, and the methods that can be run with them."""

from typing import TYPE_CHECKING

from eventspec.pairs.names import METHODS, VOCABULARY_MAPPINGS, check_choices, check_method
from eventspec.pairs.pair_file import PairFile, bundled

if TYPE_CHECKING:
    from eventspec.costs import warm_up
    from eventspec.pairs.folders import load_folders
    from eventspec.pairs.loading import load_pair
    from eventspec.pairs.pair import Pair
else:
    from eventspec.lazy import lazily

    _LOADING = {"load_folders": "eventspec.pairs.folders", "load_pair": "eventspec.pairs.loading"}
    __getattr__ = lazily(__name__, {**_LOADING, "Pair": "eventspec.pairs.pair", "warm_up": "eventspec.costs"})

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
