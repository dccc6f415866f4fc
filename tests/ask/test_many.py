"""Many questions in one scheduler: the answers are those of one question after the other, in far fewer forwards."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import eventspec as es
from eventspec.ask import generation, many
from eventspec.pairs import Pair, load_pair
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording

METHODS = ("autoregressive", "eagle", "hybrid", "prior", "cross-modal", "specvlm", "auto", "ngram")
QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", fit=False)


def asks(count: int, seed: int) -> list[es.Ask]:
    """Questions of all kinds about a few clips: every method, lengths from 1 on, greedy and sampled."""
    chance = random.Random(seed)
    clips = [
        as_recording(make_clip(split_seed("test", seed, number)), f"clip {number}") for number in range(max(2, count // 12))
    ]
    found = []
    for number in range(count):
        settings: dict[str, Any] = {"max_new_tokens": chance.choice((1, 6, 24, 64))}
        if number % 3 == 0:
            settings |= {"temperature": chance.choice((0.7, 1.3)), "seed": number, "top_p": chance.choice((0.9, 1.0))}
        found.append(es.Ask(chance.choice(clips), chance.choice(QUESTIONS), METHODS[number % len(METHODS)], **settings))
    return found


def together(pair: Pair, asked: list[es.Ask], most: int) -> tuple[es.Batch, list[es.Batch]]:
    return es.generate_many(pair, asked, most=most), [es.generate_many(pair, [ask], most=1) for ask in asked]


@pytest.mark.parametrize("count", [10, pytest.param(24, marks=pytest.mark.long)])
def test_eight_at_a_time_say_what_one_after_the_other_says(pair: Pair, count: int) -> None:
    """With ten, every method is asked, and two join as others end."""
    asked = asks(count, seed=1)
    many, alone = together(pair, asked, most=8)
    assert [result.token_ids for result in many.results] == [one.results[0].token_ids for one in alone]
    assert [result.text for result in many.results] == [one.results[0].text for one in alone]
    assert many.forwards <= sum(one.forwards for one in alone) / 2
    assert [result.method for result in many.results] == [ask.method for ask in asked]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_three_hundred_answers_say_the_same_eight_at_a_time(pair: Pair) -> None:
    many, alone = together(pair, asks(300, seed=7), most=8)
    assert [result.token_ids for result in many.results] == [one.results[0].token_ids for one in alone]
    assert many.forwards < sum(one.forwards for one in alone) / 2


def test_one_at_a_time_is_what_generate_gives(pair: Pair) -> None:
    asked = asks(6, seed=2)
    many = es.generate_many(pair, asked, most=1)
    wanted = [es.generate(pair, ask.recording, ask.question, ask.method, **ask.settings) for ask in asked]
    assert [result.token_ids for result in many.results] == [result.token_ids for result in wanted]
    assert many.forwards >= sum(len(result.trace.rounds) for result in wanted)


def test_a_shared_forward_teaches_nothing(pair: Pair) -> None:
    """It takes longer than the forward of one answer: neither costs nor `auto` are learnt from it."""
    fresh = load_pair("nano", fit=False)
    choice = fresh.method("auto").choice
    asked = [es.Ask("example:street", question, "auto", max_new_tokens=8) for question in QUESTIONS]
    es.generate_many(fresh, asked, most=4)
    assert choice.seen == {}  # type: ignore[union-attr]
    es.generate_many(fresh, asked[:1], most=4)
    assert choice.seen != {}  # type: ignore[union-attr]


def test_what_cannot_be_asked_is_refused_before_any_answer(pair: Pair) -> None:
    good = es.Ask("example:street", "What is ahead?", "prior", max_new_tokens=4)
    with pytest.raises(es.BadInput, match="most is 0: give a whole number from 1 on"):
        es.generate_many(pair, [good], most=0)
    with pytest.raises(es.BadInput, match=r"asks\[1\] is a str: give an eventspec.Ask"):
        es.generate_many(pair, [good, "What is ahead?"])  # type: ignore[list-item]
    with pytest.raises(es.BadInput, match=r"asks\[\d\]: unknown method 'eagel'"):
        es.generate_many(pair, [good, es.Ask("example:street", "What?", "eagel")])
    with pytest.raises(es.BadInput, match="exceed the context"):
        es.generate_many(pair, [good, es.Ask("example:street", "What?", "prior", max_new_tokens=100_000)])
    with pytest.raises(es.BadInput, match="asks is a Ask: give a list"):
        es.generate_many(pair, good)  # type: ignore[arg-type]
    assert es.generate_many(pair, []).results == []


def test_an_answer_that_fails_says_which_question_it_was(pair: Pair) -> None:
    class Failing(es.Target):
        limits, lossless = pair.target.limits, True

        def encode(self, media: es.Media, trace: es.Trace) -> es.Context:
            raise ValueError("no pixels")

    with pytest.raises(ValueError, match="no pixels") as failed:
        es.generate_many(pair.with_target(Failing()), [es.Ask("example:street", "What is ahead?", "prior", max_new_tokens=4)])
    assert failed.value.__notes__ == ["asks[0] failed: 'What is ahead?'"]
    # What was finished by then is not lost.
    both = pair.with_method("failing", replace(pair.method("prior"), target=Failing()))
    asks = [es.Ask("example:street", "What is ahead?", method, max_new_tokens=4) for method in ("prior", "failing", "prior")]
    with pytest.raises(ValueError, match="no pixels") as failed:
        es.generate_many(both, asks, most=1)
    first, *others = failed.value.results  # type: ignore[attr-defined]
    assert len(first.token_ids) == 4 and others == [None, None]


def test_what_is_no_pair_and_no_drafter_is_named() -> None:
    with pytest.raises(es.BadInput, match="the pair is a str: give what load_pair returns"):
        es.generate("embedded", "example:street", "What?")  # type: ignore[arg-type]
    for given, says in (
        ({"where": 5}, "the pair is a int"),
        ({"device_plan": "three"}, "device plan 'three' is unknown"),
        ({"target": 5}, "the target is a int"),
        ({"target": "nowhere", "dtype": 5}, "dtype is a int"),
        ({"target": "nowhere", "device": None}, "device is a NoneType"),
    ):
        with pytest.raises(es.BadInput, match=says):
            es.load_pair(**given)  # type: ignore[arg-type]
    for protocol, lacks in ((es.Drafter, "open"), (es.Target, "encode")):
        with pytest.raises(TypeError, match=f"abstract method '?{lacks}"):
            type("Mine", (protocol,), {})()


def test_cancelled_questions_are_not_begun(pair: Pair) -> None:
    made = [generation(pair, es.Recording.open("example:street"), "What is ahead?", "prior") for _ in range(2)]
    for one in made:
        one.cancel()
    assert pair.workers.start("target", lambda: many._answer(pair, made, 1)).result(60) == 0
