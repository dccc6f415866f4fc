"""Rounding cannot change an answer: what is too close to call is told, and taken from plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from eventspec.core import Proposal, Sampling, Scores, Verdict
from eventspec.costs.fit import session_of
from eventspec.engine.distribution import choose, position_rng, processed
from eventspec.engine.drafts import Drafts
from eventspec.engine.numerics import PlainDecoding, measured_rounding
from eventspec.engine.policy import NO_TAIL, DraftPolicy
from eventspec.lanes.workers import Workers

ONE = Workers("one")
EAGER = DraftPolicy(max_nodes=8, head_nodes=8, patience=1, step_seconds=1)
FIXED = settings(derandomize=True, database=None, deadline=None)

SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.7, presence_penalty=0.5),
    Sampling(temperature=1.0),
    Sampling(temperature=2.0, top_k=5),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=1.5, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=0.6),
]


@settings(FIXED, max_examples=400)
@given(sampling=st.sampled_from(SAMPLINGS), seed=st.integers(0, 10_000), rounding=st.sampled_from([1e-3, 0.03, 0.3]))
def test_a_choice_that_rounding_could_change_is_told(sampling: Sampling, seed: int, rounding: float) -> None:
    """Coarse logits, so that edges and ties are often close; every logit moves by at most half of the rounding."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(np.round(rng.normal(0, 1.5, 20) * 4) / 4 + rng.normal(0, rounding, 20))
    asked, path = replace(sampling, seed=seed), [3, 3, 7]
    token, near = choose(logits, path, asked, None, position_rng(seed), rounding)
    for _ in range(20):
        other = logits + torch.from_numpy(rng.uniform(-0.5, 0.5, 20) * rounding)
        if choose(other, path, asked, None, position_rng(seed))[0] != token:
            assert near, "another token came out, and nobody was told"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_few_choices_are_too_close_to_call(sampling: Sampling) -> None:
    """A warning that is always given is none: of random rows with rounding as small as it is, about one in a thousand."""
    rows = np.random.default_rng(0).normal(0, 3, (2000, 50))
    found = [
        choose(torch.from_numpy(row), [3, 3, 7], replace(sampling, seed=at), None, position_rng(at), 1e-4)[1]
        for at, row in enumerate(rows)
    ]
    assert sum(found) <= 8


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s.temperature])
def test_tokens_are_chosen_with_their_probabilities(sampling: Sampling) -> None:
    row = torch.from_numpy(np.random.default_rng(1).normal(0, 1.5, 12))
    drawn = np.bincount([choose(row, [2, 5], sampling, None, position_rng(seed))[0] for seed in range(8000)], minlength=12)
    for temperature, fits in ((sampling.temperature, True), (2 * sampling.temperature, False)):
        shares = processed(row, [2, 5], replace(sampling, temperature=temperature))
        if not fits and np.count_nonzero(shares) < 3:
            continue
        assert drawn[shares == 0].sum() == 0 or not fits
        expected = np.where(shares > 0, shares, 1e-9) * drawn.sum()
        p = float(
            chisquare(drawn[shares > 0], expected[shares > 0] * drawn[shares > 0].sum() / expected[shares > 0].sum()).pvalue
        )
        assert p > 1e-3 if fits else p < 1e-3


@pytest.fixture
def shaky(wrapped: Any) -> Callable[..., Any]:
    """The tiny target in fp64, whose logits are off by noise of 1e-6 in every row that was not read alone."""

    def make(target: Any, size: float = 1e-6) -> Any:
        def change(session: Any, tail: int) -> Any:
            score, generator = session.score, torch.Generator().manual_seed(0)

            def noisy(proposal: Proposal) -> Scores:
                scores = score(proposal)
                if tail == NO_TAIL and not len(proposal):
                    return scores
                noise = torch.rand(scores.logits.shape, generator=generator, dtype=torch.float64) - 0.5
                return Scores(scores.logits + 2 * size * noise, scores.features)

            session.score = noisy
            return session

        made = wrapped(target, change)
        made.limits = replace(target.limits, rounding=4 * size)
        return made

    return make


def tied(world: Any, position: int, **more: Any) -> Any:
    """The request with a bias that makes the two best tokens equal, to the last bits, at this position of the greedy answer or
    another one where the bias leaves the tokens before as they are."""
    truth = world.answer(world.request(max_new_tokens=24))
    session = session_of(world.target, NO_TAIL, asked=world.request(max_new_tokens=30))
    for place in (*range(position, 24), *range(position)):
        values, tokens = PlainDecoding(session.fresh_copy).logits(truth[:place]).topk(2)
        request = world.request(max_new_tokens=24, logit_bias={int(tokens[1]): float(values[0] - values[1])}, **more)
        if world.answer(request)[:place] == truth[:place]:
            return request
    raise AssertionError("no such place")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_near_ties_are_settled_as_plain_decoding_decides(
    temperature: float, tiny: Any, oracle: Any, decoded: Any, shaky: Any
) -> None:
    """Forty ties; without settling some of the answers differ, which shows that there was something to settle."""
    settled = counted = different = 0
    for at in range(40):
        world = tiny(at % 5)
        target = shaky(world.target, 1e-6 if temperature == 0 else 0.05)
        request = tied(world, at % 9) if temperature == 0 else world.request(max_new_tokens=24, temperature=1.0, seed=at)
        alone = decoded(world, Drafts(), request, DraftPolicy(), ONE, target).outcome.token_ids
        for settle in (True, False):
            drafter = oracle(alone, concurrent=False)
            ran = decoded(world, drafter, request, replace(EAGER, settle=settle), ONE, target)
            if settle:
                settled += ran.outcome.token_ids == alone
                counted += ran.trace.near_ties
            else:
                different += ran.outcome.token_ids != alone
    assert settled == 40
    assert counted >= 20
    assert different > 5


def test_only_near_ties_that_stand_in_the_answer_are_counted(tiny: Any, oracle: Any, decoded: Any) -> None:
    world = tiny(0)
    request = tied(world, 3)
    plain = decoded(world, Drafts(), request, DraftPolicy(), ONE).outcome.token_ids
    whole = decoded(world, oracle(plain, concurrent=False), request, EAGER, ONE)
    assert (whole.outcome.token_ids, whole.trace.near_ties) == (plain, 1)
    short = replace(request, sampling=request.sampling.but(max_new_tokens=3))
    assert decoded(world, oracle(plain, concurrent=False), short, EAGER, ONE).trace.near_ties == 0


def test_a_baseline_has_nothing_to_settle(tiny: Any, decoded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiny(0)
    request = tied(world, 3)
    monkeypatch.setattr(PlainDecoding, "logits", lambda *parts: pytest.fail("the baseline was decoded twice"))
    assert decoded(world, Drafts(), request, DraftPolicy(), ONE).trace.near_ties == 1


def fp32(world: Any) -> Callable[..., Any]:
    """Sessions of the same model in single precision."""
    from copy import deepcopy

    from eventspec.models.prompt import Prompt, TextEncoder
    from eventspec.models.session import LanguageTarget

    with torch.inference_mode(False):
        language = deepcopy(world.language).float()
    prompt = Prompt(language.embed(torch.tensor([1, 2, 3, 4, 5])), (0, 0))
    target = LanguageTarget(TextEncoder(language, lambda question: prompt))
    return lambda tail: session_of(target, tail, asked=world.request(max_new_tokens=30))


def test_plain_decoding_has_the_bits_of_the_baseline(tiny: Any) -> None:
    """Also where the session was read in other parts and has verified trees since."""
    begin, said = fp32(tiny(1)), [3, 9, 1, 4, 1, 5, 9, 2, 6]
    baseline, rows = begin(NO_TAIL), []
    for token in said:
        rows.append(baseline.score(Proposal.empty()).logits[0])
        baseline.commit(Verdict(np.empty(0, np.int64), np.array([token])))
    used = begin(2)
    used.score(Proposal.chain(said[:5]))
    used.commit(Verdict(np.arange(4), np.array(said[:5])))
    plain = PlainDecoding(used.fresh_copy)
    for place in (2, 2, 5, 8):
        assert torch.equal(plain.logits(said[:place]), rows[place])
    assert torch.equal(plain.logits([3, 8]), PlainDecoding(begin(1).fresh_copy).logits([3, 8])), "another answer is read anew"


def test_rounding_is_measured(tiny: Any) -> None:
    begin = fp32(tiny(1))
    single = measured_rounding(lambda: begin(NO_TAIL), 40, 20)
    assert 1e-7 < single < 1e-3
    assert tiny(1).target.limits.rounding < 1e-11
