"""A tokenizer as the engine's rooms need it: text to ids and back, and a fingerprint that tells whether two share their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from eventspec.core import BadCheckpoint


class Vocabulary:
    """A `tokenizer.json`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """BadCheckpoint when the file is missing or no tokenizer."""
        if not path.is_file():
            raise BadCheckpoint(f"{path} is missing: the folder is not a complete checkpoint")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:
            raise BadCheckpoint(f"{path} is not a tokenizer ({error}): fetch or train it again") from None

    def encode(self, text: str) -> list[int]:
        """Ids without any special token added; special tokens written in the text are recognised."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @property
    def size(self) -> int:
        """Number of ids, special tokens included."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def fingerprint(self) -> str:
        """Equal for vocabularies with the same pieces at the same ids."""
        pieces = sorted(self._tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]
