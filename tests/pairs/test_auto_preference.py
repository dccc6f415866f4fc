"""Method `auto` prefers one method to others that are hardly better, and leaves it for one that is clearly so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eventspec.engine.method import AnswerTimes, QuestionInfo
from eventspec.pairs.auto import BRIEF, Chooser

ASKED = QuestionInfo("How many road users are visible?", 64, frozenset({"events"}), False)


def others(better: float, preferred: str, seed: int = 0) -> int:
    """How many of 200 answers go to the other method, which is `better` by that share."""
    rng, chooser, chosen = np.random.default_rng(seed), Chooser(["usual", "other"], preferred=preferred), list[str]()
    for _ in range(200):
        chosen.append(name := chooser.choose(ASKED))
        took = (1.0 if name == "usual" else 1.0 - better) * float(np.exp(0.05 * rng.normal()))
        chooser.learn(name, ASKED, AnswerTimes(took, 0.1, 10))
    return chosen.count("other")


def test_a_method_that_is_hardly_better_is_tried_and_left() -> None:
    """On average: where the preferred one was slow by chance, it is left for some time."""
    assert 0 < np.mean([others(0.01, "usual", seed) for seed in range(20)]) < 30
    assert np.mean([others(0.01, "", seed) for seed in range(20)]) > 80, "the control: they share the answers"


@pytest.mark.parametrize("preferred", ["usual", "other", ""])
def test_a_method_that_is_clearly_better_is_taken(preferred: str) -> None:
    assert others(0.10, preferred) > 150


def test_what_is_preferred_stays_so_when_all_is_forgotten() -> None:
    assert Chooser(["usual", "other"], preferred="usual").reset().preferred == "usual"


def test_what_is_tried_for_long_answers_is_known_when_they_are_brief() -> None:
    """Or it would be tried again for every question of which a long answer is expected."""
    chooser = Chooser(["mix", "head"], rereading=frozenset({"head"}), preferred="mix")
    for number, tokens in enumerate([40] * 3 + [5] * 60):
        chooser.usual = 40.0
        about = replace(ASKED, question=f"question {number}", read_before=True)
        name = chooser.choose(about)
        chooser.learn(name, about, AnswerTimes(0.005, 0.02 if name == "mix" or tokens > BRIEF else 0.04, tokens))
    chooser.usual = 40.0
    assert chooser.choose(replace(ASKED, question="another", read_before=True)) == "mix"
