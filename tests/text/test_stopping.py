"""When an answer ends: the same place whether tokens come one by one or in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.text import StopDetector

LETTERS = "abcdefgh"


def spelled(ids: Sequence[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def in_blocks(stop: StopDetector, answer: list[int], cuts: list[int]) -> list[int] | None:
    """The kept answer when it arrives in blocks that end at `cuts`."""
    for begin, end in pairwise([0, *sorted({cut for cut in cuts if 0 < cut < len(answer)}), len(answer)]):
        kept = stop(answer[begin:end])
        if kept is not None:
            return answer[: begin + kept]
    return None


def test_a_stop_token_is_kept_and_what_follows_is_not() -> None:
    assert StopDetector([7, 9])([1, 2, 3]) is None
    assert StopDetector([7, 9])([1, 7, 3, 9]) == 2
    assert in_blocks(StopDetector([7, 9]), [1, 2, 9], [2]) == [1, 2, 9]


def test_a_stop_string_may_cross_token_borders() -> None:
    stop = StopDetector((), ("cd",), spelled)
    assert stop([0, 1, 2]) is None
    assert stop([3, 4]) == 1  # "abcd": complete with token 3, though it began before


def test_whichever_comes_first_ends_the_answer() -> None:
    assert StopDetector([4], ("bc",), spelled)([0, 1, 2, 4]) == 3
    assert StopDetector([4], ("bc",), spelled)([4, 1, 2]) == 1


def test_without_rules_an_answer_never_ends() -> None:
    assert StopDetector(())([1, 2, 3]) is None


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    answer=st.lists(st.integers(0, 7), min_size=1, max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=6),
    ids=st.lists(st.integers(0, 7), max_size=2),
    strings=st.lists(st.text(LETTERS, min_size=1, max_size=3), max_size=2),
)
def test_blocks_end_where_single_tokens_do(answer: list[int], cuts: list[int], ids: list[int], strings: list[str]) -> None:
    kept = in_blocks(StopDetector(ids, strings, spelled), answer, cuts)
    assert kept == in_blocks(StopDetector(ids, strings, spelled), answer, list(range(1, len(answer))))
    if kept is None:
        assert not set(ids) & set(answer)
        assert not any(string in spelled(answer) for string in strings)
    else:
        assert kept[-1] in ids or any(string in spelled(kept) for string in strings)


@pytest.mark.parametrize("strings", [("",)])
def test_an_empty_stop_string_ends_at_once(strings: tuple[str, ...]) -> None:
    assert StopDetector((), strings, spelled)([1, 2]) == 1
