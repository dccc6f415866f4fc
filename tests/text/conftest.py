"""A word-level tokenizer, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """saved("a", "b", special=("<s>",)) -> a tokenizer.json whose ids are the places of these words."""

    def make(*words: str, special: tuple[str, ...] = (), name: str = "tokenizer.json") -> Path:
        vocabulary = {word: place for place, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(list(special))
        tokenizer.save(str(tmp_path / name))
        return tmp_path / name

    return make
