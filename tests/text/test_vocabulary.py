"""A tokenizer file: ids, text, and the fingerprint that tells whether two models share their ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eventspec.core import BadCheckpoint
from eventspec.text import Vocabulary

Saved = Callable[..., Path]
WORDS = ("<unk>", "a", "b", "c")


def test_text_becomes_ids_and_comes_back(saved: Saved) -> None:
    vocabulary = Vocabulary.load(saved(*WORDS))
    assert vocabulary.encode("a c b") == [1, 3, 2]
    assert vocabulary.decode([1, 3, 2]) == "a c b"
    assert vocabulary.decode([]) == ""


def test_special_tokens_are_read_in_text_never_added_and_never_spoken(saved: Saved) -> None:
    vocabulary = Vocabulary.load(saved(*WORDS, special=("<s>",)))
    assert vocabulary.encode("<s> a") == [4, 1]
    assert vocabulary.encode("a") == [1]
    assert vocabulary.decode([4, 1]) == "a"
    assert vocabulary.size == 5


def test_the_fingerprint_is_that_of_pieces_and_their_ids(saved: Saved) -> None:
    same = [Vocabulary.load(saved(*WORDS, name=name)).fingerprint() for name in ("one.json", "two.json")]
    swapped = Vocabulary.load(saved("<unk>", "b", "a", "c")).fingerprint()
    longer = Vocabulary.load(saved(*WORDS, "d")).fingerprint()
    special = Vocabulary.load(saved(*WORDS, special=("<s>",))).fingerprint()
    assert same[0] == same[1]
    assert len({same[0], swapped, longer, special}) == 4


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json is missing"):
        Vocabulary.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\x00", b'{"model": {"type": "What"}}'])
def test_a_file_that_is_no_tokenizer_is_named_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json is not a tokenizer") as caught:
        Vocabulary.load(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)
