"""Token ids and text: the vocabulary of a checkpoint, and when an answer ends."""

from eventspec.text.stopping import stop_rule
from eventspec.text.vocabulary import Vocabulary

__all__ = ["Vocabulary", "stop_rule"]
