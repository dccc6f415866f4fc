"""Method `auto`: it learns which method is soonest, tries what is uncertain, and loses little while it finds out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eventspec.ask import generate
from eventspec.core import BadInput
from eventspec.drafters import TextPrior
from eventspec.engine.method import AnswerTimes, QuestionInfo
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.auto import MEMORY, STANDING, STANDING_QUESTIONS, TRIES, Chooser
from eventspec.pairs.methods import auto
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

QUESTION = "How many road users are visible?"
COSTS = {"head": (1.05, 0.004), "prior": (1.0, 0.008), "events": (1.1, 0.005), "plain": (1.0, 0.03)}
"""Seconds to the first token and of every further one."""


def asked(question: str = QUESTION, read_before: bool = False, events: bool = True, most: int = 64) -> QuestionInfo:
    return QuestionInfo(question, most, frozenset({"events"} if events else ()), read_before)


def spent(
    chooser: Chooser, costs: dict[str, tuple[float, float]], tokens: list[int], noise: float = 0.1, seed: int = 0
) -> float:
    """Seconds of answers of so many tokens each, learnt from one after the other."""
    rng, total = np.random.default_rng(seed), 0.0
    for count in tokens:
        question = asked(f"one of {count} tokens")
        name = chooser.choose(question)
        slower = float(np.exp(noise * rng.normal()))
        first, further = costs[name]
        total += first + further * (count - 1)
        chooser.learn(name, question, AnswerTimes(first * slower, further * (count - 1) * slower, count))
    return total


def best(costs: dict[str, tuple[float, float]], tokens: list[int]) -> float:
    return sum(min(first + further * (count - 1) for first, further in costs.values()) for count in tokens)


@pytest.mark.parametrize("seed", range(4))
def test_it_costs_little_more_than_the_best_choice_for_each_length(seed: int) -> None:
    tokens = np.random.default_rng(seed).choice([4, 12, 60], 200).tolist()
    chooser = Chooser(list(COSTS))
    assert spent(chooser, COSTS, tokens, seed=seed) < 1.04 * best(COSTS, tokens)


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_changes_is_noticed(seed: int) -> None:
    chooser, tokens = Chooser(list(COSTS)), [40] * 150
    spent(chooser, COSTS, tokens, seed=seed)
    assert chooser.choose(asked("one of 40 tokens")) in ("head", "events")
    busy = {**COSTS, "head": (2.5, 0.02), "events": (3.0, 0.02)}  # somebody else uses the drafter's core
    assert spent(chooser, busy, tokens, seed=seed) < 1.1 * best(busy, tokens)
    assert chooser.choose(asked("one of 40 tokens")) == "prior"


def test_a_method_that_is_always_slower_is_left_but_for_a_few_tries() -> None:
    """The negative control: without learning, a quarter of the answers would go to each."""
    chooser, chosen = Chooser(["slow", "quick"]), []
    for _ in range(200):
        name = chooser.choose(asked())
        chosen.append(name)
        chooser.learn(name, asked(), AnswerTimes(2.0 if name == "slow" else 1.0, 0.1, 10))
    assert chosen.count("slow") <= 4


AHEAD = {"ahead": (1.02, 20, 0.03), "head": (1.0, 0, 0.02)}
"""Seconds to the first token, tokens that come with it, seconds of every further one: a head start makes short answers free."""


@pytest.mark.parametrize("names", [["ahead", "head"], ["head", "ahead"]])
def test_a_head_start_is_worth_its_time_on_short_answers_only(names: list[str]) -> None:
    """A price a token, learnt from answers of all lengths, would take the wrong one on most of the long answers for ever."""
    rng, chooser = np.random.default_rng(0), Chooser(names)

    def cost(name: str, count: int) -> float:
        first, free, further = AHEAD[name]
        return first + further * max(0, count - 1 - free)

    spent, best_of = {15: 0.0, 100: 0.0}, {15: 0.0, 100: 0.0}
    for count in rng.choice([15, 100], 600).tolist():
        question = asked(f"one of {count} tokens", most=256)
        name = chooser.choose(question)
        total, slower = cost(name, count), float(np.exp(0.08 * rng.normal()))
        first = AHEAD[name][0]
        chooser.learn(name, question, AnswerTimes(first * slower, (total - first) * slower, count))
        spent[count] += total
        best_of[count] += min(cost(one, count) for one in AHEAD)
    assert best_of[15] / spent[15] > 0.97
    assert best_of[100] / spent[100] > 0.97


def test_answers_of_one_token_are_compared_too() -> None:
    chooser, chosen = Chooser(["slow", "quick"]), []
    for number in range(100):
        name = chooser.choose(asked(f"question {number}"))
        chosen.append(name)
        chooser.learn(name, asked(f"question {number}"), AnswerTimes(2.0 if name == "slow" else 1.0, 0.0, 1))
    assert chosen.count("slow") <= 4


def test_an_answer_that_was_cut_off_says_nothing_about_its_length() -> None:
    chooser = Chooser(["a"])
    for _ in range(9):
        chooser.learn("a", asked(most=4), AnswerTimes(1.0, 1.0, 4, complete=False))
    assert chooser.expected(QUESTION) > 4


def test_the_first_answer_of_a_method_teaches_nothing_about_later_ones(tmp_path: Path) -> None:
    chooser = Chooser(["a", "b"]).remembering(tmp_path / "pair.json", warm=False)
    chooser.learn("a", asked(), AnswerTimes(9.0, 9.0, 9))
    chooser.learn("b", asked(), AnswerTimes(9.0, 9.0, 9))
    assert {state: list(rows) for state, rows in chooser.seen.items()} == {"new, first": ["a"]}
    chooser.learn("a", asked(), AnswerTimes(1.0, 1.0, 9))
    assert len(chooser.seen["new"]["a"].answers) == 1


def test_programs_that_ask_once_learn_from_each_other(tmp_path: Path) -> None:
    chosen = []
    for _ in range(60):
        chooser = Chooser(["slow", "plain", "quick"]).remembering(tmp_path / "pair.json", warm=False)
        chosen.append(chooser.choose(asked()))
        took = {"slow": 9.0, "plain": 2.0, "quick": 1.0}[chosen[-1]]
        chooser.learn(chosen[-1], asked(), AnswerTimes(took, took, 9))
    assert chosen[:3] == ["slow", "plain", "quick"] and chosen.count("slow") <= 2 and chosen.count("quick") > 50


def test_what_no_first_answer_is_known_of_comes_in_the_order_of_later_ones(tmp_path: Path) -> None:
    known = Chooser(["a", "b", "c"]).remembering(tmp_path / "pair.json")
    for name, took in (("a", 3.0), ("c", 1.0), ("b", 2.0)):
        known.learn(name, asked(), AnswerTimes(took, took, 9))
        known._written = 0.0
    known.learn("b", asked(), AnswerTimes(2.0, 2.0, 9))
    assert Chooser(["a", "b", "c"]).remembering(tmp_path / "pair.json", warm=False).choose(asked()) == "c"


def test_recordings_that_were_read_before_are_learnt_apart() -> None:
    chooser = Chooser(["a", "b"])
    for name, new, again in (("a", 1.0, 0.4), ("b", 2.0, 0.1)) * 5:
        chooser.learn(name, asked(), AnswerTimes(new, 0.0, 1))
        chooser.learn(name, asked(read_before=True), AnswerTimes(again, 0.0, 1))
    assert chooser.choose(asked(most=1)) == "a"
    assert chooser.choose(asked(read_before=True, most=1)) == "b"


def standing(chooser: Chooser, costs: dict[str, float], question: str, times: int, read_before: bool = True) -> list[str]:
    """What was chosen for one question, which takes `costs` seconds to answer."""
    chosen = []
    for _ in range(times):
        about = asked(question, read_before)
        chosen.append(chooser.choose(about))
        chooser.learn(chosen[-1], about, AnswerTimes(0.005, costs[chosen[-1]], 30))
    return chosen


def test_a_standing_question_has_the_method_that_is_best_for_it() -> None:
    chooser = Chooser(["texts", "plain", "head"], steady=frozenset({"plain"}), rereading=frozenset({"head"}))
    for_texts, for_head = {"texts": 0.03, "plain": 0.1, "head": 0.05}, {"texts": 0.03, "plain": 0.1, "head": 0.025}
    one, other = list[str](), list[str]()
    for _ in range(20):  # by turns, so that neither is what is best for all
        one += standing(chooser, for_texts, "What needs attention?", 2)
        other += standing(chooser, for_head, "Describe the scene.", 2)
    assert one[-20:].count("texts") >= 18
    assert other[-20:].count("head") >= 18
    assert other[STANDING:].count("plain") == 0, "what was never worth it is not tried for every question"


def test_what_rereads_is_only_for_recordings_that_were_read_before() -> None:
    chooser = Chooser(["texts", "head"], rereading=frozenset({"head"}))
    assert set(standing(chooser, {"texts": 0.03, "head": 0.01}, QUESTION, 60, read_before=False)) == {"texts"}
    assert not chooser.by_question
    assert "head" in standing(chooser, {"texts": 0.03, "head": 0.01}, QUESTION, 10)


@pytest.mark.parametrize(("most", "preferred"), [(8, "mix"), (40, "head")])
def test_of_equal_ones_a_brief_answer_about_a_known_recording_has_the_mix(most: int, preferred: str) -> None:
    chooser = Chooser(["mix", "head"], rereading=frozenset({"head"}), preferred="mix")
    for number in range(40):
        about = asked(f"question {number}", read_before=True, most=most)
        chooser.learn(name := chooser.choose(about), about, AnswerTimes(0.005, 0.02 if name == preferred else 0.0202, most))
    assert chooser.choose(asked(read_before=True, most=most)) == preferred
    assert chooser.choose(asked(most=most)) == "mix"


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_one_slow_answer_locks_no_method_out(slow: int) -> None:
    chooser = Chooser(["texts", "head"], rereading=frozenset({"head"}))
    standing(chooser, {"texts": 0.03, "head": 0.02}, QUESTION, STANDING)
    for number in range(TRIES):
        chooser.learn("head", asked(read_before=True), AnswerTimes(0.005, 0.2 if number == slow else 0.02, 30))
    assert standing(chooser, {"texts": 0.03, "head": 0.02}, QUESTION, 40).count("head") >= 30


def test_the_first_answer_of_a_process_says_nothing_about_a_standing_question(tmp_path: Path) -> None:
    chooser = Chooser(["texts", "other"]).remembering(tmp_path / "pair.json", warm=False)
    standing(chooser, {"texts": 0.3, "other": 0.3}, QUESTION, 1)
    assert not chooser.by_question
    standing(chooser, {"texts": 0.03, "other": 0.03}, QUESTION, 4)
    assert chooser.by_question


def test_a_standing_question_gets_what_is_best_for_all_when_that_changes() -> None:
    chooser = Chooser(["a", "b", "head"], rereading=frozenset({"head"}))
    quick = {"a": 0.02, "b": 0.04, "head": 0.03}
    standing(chooser, quick, "another?", 6)
    standing(chooser, quick, QUESTION, 20)
    assert "b" not in chooser.by_question[QUESTION], "known to be slower for all questions"
    busy = {"a": 0.2, "b": 0.04, "head": 0.2}
    for number in range(60):
        standing(chooser, busy, f"{number}?", 1)
    assert standing(chooser, busy, QUESTION, 60)[-20:].count("b") >= 18


def test_the_latest_standing_questions_are_kept() -> None:
    chooser = Chooser(["a"])
    for number in range(STANDING_QUESTIONS + 5):
        chooser.learn("a", asked("0?", True), AnswerTimes(0.1, 0.1, 4))
        chooser.learn("a", asked(f"{number}?", True), AnswerTimes(0.1, 0.1, 4))
    assert len(chooser.by_question) == STANDING_QUESTIONS
    assert not {"1?", "5?"} & set(chooser.by_question)
    assert {"0?", "6?"} < set(chooser.by_question), "asked again just now"


@pytest.mark.parametrize(("steady", "read_before", "tries"), [(True, False, 1), (False, False, 2), (True, True, 0)])
def test_what_is_known_of_plain_decoding_need_not_be_tried_again(steady: bool, read_before: bool, tries: int) -> None:
    """One short answer says what long ones take, where a token costs what any other does; the control, which does not know
    that, tries again. What follows the first token is known from recordings that were not read before, too."""
    chooser, chosen = Chooser(["plain", "quick"], steady=frozenset({"plain"} if steady else ())), list[str]()

    def answer(question: QuestionInfo, name: str, tokens: int) -> None:
        first, further = (0.1 if question.read_before else 1.0), {"plain": 0.015, "quick": 0.01}[name]
        chooser.learn(name, question, AnswerTimes(first, further * (tokens - 1), tokens))

    for name in ("plain", "quick"):
        answer(asked("short"), name, 5)
    answer(asked("long", read_before), "quick", 80)
    for _ in range(20):
        question = asked("long", read_before)
        chosen.append(chooser.choose(question))
        answer(question, chosen[-1], 80)
    before = 0 if read_before else 1
    assert chosen.count("plain") + before == tries


@pytest.mark.parametrize("measured", [True, False])
def test_plain_decoding_whose_step_was_measured_is_first_tried_where_it_costs_little(measured: bool) -> None:
    """The control, which knows nothing of a step, tries it on the second question: a long answer."""
    chooser = Chooser(["quick", "plain"], steady=frozenset({"plain"}))
    chosen: list[tuple[str, int]] = []
    for tokens in [80, 80, 80, 3] * 8:
        question = replace(asked(f"one of {tokens} tokens"), step_seconds=0.02 if measured else 0.0)
        chooser.lengths[question.question] = tokens
        name = chooser.choose(question)
        chosen.append((name, tokens))
        chooser.learn(name, question, AnswerTimes(1.0, {"plain": 0.02, "quick": 0.01}[name] * (tokens - 1), tokens))
    assert (("plain", 80) in chosen) != measured
    assert ("plain", 3) in chosen


def test_a_step_that_was_thought_too_slow_keeps_plain_decoding_out_for_a_while_only() -> None:
    """All answers are long, and a step was measured to take twice what it takes, beside another process."""
    chooser, chosen = Chooser(["quick", "plain"], steady=frozenset({"plain"})), list[str]()
    for _ in range(1000):
        question = replace(asked(most=80), step_seconds=0.02)
        chosen.append(chooser.choose(question))
        chooser.learn(chosen[-1], question, AnswerTimes(0.1, {"plain": 0.01, "quick": 0.011}[chosen[-1]] * 79, 80))
    assert chosen[:30].count("plain") == 0
    assert chosen[-100:].count("plain") > 80


def test_a_recording_without_events_is_not_given_to_a_method_that_needs_them() -> None:
    chooser = Chooser(["events", "plain"], {"events": "events"})
    chooser.learn("plain", asked(), AnswerTimes(9.0, 0.0, 1))
    chooser.learn("events", asked(), AnswerTimes(1.0, 0.0, 1))
    assert chooser.choose(asked(most=1)) == "events"
    assert chooser.choose(asked(most=1, events=False)) == "plain"


def test_the_length_of_an_answer_is_expected_from_the_prior_and_then_from_what_was_said() -> None:
    prior = TextPrior.of([("how?", [5, 6, 7, 2])] * 8 + [("what?", [5, 2])] * 8)
    chooser = Chooser(["a"], prior=prior)
    assert chooser.expected("how?") == pytest.approx(4)
    assert chooser.expected("what?") == pytest.approx(2)
    assert chooser.expected("never asked") == pytest.approx(3)
    for _ in range(30):
        chooser.learn("a", asked("what?"), AnswerTimes(1.0, 1.0, 50))
    assert chooser.expected("what?") == pytest.approx(50, rel=0.01)


def test_what_was_learnt_is_remembered_and_counts_for_less(tmp_path: Path) -> None:
    path = tmp_path / "learnt/pair.json"
    chooser = Chooser(["a", "b"]).remembering(path)
    for _ in range(30):
        chooser.learn("a", asked(), AnswerTimes(2.0, 1.0, 11))
        chooser._written = -9.0
        chooser.learn("b", asked(), AnswerTimes(1.0, 1.0, 11))
    again = Chooser(["a", "b"]).remembering(path)
    assert again.choose(asked()) == "b"
    assert len(chooser.seen["new"]["b"].answers) == MEMORY > len(again.seen["new"]["b"].answers)
    assert again.seen["new"]["b"].answers[0] == (1.0, 1.0, 11)
    assert "a" not in Chooser(["b"]).remembering(path).seen["new"], "a method that is gone"


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", '{"new": 5}', '{"new": {"a": {}}}', '{"new": {"a": [[1, 2]]}}', '{"new": {"a": [[-1, 2, 3]]}}'),
        *("[" * 100_000, '{"new": {"a": [[1, 2, 0]]}}', '{"new": {"a": [["x", 2, 3]]}}'),
        *('{"new": {"a": [[1, 1' + 400 * "0" + ", 3]]}}", '{"new": {"a": []}}'),
    ],
)
def test_a_damaged_memory_is_forgotten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pair.json"
    path.write_text(text)
    chooser = Chooser(["a", "b"]).remembering(path)
    assert chooser.choose(asked()) == "a"
    chooser.learn("a", asked(), AnswerTimes(1.0, 1.0, 2))
    assert json.loads(path.read_text())["new"]["a"] == [[1.0, 1.0, 2]]


def test_a_memory_that_cannot_be_kept_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chooser = Chooser(["a"]).remembering(tmp_path / "file/pair.json")
    chooser.learn("a", asked(), AnswerTimes(1.0, 1.0, 2))


# ------------------------------------------------------------------------------------------------------ with the bundled pair
@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one")


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
def test_the_answer_is_the_targets_whatever_is_chosen(pair: Pair, settings: dict[str, float]) -> None:
    recording, chosen = Recording.open(DATA / "clips/street_scene"), set()
    pair = pair.with_head("eagle")  # nothing learnt yet
    plain = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=20, **settings)
    for _ in range(8):
        found = generate(pair, recording, QUESTION, max_new_tokens=20, **settings)
        assert found.token_ids == plain.token_ids
        assert (found.method, found.lossless) == ("auto", True)
        chosen.add(found.chosen)
    assert chosen <= set(pair.methods) - {"auto", "compressed-target"}
    assert {"hybrid", "hybrid-blind"} <= chosen, "each mix is tried"


def test_what_takes_other_times_begins_anew(pair: Pair) -> None:
    chooser = pair.methods["auto"].choice
    for other in (pair.on("two"), pair.with_target(pair.target), pair.with_method("hybrid", pair.methods["hybrid"])):
        assert other.methods["auto"].choice is not chooser
    assert pair.with_method("mine", pair.methods["prior"]).methods["auto"].choice is chooser


def test_the_choice_is_between_mixes_and_the_baseline_where_there_are_both(pair: Pair) -> None:
    chooser = pair.methods["auto"].choice
    assert chooser is not None
    assert list(chooser.methods) == ["hybrid", "hybrid-blind", "autoregressive", "specvlm"]
    assert chooser.rereading == chooser.reset().rereading == {"specvlm"}, "for recordings that were read before only"
    assert chooser.preferred == "hybrid"
    fewer = {name: method for name, method in pair.methods.items() if name != "hybrid-blind"}
    made = auto(pair.parts, fewer)
    assert made is not None
    assert made.choice is not None
    assert list(made.choice.methods) == ["specvlm", "cross-modal", "prior", "hybrid", "autoregressive"], "else one of each kind"
    assert not made.choice.rereading


def test_another_head_begins_anew(pair: Pair) -> None:
    other = pair.with_head("eagle3")
    assert other.methods["auto"].choice is not pair.methods["auto"].choice
    assert [*other.methods] == [*pair.methods]


def test_a_context_is_prepared_for_all_that_may_be_chosen(pair: Pair) -> None:
    recording = Recording.open(DATA / "clips/street_scene")
    context = pair.open(recording)
    context.prepare()
    for name in ("eagle", "cross-modal", "hybrid", "autoregressive"):
        trace = context.ask(QUESTION, name, max_new_tokens=8).trace
        assert not [span for span in trace.spans if span.stage == "vision"], name


def test_a_recording_without_events_is_answered(pair: Pair) -> None:
    blind = replace(Recording.open(DATA / "clips/street_scene"), events=None)
    for _ in range(8):
        assert generate(pair, blind, QUESTION, max_new_tokens=4).chosen not in ("cross-modal", "hybrid")
    with pytest.raises(BadInput, match="has no events"):
        generate(pair, blind, QUESTION, "cross-modal")
