"""Token ids and text: the vocabulary of a checkpoint, whether two share their ids, when an answer ends, its text in pieces, and
grammars it follows."""

from eventspec.text.pieces import Piece as Piece
from eventspec.text.pieces import StopDetector as StopDetector
from eventspec.text.pieces import pieces as pieces
from eventspec.text.pieces import text_of as text_of
from eventspec.text.pieces import texts_of as texts_of
from eventspec.text.tokens import TokenSpace as TokenSpace
from eventspec.text.vocabulary import Vocabulary as Vocabulary
from eventspec.text.vocabulary import first_difference as first_difference
