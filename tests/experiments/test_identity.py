"""The identity check compares what it says it compares, and fails when a method is not the target's."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from eventspec.ask import generate
from eventspec.cli import run
from eventspec.core import Proposal, Sampling, Verdict
from eventspec.engine import answer as rule
from eventspec.experiments.identity import (
    Arm,
    Tally,
    Trial,
    compare_answers,
    heads_of,
    methods_of,
    rehearsal,
    tie_of,
    totals,
)
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

QUESTION = "Describe the scene."


def verdict(tallies: dict[str, Tally]) -> tuple[int, int]:
    """How many answers differ, and in how many the drafter failed."""
    found = totals(tallies)
    return found["different"], found["failed"]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.fixture(scope="module")
def scene() -> Recording:
    return Recording.open(DATA / "clips/street_scene")


def asked(scene: Recording, **settings: Any) -> Trial:
    return Trial("once", scene, QUESTION, Sampling(max_new_tokens=12, **settings))


def test_every_method_and_every_head_is_an_arm(pair: Pair) -> None:
    assert {arm.name for arm in methods_of(pair)} == {
        *("cross-modal", "eagle", "specvlm", "hybrid", "hybrid-blind", "cascade", "aligned", "event-eagle"),
        *("ngram", "prior", "auto"),
    }
    names = {arm.name for arm in heads_of(pair)}
    assert {"eagle, eagle3:static", "eagle, massv:pruned", "cross-modal, fine:intersect"} <= names
    assert "eagle, massv:static" not in names


def test_answers_that_differ_and_drafters_that_fail_are_counted(
    pair: Pair, scene: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        name, taps, needs_target, concurrent = "failing", (), False, False

        def open(self, *parts: Any) -> Any:
            raise OSError("gone")

    arms = [*methods_of(pair)[:1], Arm("failing", "prior", pair.with_drafter("prior", Failing()))]
    told = compare_answers(pair, arms, [asked(scene)])
    assert verdict(told) == (0, 1)
    assert told["failing"].failed == 1
    assert told[arms[0].name].drafted > 0
    real = rule.verify

    def wrong(logits: Any, proposal: Proposal, *more: Any) -> Verdict:
        found = real(logits, proposal, *more)
        return found if not len(proposal) else Verdict(found.path[:0], found.tokens[:1] + 1)

    monkeypatch.setattr(rule, "verify", wrong)
    told = compare_answers(pair, arms[:1], [asked(scene)], tallies={arms[0].name: Tally(answers=3, tokens=30)})
    assert verdict(told)[0] == 1
    assert (told[arms[0].name].answers, told[arms[0].name].examples[0]["question"]) == (4, "once")


def test_time_that_is_over_ends_it(pair: Pair, scene: Recording) -> None:
    arms, clock = methods_of(pair), iter([False, True, True, True])
    told = compare_answers(pair, arms, [asked(scene)] * 3, lambda: next(clock))
    assert sum(tally.answers for tally in told.values()) == 2


@pytest.mark.parametrize("method", ["eagle", "prior"])
def test_a_tie_is_a_near_tie_and_settled(method: str, pair: Pair, scene: Recording) -> None:
    sampling = tie_of(pair, scene, QUESTION, 5, 12)
    assert sampling is not None
    base = generate(pair, scene, QUESTION, "autoregressive", sampling=sampling)
    found = generate(pair, scene, QUESTION, method, sampling=sampling)
    assert found.token_ids == base.token_ids
    assert found.as_json()["speculation"]["near_ties"] == found.trace.near_ties == base.trace.near_ties >= 1
    assert any("near tie" in note and "settled by plain decoding" in note for note in found.trace.notes)
    assert tie_of(pair, scene, QUESTION, 500, 12) is None


def test_a_rehearsal_has_greedy_drawn_and_tied_questions(pair: Pair) -> None:
    found = list(islice(rehearsal(pair), 8))
    assert {bool(one.sampling.temperature) for one in found} == {True, False}
    assert any(one.sampling.logit_bias for one in found)
    assert len({one.recording.name for one in found}) == 2


@pytest.mark.parametrize("seconds", ["2", pytest.param("8", marks=pytest.mark.long)])
def test_doctor_tests_this_machine(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert run(["doctor", "--self-test", "--seconds", seconds, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["self_test"]
    assert told["exact"] is True
    assert told["answers"] >= 2
    assert told["different"] == told["failed"] == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_long_answers_are_plain_decodings(pair: Pair, scene: Recording) -> None:
    """Every head and tree: 100 tokens drawn at temperature 2, 100 greedy ones, ties at five places."""
    banned = {"banned_ids": (pair.eos_id,), "max_new_tokens": 100}
    settings = [Sampling(temperature=2.0, seed=1046, **banned), Sampling(**banned)]
    settings += [found for at in range(5) if (found := tie_of(pair, scene, QUESTION, 3 * at, 32)) is not None]
    questions = [Trial(f"{at}", scene, QUESTION, sampling) for at, sampling in enumerate(settings)]
    told = compare_answers(pair, [*methods_of(pair), *heads_of(pair)], questions)
    assert verdict(told) == (0, 0), {name: tally.examples for name, tally in told.items() if tally.different}
    assert all(tally.near_ties for tally in told.values()), "nobody met the tie"
