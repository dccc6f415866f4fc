"""tokenizer.model files: the same ids as SentencePiece's own, and a refusal in one line for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import eventspec
from eventspec.core import BadCheckpoint
from eventspec.text import Vocabulary, first_difference

Model = Callable[..., bytes]
Words = tuple[tuple[str, ...], tuple[str, ...]]
GOLDEN = Path(__file__).parents[2].parent / "shared/goldens/eventgpt/checkpoint"
DATA = Path(eventspec.__file__).parent / "data"


def written(folder: Path, data: bytes, **config: object) -> Vocabulary:
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Vocabulary.of_folder(folder)


def pieces(vocabulary: Vocabulary, text: str) -> list[str | None]:
    return [vocabulary.piece(i) for i in vocabulary.encode(text)]


def test_the_piece_that_scores_highest_is_joined_first(tmp_path: Path, sentencepiece_model: Model, words: Words) -> None:
    vocabulary = written(tmp_path, sentencepiece_model(words[0]), legacy=False)
    assert pieces(vocabulary, "the car is an") == ["▁the", "▁car", "▁is", "▁an"]
    assert pieces(vocabulary, "x\n") == ["▁", "<0x78>", "<0x0A>"]
    assert vocabulary.decode(vocabulary.encode("the caré\n")) == "the caré\n"
    assert vocabulary.size == vocabulary.text_size == 259 + len(words[0])


def test_text_behind_a_special_token_gets_a_space_only_in_legacy_tokenizers(
    tmp_path: Path, sentencepiece_model: Model, words: Words
) -> None:
    for legacy, behind in ((False, "t"), (True, "▁t")):
        vocabulary = written(tmp_path, sentencepiece_model(words[0]), legacy=legacy).with_special(["<ev_end>"])
        assert pieces(vocabulary, "a<ev_end>t") == ["▁a", "<ev_end>", behind]
        assert vocabulary.size == vocabulary.text_size + 1
        assert vocabulary.with_special(["<ev_end>", "</s>"]).size == vocabulary.size


def test_added_tokens_keep_their_ids(tmp_path: Path, sentencepiece_model: Model, words: Words) -> None:
    data, base = sentencepiece_model(words[0]), 259 + len(words[0])
    added = {str(base + 1): {"content": "<b>"}, str(base): {"content": "<a>"}, "1": {"content": "<s>"}}
    vocabulary = written(tmp_path, data, legacy=False, added_tokens_decoder=added)
    assert (vocabulary.id_of("<a>"), vocabulary.id_of("<b>")) == (base, base + 1)
    with pytest.raises(BadCheckpoint, match="leaves a gap"):
        written(tmp_path, data, added_tokens_decoder={str(base + 1): {"content": "<b>"}})
    with pytest.raises(BadCheckpoint, match="added tokens cannot be read"):
        written(tmp_path, data, added_tokens_decoder=["<b>"])


@pytest.mark.parametrize("kept", [0, 1, 5, 100, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, sentencepiece_model: Model, words: Words, kept: int) -> None:
    data = sentencepiece_model(words[0])
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.model is not a Llama SentencePiece model") as caught:
        written(tmp_path, data[:kept])
    assert "\n" not in str(caught.value)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(data=st.binary(max_size=60))
def test_bytes_are_refused_or_read_but_never_crash(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.model"
    path.write_bytes(data)
    from eventspec.text.sentencepiece_file import read_pieces

    try:
        read_pieces(path)
    except BadCheckpoint as error:
        assert "\n" not in str(error)


def test_models_that_treat_text_otherwise_are_refused(tmp_path: Path, sentencepiece_model: Model, words: Words) -> None:
    for bad in (sentencepiece_model(words[0], algorithm=1), sentencepiece_model(words[0], dummy_prefix=False)):
        with pytest.raises(BadCheckpoint, match=r"algorithm|normalises"):
            written(tmp_path, bad)


@cache
def golden_vocabulary() -> Vocabulary:
    return Vocabulary.of_folder(GOLDEN)


@pytest.mark.skipif(not GOLDEN.exists(), reason="the goldens are not beside this checkout")
@settings(derandomize=True, database=None, deadline=None, max_examples=500)
@given(text=st.text(st.sampled_from("abcdefgh theandoi  s\n<>éß漢🙂.,!?0123 "), max_size=60))
def test_ids_are_those_of_sentencepiece(text: str) -> None:
    """But for a text that begins with a space: there transformers 5 puts none before, and neither do we."""
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(GOLDEN / "tokenizer.model"))
    text = text.lstrip(" ")
    assume(not any(special in text for special in ("<s>", "</s>", "<unk>")))  # SentencePiece alone takes them for letters
    assert golden_vocabulary().encode(text) == theirs.encode(text)


# -------------------------------------------------------------------------------------------------------------- spelling
@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(data=st.binary(max_size=40) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_spelled_again_or_cut(data: bytes, both: tuple[Vocabulary, Vocabulary]) -> None:
    for vocabulary in both:
        spelled = vocabulary.spell(vocabulary.respell(data))
        assert data.startswith(spelled)
        if "▁".encode() not in data and b"<" not in data:
            assert spelled == data  # with byte pieces nothing else is beyond it


@pytest.fixture(scope="module")
def both(sentencepiece_model: Model, words: Words, tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, Vocabulary]:
    one, other = (written(tmp_path_factory.mktemp("v"), sentencepiece_model(w), legacy=False) for w in words)
    return one, other


def test_spelling_keeps_spaces_and_leaves_out_special_tokens(both: tuple[Vocabulary, Vocabulary]) -> None:
    vocabulary = both[0]
    ids = vocabulary.encode("the car")
    assert vocabulary.spell([1, *ids, 2]) == b" the car"
    assert [vocabulary.piece(i) for i in vocabulary.respell(b"he car")] == ["he", "▁car"]
    assert vocabulary.spell(vocabulary.respell(b"the</s>")) == b"the"  # written out, it is no end


def test_byte_level_tokenizers_spell_too(both: tuple[Vocabulary, Vocabulary]) -> None:
    bundled = Vocabulary.load(DATA / "pairs/nano/tokenizer.json")
    for text in ("a car on the right", " two\n", "café"):
        ids = bundled.respell(text.encode())
        assert bundled.spell(ids) == text.encode()
        assert both[0].spell(both[0].respell(bundled.spell(ids))) == text.encode()
    assert bundled.respell(b"") == []


def test_the_first_difference_is_told_with_both_pieces(both: tuple[Vocabulary, Vocabulary]) -> None:
    assert first_difference(*both) == (260, "t", "e")
    assert first_difference(both[0], both[0].with_special(["<x>"])) is None
