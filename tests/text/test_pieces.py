"""Text in pieces: what was given stays, no character is cut, no part of a stop string shows, and all of it is the answer."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

import eventspec
from eventspec.core import Committed, Provisional, Retracted, Update
from eventspec.text import Piece, StopDetector, Vocabulary, pieces, text_of

NANO = Path(eventspec.__file__).parent / "data/pairs/nano/tokenizer.json"
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def byte_level() -> Vocabulary:
    return Vocabulary.load(NANO)


@pytest.fixture(scope="module")
def llama_like() -> Vocabulary:
    """Metaspace pieces and bytes, decoded as Llama's."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁the", "▁car", "s", "c", "é", "▁é", "▁▁", ".", "\n"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return Vocabulary(tokenizer)


def replayed(updates: Iterable[Update]) -> Generator[Update, None, None]:
    yield from updates


def shown(updates: list[Update], vocabulary: Vocabulary, stops: Sequence[str] = ()) -> list[Piece]:
    return list(pieces(replayed(updates), vocabulary.decode, stops))


def blocks(ids: list[int], cuts: list[int]) -> list[Update]:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
    return [Committed(tuple(ids[a:b])) for a, b in pairwise(edges) if b > a]


def with_guesses(ids: list[int], cuts: list[int], rng: random.Random, size: int) -> list[Update]:
    """What a reader is sent: right and wrong guesses between the blocks, withdrawn where they are wrong."""
    found: list[Update] = []
    at = 0
    for block in blocks(ids, cuts):
        assert isinstance(block, Committed)
        guess = [
            *ids[at : at + rng.randint(0, len(block.tokens) + 1)],
            *(rng.randrange(size) for _ in range(rng.randint(0, 3))),
        ]
        same = next((i for i, (a, b) in enumerate(zip(guess, block.tokens, strict=False)) if a != b), None)
        kept = min(len(guess), len(block.tokens)) if same is None else same
        if guess:
            found.append(Provisional(tuple(guess)))
        if len(guess) > kept:
            found.append(Retracted(len(guess) - kept))
        found.append(block)
        at += len(block.tokens)
    return found


cuts_of = st.lists(st.integers(0, 24), max_size=8)
STOPS = st.lists(st.sampled_from([" ", " t", " the", "e", "the car", "é", "ar", "\n", ". ", "s.", "bus"]), max_size=3)


@FIXED
@given(ids=st.lists(st.integers(0, 479), max_size=24), cuts=cuts_of, stops=STOPS, seed=st.integers(0, 99))
@example(ids=[100, 6, 202, 221], cuts=[1, 2, 3], stops=[], seed=0)
def test_pieces_joined_are_the_answer_however_it_was_cut(
    ids: list[int], cuts: list[int], stops: list[str], seed: int, byte_level: Vocabulary
) -> None:
    whole = text_of(ids, byte_level.decode, stops)
    found = shown(with_guesses(ids, cuts, random.Random(seed), 480), byte_level, stops)
    assert "".join(piece.text for piece in found) == whole
    said = text_of(ids, byte_level.decode)
    first = min((at for stop in stops if (at := said.find(stop)) >= 0), default=None)
    if first is None and not any(stop[-1].isspace() for stop in stops):
        assert whole == said
    elif len(stops) == 1 and not stops[0][-1].isspace():
        assert whole == said[:first]
    assert said.startswith(whole)
    assert not any(stop in whole for stop in stops)
    so_far = ""
    for piece in found:
        so_far += piece.text
        assert whole.startswith(so_far)
        assert not any(stop in so_far + piece.provisional for stop in stops)
    assert not found or found[-1].provisional == ""


@FIXED
@given(ids=st.lists(st.integers(0, 268), max_size=16), cuts=cuts_of, text=st.text("aé€😀\n", max_size=8))
def test_byte_pieces_become_characters_only_when_they_are_whole(
    ids: list[int], cuts: list[int], text: str, llama_like: Vocabulary
) -> None:
    spelled = [3 + byte for byte in text.encode()]
    assert text_of(spelled, llama_like.decode) == text.strip()
    for piece in shown(blocks(spelled, cuts), llama_like):
        assert "\ufffd" not in piece.text
    mixed = [*ids, *spelled]
    assert "".join(p.text for p in shown(blocks(mixed, cuts), llama_like)) == text_of(mixed, llama_like.decode)


@FIXED
@given(ids=st.lists(st.sampled_from([0, 1, 2, *range(259, 269)]), max_size=16), cuts=cuts_of)
def test_spaces_that_pieces_bring_along_are_kept(ids: list[int], cuts: list[int], llama_like: Vocabulary) -> None:
    """Without byte pieces nothing said can change, so the text is the tokenizer's own."""
    assert text_of(ids, llama_like.decode) == llama_like.decode(ids).strip()


def test_a_character_comes_whole(byte_level: Vocabulary) -> None:
    ids = byte_level.encode("a€b")
    assert len(ids) == 5
    found = shown([Committed((token,)) for token in ids], byte_level)
    assert [piece.text for piece in found] == ["a", "€", "b"]
    cut = shown([Committed(tuple(ids[:3]))], byte_level)
    assert [piece.text for piece in cut] == ["a", "\ufffd"]  # the answer ended inside it: the text says so, at the end only


def test_a_bad_byte_does_not_unsay_a_character(llama_like: Vocabulary) -> None:
    """Llama's decoder turns the whole run of byte pieces into replacement characters, what was said before included."""
    euro, bad, the = [3 + byte for byte in "€".encode()], 3 + 0xFF, llama_like.id_of("▁the") or 0
    assert llama_like.decode([*euro, bad]) == "\ufffd" * 4
    found = shown([Committed((token,)) for token in [*euro, bad, the, *euro]], llama_like)
    assert "".join(piece.text for piece in found) == "€\ufffd the€"


def test_the_beginning_of_a_stop_string_is_held_back(byte_level: Vocabulary) -> None:
    def spelled(text: str) -> list[Update]:
        return [Committed((byte_level.id_of(letter) or 0,)) for letter in text]

    stopped = shown(spelled("abSTOPcd"), byte_level, ["STOP"])
    assert [piece.text for piece in stopped] == ["a", "b"]
    other = shown(spelled("abSTOcd"), byte_level, ["STOP"])
    assert [piece.text for piece in other] == ["a", "b", "STOc", "d"]
    ended = shown(spelled("abSTO"), byte_level, ["STOP"])
    assert [piece.text for piece in ended] == ["a", "b", "STO"]
    longest = shown(spelled("aXXY"), byte_level, ["XXXY", "XY"])
    assert "".join(piece.text for piece in longest) == "aX"


@pytest.mark.parametrize(
    ("stop", "text"),
    [(" ", "Yes"), (" Y", None), (" Yes", None), ("Yes", ""), ("no", "Yes "), (" no", "Yes"), ("s n", "Ye"), ("\n", None)],
)
def test_a_stop_string_is_looked_for_in_the_text_that_is_shown(stop: str, text: str | None, llama_like: Vocabulary) -> None:
    """Llama's first piece brings a space that the answer does not have; other spaces are the answer's."""
    whole = "Yes no, not"
    ids = [
        llama_like.id_of("▁") or 0,
        *(3 + byte for byte in b"Yes"),
        llama_like.id_of("▁") or 0,
        *(3 + byte for byte in b"no, not"),
    ]
    for tokens in (ids, [3 + ord("\n"), *ids]):
        assert text_of(tokens, llama_like.decode) == whole
        wanted = whole if text is None else text
        assert text_of(tokens, llama_like.decode, [stop]) == wanted
        for size in (1, 3, len(tokens)):
            updates = blocks(tokens, list(range(0, len(tokens), size)))
            assert "".join(piece.text for piece in shown(updates, llama_like, [stop])) == wanted
        kept = StopDetector((), [stop], llama_like.decode)(tokens)
        assert (kept is None) == (text is None)
        assert text_of(tokens[:kept], llama_like.decode, [stop]) == wanted


def test_space_at_the_end_is_held_back_until_something_follows(byte_level: Vocabulary) -> None:
    ids = byte_level.encode(" Yes")
    space = byte_level.id_of("Ġ") or 0
    found = shown(
        [Committed((*ids, space)), Committed((space,)), Committed(tuple(byte_level.encode("a"))), Committed((space,))],
        byte_level,
    )
    assert [piece.text for piece in found] == ["Yes", "  a"]


def test_provisional_text_is_replaced_and_gone_at_the_end(byte_level: Vocabulary) -> None:
    yes, no = (tuple(byte_level.encode(word)) for word in ("Yes", "No"))
    found = shown([Provisional(no), Retracted(len(no)), Provisional(yes), Committed(yes), Provisional(no)], byte_level)
    assert found == [Piece("", "No"), Piece("", ""), Piece("", "Yes"), Piece("Yes", ""), Piece("", "No"), Piece("", "")]


def test_leaving_early_closes_the_updates(byte_level: Vocabulary) -> None:
    left = []

    def updates() -> Generator[Update, None, None]:
        try:
            yield Committed((70,))
            yield Committed((71,))
        finally:
            left.append(True)

    reading = pieces(updates(), byte_level.decode)
    assert next(reading).text == "a"
    reading.close()  # type: ignore[attr-defined]
    assert left == [True]


@FIXED
@given(ids=st.lists(st.integers(0, 479), min_size=1, max_size=24), cuts=cuts_of, stops=STOPS)
def test_the_rule_stops_where_the_text_does(ids: list[int], cuts: list[int], stops: list[str], byte_level: Vocabulary) -> None:
    stop = StopDetector((), stops, byte_level.decode)
    kept, checked = None, 0
    for block in blocks(ids, cuts):
        assert isinstance(block, Committed)
        if kept is None:
            found = stop(block.tokens)
            kept = None if found is None else checked + found
        checked += len(block.tokens)
    whole = text_of(ids, byte_level.decode, stops)
    if kept is None:
        assert whole == text_of(ids, byte_level.decode)
    else:
        assert text_of(ids[:kept], byte_level.decode, stops) == whole
        assert any(stop in byte_level.decode(ids[:kept]).lstrip() for stop in stops)
        assert not any(stop in byte_level.decode(ids[: kept - 1]).lstrip() for stop in stops)


def test_a_long_answer_costs_the_same_for_every_token(byte_level: Vocabulary) -> None:
    """The decoder never sees more than the last few tokens."""
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_level.decode(ids)

    ids = byte_level.encode("A yellow car, 10 m away, drives € 3. " * 60)
    stop = StopDetector((), ["never"], decode)
    for token in ids:
        assert stop([token]) is None
    assert longest <= 6
