"""Token ids and text: the vocabulary of a checkpoint, whether two share their ids, and when an answer ends."""

from eventspec.text.stopping import stop_rule
from eventspec.text.vocabulary import Vocabulary, first_difference

__all__ = ["Vocabulary", "first_difference", "stop_rule"]
