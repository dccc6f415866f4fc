"""The drafters that see no picture: nothing, prompt lookup, and what answers usually say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from eventspec.core import Budget, DraftSession, Media, Proposal, Request, Scores, Trace, Verdict
from eventspec.drafters import NgramDrafter, PriorDrafter, TextPrior
from eventspec.tree import check

END = 9
ASKED = Request(Media(), "what is ahead?")


def told(session: DraftSession, *tokens: int) -> None:
    session.observe(Verdict(np.empty(0, np.int64), np.array(tokens, np.int64)), Scores(torch.empty(0)))


# ------------------------------------------------------------------------------------------------------------- prompt lookup
def looked_up(prompt: list[int], *answer: int, budget: Budget | None = None, longest: int = 3) -> list[int]:
    budget = budget or Budget(10)
    session = NgramDrafter(lambda question: prompt, longest).open(ASKED, None, Trace())
    if answer:
        told(session, *answer)
    proposal = check(session.propose(budget), budget)
    assert proposal.parents.tolist() == list(range(-1, len(proposal) - 1))
    return proposal.tokens.tolist()


def test_what_followed_the_same_tokens_before_is_proposed() -> None:
    assert looked_up([1, 2, 3, 4], 1, 2) == [3, 4, 1, 2]


def test_the_longest_match_wins() -> None:
    assert looked_up([5, 1, 2, 7, 6, 2, 8, 8], 1, 2, budget=Budget(1)) == [7]
    assert looked_up([5, 1, 2, 7, 6, 2, 8, 8], 1, 2, budget=Budget(1), longest=1) == [8]


def test_among_equal_matches_the_latest_wins() -> None:
    assert looked_up([1, 2, 3, 1, 2, 4], 1, 2, budget=Budget(1)) == [4]


def test_the_answer_itself_is_searched_too() -> None:
    assert looked_up([0], 5, 6, 7, 5, 6, budget=Budget(1)) == [7]


def test_a_text_that_never_repeats_gives_nothing() -> None:
    assert looked_up([1, 2, 3]) == looked_up([], 4) == looked_up([]) == []


def test_a_lookup_keeps_to_its_budget() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1]
    assert looked_up(prompt, budget=Budget(2)) == [2, 3]
    assert looked_up(prompt, budget=Budget(5, max_depth=3)) == [2, 3, 4]


# ---------------------------------------------------------------------------------------------------------------- the prior
@pytest.fixture
def prior() -> TextPrior:
    colours = [("colour?", [1, 2, 3, END])] * 6 + [("colour?", [1, 2, 4, END])] * 4
    return TextPrior.of([*colours, *[("size?", [1, 5, END])] * 5, ("rare?", [8, END])])


def test_the_prior_knows_shares_by_question(prior: TextPrior) -> None:
    assert prior.following("colour?", [1, 2], 4) == [(3, pytest.approx(6 / 10)), (4, pytest.approx(4 / 10))]
    assert prior.following("size?", [1], 4) == [(5, 1.0)]


def test_an_unknown_question_backs_off_to_all_of_them(prior: TextPrior) -> None:
    assert prior.following("who?", [1], 1) == [(2, pytest.approx(10 / 15))]


def test_a_question_seen_less_than_four_times_backs_off(prior: TextPrior) -> None:
    assert prior.following("rare?", [], 1)[0][0] == 1


def test_an_unknown_beginning_backs_off_to_shorter_ones(prior: TextPrior) -> None:
    assert prior.following("colour?", [7, 7, 2], 1) == [(3, pytest.approx(6 / 10))]
    assert prior.following("colour?", [7], 9) == prior.following("colour?", [6, 6], 9)


def test_a_prior_that_has_read_nothing_proposes_nothing() -> None:
    assert TextPrior().following("colour?", [], 4) == []
    assert len(PriorDrafter(TextPrior(), END).open(ASKED, None, Trace()).propose(Budget(8))) == 0


def test_saving_and_loading_keeps_every_answer(prior: TextPrior, tmp_path: Path) -> None:
    prior.save(tmp_path / "prior.json")
    again = TextPrior.load(tmp_path / "prior.json")
    assert again.longest == prior.longest
    for question in ("colour?", "size?", "rare?", "who?"):
        for before in ([], [1], [1, 2], [1, 2, 3], [7], [5, 2]):
            assert again.following(question, before, 4) == prior.following(question, before, 4)


def test_what_saving_cut_away_keeps_its_weight(tmp_path: Path) -> None:
    """Eight continuations are kept; the others' share is not given to them, and it is never proposed."""
    prior = TextPrior.of([("q", [token]) for token in range(20) for _ in range(20 - token)])
    prior.save(tmp_path / "prior.json")
    again = TextPrior.load(tmp_path / "prior.json")
    assert dict(again.following("q", [], 30))[0] == pytest.approx(20 / 210)
    budget = Budget(30)
    proposal = check(PriorDrafter(again, END).open(Request(Media(), "q"), None, Trace()).propose(budget), budget)
    assert len(proposal) > 0
    assert (proposal.tokens >= 0).all()
    assert json.loads((tmp_path / "prior.json").read_text())["longest"] == 6


def drafted(prior: TextPrior, question: str, *answer: int, budget: Budget | None = None) -> Proposal:
    session = PriorDrafter(prior, END).open(Request(Media(), question), None, Trace())
    if answer:
        told(session, *answer)
    return check(session.propose(budget or Budget(12)), budget or Budget(12))


def test_the_prior_drafts_the_likeliest_tree(prior: TextPrior) -> None:
    proposal = drafted(prior, "colour?")
    assert proposal.tokens.tolist() == [1, 2, 3, END, 4, END], "best first"
    assert proposal.parents.tolist() == [-1, 0, 1, 2, 1, 4]
    assert proposal.values == pytest.approx([1, 1, 0.6, 0.6, 0.4, 0.4])


def test_the_prior_goes_on_behind_what_was_committed(prior: TextPrior) -> None:
    assert drafted(prior, "colour?", 1, 2, 4).tokens.tolist() == [END]


def test_the_prior_keeps_to_its_budget(prior: TextPrior) -> None:
    assert drafted(prior, "colour?", budget=Budget(3)).tokens.tolist() == [1, 2, 3]
    assert drafted(prior, "colour?", budget=Budget(9, max_depth=2)).tokens.tolist() == [1, 2]
    assert drafted(prior, "colour?", budget=Budget(9, min_path_prob=0.5)).tokens.tolist() == [1, 2, 3, END]
