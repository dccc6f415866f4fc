"""A text as a draft: followed where it goes on as expected, found again where it does not, never more than a guess."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import Budget, Media, Request, Sampling, Scores, Trace, Verdict
from eventspec.drafters import ReferenceDrafter

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=80)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def behind(said: list[int], text: list[int] = TEXT) -> list[int]:
    draft = ReferenceDrafter("text", lambda media, question: text).open(Request(Media(), "?", Sampling()), None, Trace())
    draft.observe(Verdict(np.empty(0, np.int64), np.array(said, np.int64)), Scores(torch.empty(0)))
    return draft.propose(Budget(99)).tokens.tolist()


@pytest.mark.parametrize(
    ("said", "next_one"),
    [
        ([], 3),
        ([3, 1, 4], 1),
        ([3, 1, 7], 1),  # one token was replaced
        ([3, 1, 7, 1, 5], 9),
        ([3, 1, 5, 9], 2),  # some were left out
        ([3, 1, 4, 7, 7, 7, 4, 1, 5], 9),  # some came in between
        ([7, 7, 3, 1, 4], 1),
    ],
)
def test_a_text_goes_on_where_the_answer_is_in_it(said: list[int], next_one: int) -> None:
    assert behind(said)[0] == next_one


def test_the_nearest_of_several_places_counts() -> None:
    assert behind([0, 1, 2, 9, 1, 2], [0, 1, 2, 3, 1, 2, 4, 1, 2, 5])[0] == 4


@FIXED
@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_whatever_is_said_the_place_is_in_the_text(said: list[int], text: list[int]) -> None:
    left = behind(said, text)
    assert left == text[len(text) - len(left) :]


@FIXED
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_a_text_that_is_right_is_drafted_to_its_end(text: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert behind(text[:at], text) == text[at:]


def test_a_draft_is_a_chain_within_the_budget() -> None:
    asked = list[tuple[Media, str]]()

    def text(media: Media, question: str) -> list[int]:
        asked.append((media, question))
        return TEXT

    media, shown = Media(), list[list[int]]()
    session = ReferenceDrafter("text", text).open(Request(media, "What?", Sampling()), None, Trace())
    assert asked == [(media, "What?")]
    session.observe(Verdict(np.empty(0, np.int64), np.array([3, 1])), Scores(torch.empty(0)))
    proposal = session.propose(Budget(4, max_depth=3, show=shown.append))
    assert (proposal.tokens.tolist(), proposal.parents.tolist(), proposal.origin) == ([4, 1, 5], [-1, 0, 1], "text")
    assert shown == [[4, 1, 5]]
    nothing = ReferenceDrafter("text", lambda media, question: []).open(Request(media, "?", Sampling()), None, Trace())
    assert len(nothing.propose(Budget(4))) == 0
