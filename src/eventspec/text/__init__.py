"""Token ids and text: the vocabulary of a checkpoint, whether two share their ids, when an answer ends, its text in pieces, and
grammars it follows."""

from eventspec.text.grammar import json_schema, regex
from eventspec.text.pieces import Piece, pieces, text_of
from eventspec.text.stopping import stop_rule
from eventspec.text.vocabulary import Vocabulary, first_difference

__all__ = ["Piece", "Vocabulary", "first_difference", "json_schema", "pieces", "regex", "stop_rule", "text_of"]
