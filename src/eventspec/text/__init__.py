"""Token ids and text: the vocabulary of a checkpoint, whether two share their ids, when an answer ends, its text in pieces, and
grammars it follows."""

from eventspec.text.grammar import json_schema, regex
from eventspec.text.pieces import Piece, pieces, text_of, texts_of
from eventspec.text.stopping import StopDetector
from eventspec.text.tokens import TokenSpace
from eventspec.text.vocabulary import Vocabulary, first_difference

__all__ = [
    "Piece",
    "StopDetector",
    "TokenSpace",
    "Vocabulary",
    "first_difference",
    "json_schema",
    "pieces",
    "regex",
    "text_of",
    "texts_of",
]
