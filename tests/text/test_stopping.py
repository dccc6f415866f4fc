"""When an answer ends: the same place whether tokens come one by one or in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.text import stop_rule

LETTERS = "abcdefgh"
Stopped = Callable[[Sequence[int], int], int | None]


def spelled(ids: Sequence[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def in_blocks(stopped: Stopped, answer: list[int], cuts: list[int]) -> list[int] | None:
    """The kept answer when it arrives in blocks that end at `cuts`."""
    for checked, end in pairwise([0, *sorted({cut for cut in cuts if 0 < cut < len(answer)}), len(answer)]):
        kept = stopped(answer[:end], checked)
        if kept is not None:
            return answer[:kept]
    return None


def test_a_stop_token_is_kept_and_what_follows_is_not() -> None:
    stopped = stop_rule([7, 9])
    assert stopped([1, 2, 3], 0) is None
    assert stopped([1, 7, 3, 9], 0) == 2
    assert stopped([1, 2, 9], 2) == 3


def test_only_new_tokens_are_checked() -> None:
    assert stop_rule([7])([7, 1], 1) is None


def test_a_stop_string_may_cross_token_borders() -> None:
    stopped = stop_rule((), ("cd",), spelled)
    assert stopped([0, 1, 2], 0) is None
    assert stopped([0, 1, 2, 3, 4], 3) == 4  # "abcd": complete with token 4, though it began before


def test_whichever_comes_first_ends_the_answer() -> None:
    stopped = stop_rule([4], ("bc",), spelled)
    assert stopped([0, 1, 2, 4], 0) == 3
    assert stopped([4, 1, 2], 0) == 1
    assert stopped([0, 1, 2, 4], 3) == 4  # the string was seen before; only the token is new


def test_without_rules_an_answer_never_ends() -> None:
    assert stop_rule(())([1, 2, 3], 0) is None


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    answer=st.lists(st.integers(0, 7), min_size=1, max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=6),
    ids=st.lists(st.integers(0, 7), max_size=2),
    strings=st.lists(st.text(LETTERS, min_size=1, max_size=3), max_size=2),
)
def test_blocks_end_where_single_tokens_do(answer: list[int], cuts: list[int], ids: list[int], strings: list[str]) -> None:
    stopped = stop_rule(ids, strings, spelled)
    assert in_blocks(stopped, answer, cuts) == in_blocks(stopped, answer, list(range(1, len(answer))))
    if (kept := in_blocks(stopped, answer, cuts)) is None:
        assert not set(ids) & set(answer)
        assert not any(string in spelled(answer) for string in strings)
    else:
        assert kept[-1] in ids or any(string in spelled(kept) for string in strings)


@pytest.mark.parametrize("strings", [("",)])
def test_an_empty_stop_string_ends_at_once(strings: tuple[str, ...]) -> None:
    assert stop_rule((), strings, spelled)([1, 2], 0) == 1
