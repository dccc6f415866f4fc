"""A drafter behind a qualifier: what the qualifier keeps, that it reads what was committed, and that no answer changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Budget, Drafter, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters import Cascade, PriorDrafter
from eventspec.models.session import LanguageTarget
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

QUESTION = "Describe the scene."


class Saying:
    """Drafts one tree again and again, whatever was said."""

    needs_target, taps, concurrent, name = False, (), False, "saying"

    def __init__(self, tokens: list[int], parents: list[int]) -> None:
        self.tree = Proposal(np.array(tokens, np.int64), np.array(parents, np.int64))

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> Saying:
        return self

    def propose(self, budget: Budget) -> Proposal:
        return self.tree

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        pass


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture(scope="module")
def still(pair: Pair) -> Recording:
    """A recording of a single frame: what the target sees of it, it sees of its last frame alone."""
    recording = Recording.open(DATA / "clips/street_scene")
    assert recording.video is not None
    last = recording.video.times_us[-1]
    video = type(recording.video)(recording.video.frames[-1:], np.array([last]))
    return replace(recording, video=video)


def cascade(pair: Pair, drafter: Drafter, threshold: float = 0.3) -> Cascade:
    assert isinstance(pair.target, LanguageTarget)
    return Cascade("cascade", drafter, LanguageTarget(pair.target.encoder), pair.eos_id, threshold)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 2}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("clip", ["street_scene", "davis346_traffic_1s"])
def test_the_answer_is_the_targets(pair: Pair, clip: str, settings: dict[str, float]) -> None:
    recording = Recording.open(DATA / "clips" / clip)
    plain = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=32, **settings)
    found = generate(pair, recording, QUESTION, "cascade", max_new_tokens=32, **settings)
    assert found.token_ids == plain.token_ids
    assert not found.trace.given_up
    assert found.trace.drafted > 0


def test_a_qualifier_that_sees_what_the_target_sees_is_always_right(pair: Pair, still: Recording) -> None:
    """Every row of it stands where it should, round after round: its first choice is the token that the target says."""
    prior = pair.parts.prior
    assert prior is not None
    for drafter in (PriorDrafter(prior, pair.eos_id), Saying([], []), Saying([7, 8, 9, 10], [-1, 0, -1, 1])):
        asked = pair.with_drafter("mine", cascade(pair, drafter), patience=1e9, node_cost=0.0, level_cost=0.0)
        found = generate(asked, still, QUESTION, "mine", max_new_tokens=40)
        assert found.token_ids == generate(pair, still, QUESTION, "autoregressive", max_new_tokens=40).token_ids
        assert not found.trace.given_up
        assert all(r.accepted >= 1 for r in found.trace.rounds[:-1])


def test_a_threshold_of_one_leaves_its_own_choices_only(pair: Pair, still: Recording) -> None:
    prior = pair.parts.prior
    assert prior is not None
    request = Request(media_of(still), QUESTION)
    loose, strict = (
        cascade(pair, PriorDrafter(prior, pair.eos_id), threshold).open(request, None, Trace()).propose(Budget(64))
        for threshold in (0.0, 1.0)
    )
    drafted = PriorDrafter(prior, pair.eos_id).open(request, None, Trace()).propose(Budget(64))
    assert strict.parents.tolist() == list(range(-1, len(strict) - 1)), "a chain"
    assert len(loose) > len(strict)
    assert set(drafted.tokens.tolist()) <= set(loose.tokens.tolist())
    assert loose.values is not None
    assert ((loose.values >= 0) & (loose.values <= 1)).all()


def test_asked_again_without_a_verdict_it_drafts_for_the_same_place(pair: Pair, still: Recording) -> None:
    request = Request(media_of(still), QUESTION)
    session = cascade(pair, Saying([7, 8], [-1, 0]), 0.0).open(request, None, Trace())
    first, again = session.propose(Budget(16)), session.propose(Budget(16))
    assert first.tokens.tolist() == again.tokens.tolist()
    token = int(first.tokens[0])
    session.observe(Verdict(np.empty(0, np.int64), np.array([token, 7, 8], np.int64)), Scores(torch.empty(0)))
    behind = session.propose(Budget(16))
    assert behind.tokens.tolist() != first.tokens.tolist()
    fresh = cascade(pair, Saying([7, 8], [-1, 0]), 0.0).open(request, None, Trace())
    for one in (token, 7, 8):  # told one by one it knows the same
        fresh.observe(Verdict(np.empty(0, np.int64), np.array([one], np.int64)), Scores(torch.empty(0)))
        found = fresh.propose(Budget(16))
    assert found.tokens.tolist() == behind.tokens.tolist()
    assert found.values is not None and behind.values is not None
    np.testing.assert_allclose(found.values, behind.values, atol=1e-4)


@pytest.mark.parametrize("tree", [([99999], [-1]), ([-3], [-1]), ([1, 2], [1, 0]), ([1] * 500, [*range(-1, 499)])])
def test_a_drafter_that_breaks_its_word_costs_the_drafts_only(tree: tuple[list[int], list[int]], pair: Pair) -> None:
    recording = Recording.open(DATA / "clips/street_scene")
    asked = pair.with_drafter("mine", cascade(pair, Saying(*tree)))
    found = generate(asked, recording, QUESTION, "mine", max_new_tokens=12)
    assert found.token_ids == generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=12).token_ids
    assert found.trace.given_up == ["cascade"]


def test_a_context_keeps_what_the_qualifier_read(pair: Pair) -> None:
    context = pair.open(Recording.open(DATA / "clips/street_scene"))
    for question in (QUESTION, "What is ahead?"):
        fresh = generate(pair, Recording.open(DATA / "clips/street_scene"), question, "cascade", max_new_tokens=16)
        assert context.ask(question, "cascade", max_new_tokens=16).token_ids == fresh.token_ids
