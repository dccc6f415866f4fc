"""What an event drafter wrote is taken up again where the answer has arrived in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eventspec.core import Budget, Media, Request, Scores, Trace, Verdict
from eventspec.drafters import ReusedDrafter
from eventspec.drafters.language_model import LanguageDraft
from eventspec.drafters.texts import place
from eventspec.tree import check

PROMPT = [7, 3, 11, 2, 19]
END = 0
UNUSED = Scores(torch.empty(0))
WRITTEN = tuple((token, 0.9) for token in (5, 6, 7, 8, 9, 6, 7, END))
tokens = st.lists(st.integers(0, 4), max_size=20)


def tell(session: Any, *said: int) -> None:
    session.observe(Verdict(np.empty(0, np.int64), np.array(said, np.int64)), UNUSED)


@pytest.mark.parametrize(
    ("answer", "at"),
    [
        ([5, 6], 2),
        ([5, 6, 7], 3),
        ([5, 6, 7, 8, 9, 6, 7], 7),  # of two matches of its last tokens the longer one
        ([1, 1, 1, 1, 6, 7], 7),  # of two equal ones the nearer
        ([5, 6, 1], 3),  # another token in the place of the last
        ([5, 1], 2),
        ([5, 6, 1, 8, 9], 5),  # back on the text
        ([5], 8),  # of one token alone nobody knows
        ([1, 2, 3], 8),
        ([], 8),
    ],
)
def test_the_place_is_behind_what_was_said_or_behind_what_stood_for_it(answer: list[int], at: int) -> None:
    found, sure = place([token for token, _ in WRITTEN], answer)
    assert found == at
    assert (sure > 0) == (at < len(WRITTEN))


@given(tokens, tokens)
def test_a_place_lies_in_the_text_and_a_longer_match_is_surer(text: list[int], answer: list[int]) -> None:
    at, sure = place(text, answer)
    assert 0 <= at <= len(text)
    assert 0 <= sure < 1
    if len(answer) > 1 and at > 1 and text[at - 2 : at] == answer[-2:]:
        assert sure >= 0.75


@given(tokens, st.integers(2, 20))
def test_on_its_own_path_the_text_goes_on(text: list[int], said: int) -> None:
    said = min(said, len(text))
    at, _ = place(text, text[:said])
    assert said < 2 or text[at - 1] == text[said - 1]
    if len(set(text)) == len(text) and said >= 2:
        assert at == said


def test_a_proposal_is_the_rest_of_the_text_as_sure_as_place_and_drafter_are() -> None:
    session = ReusedDrafter(lambda request: WRITTEN).open(Request(Media(), "?"), None, Trace())
    budget = Budget(4)
    assert len(session.propose(budget)) == 0, "nothing is said yet: that is the drafter's own draft"
    tell(session, 5, 6)
    proposal = check(session.propose(budget), budget)
    assert proposal.tokens.tolist() == [7, 8, 9, 6]
    assert proposal.parents.tolist() == [-1, 0, 1, 2]
    assert proposal.values == pytest.approx(0.75 * 0.9 ** np.arange(1, 5))
    tell(session, 1, 8, 9, 6, 7, END)
    assert len(session.propose(budget)) == 0, "the answer has ended"


def test_who_wrote_nothing_proposes_nothing() -> None:
    session = ReusedDrafter(lambda request: ()).open(Request(Media(), "?"), None, Trace())
    tell(session, 5, 6)
    assert len(session.propose(Budget(4))) == 0


# ------------------------------------------------------------------------------------------------------- writing to the end
def opened(drafter: Any, asked: Any) -> tuple[LanguageDraft, Any]:
    request = asked(PROMPT)
    draft = drafter.open(request, None, Trace())
    return draft, request


def greedy(drafter: Any, asked: Any, most: int) -> list[int]:
    """The likeliest token behind the likeliest, read from nothing each time."""
    said: list[int] = []
    while len(said) < most and END not in said:
        draft = drafter.open(asked(PROMPT + said), None, Trace())
        said.append(int(draft.propose(Budget(1)).tokens[0]))
    return said


@pytest.mark.parametrize("seed", range(4))
def test_behind_its_draft_the_answer_is_written_to_its_end(seed: int, model: Any, drafting: Any, asked: Any) -> None:
    drafter = drafting(model(seed, sure=3.0))
    draft, request = opened(drafter, asked)
    draft.propose(Budget(3, min_frontier_prob=0.9, max_depth=30))
    drafted = drafter.written(request)
    assert [token for token, _ in drafted] == draft.tree.best_chain()
    draft.write_on(Budget(3, max_depth=30))
    written = drafter.written(request)
    assert written[: len(drafted)] == drafted
    assert len(written) == 30 or written[-1][0] == END
    assert [token for token, _ in written] == draft.tree.best_chain() == greedy(drafter, asked, len(written))
    assert all(0 < share <= 1 for _, share in written)


def test_it_stops_when_it_is_told(model: Any, drafting: Any, asked: Any) -> None:
    drafter = drafting(model(1, sure=3.0))

    def written(steps: int) -> list[int]:
        draft, request = opened(drafter, asked)
        draft.propose(Budget(1, max_depth=40))
        left = iter([False] * steps)
        draft.write_on(Budget(1, until=lambda: next(left, True), max_depth=40))
        return [token for token, _ in drafter.written(request)]

    none, few, more = written(0), written(2), written(7)
    assert len(none) < len(few) < len(more)
    assert more[: len(few)] == few
    assert few[: len(none)] == none


def test_what_was_written_is_of_its_request_and_of_a_whole_answer(model: Any, drafting: Any, asked: Any) -> None:
    drafter = drafting(model(2, sure=3.0))
    draft, request = opened(drafter, asked)
    assert drafter.written(asked(PROMPT)) == (), "an equal request is another one"
    draft.propose(Budget(8, max_depth=20))
    draft.write_on(Budget(8, max_depth=20))
    first = drafter.written(request)
    assert first
    tell(draft, first[0][0], 29)
    draft.propose(Budget(8, max_depth=20))
    draft.write_on(Budget(8, max_depth=20))
    assert drafter.written(request) == first, "behind a verdict it is the rest of an answer"
    del draft
    assert drafter.written(request) == (), "kept no longer than its draft"


def test_without_any_draft_nothing_is_written(model: Any, drafting: Any, asked: Any) -> None:
    drafter = drafting(model(1, sure=3.0))
    draft, request = opened(drafter, asked)
    draft.write_on(Budget(8, max_depth=20))
    assert drafter.written(request) == ()
