"""Heads that learn while they answer: from what they drafted with, towards what the target said; never another answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from tests.drafters.test_feature_heads import EVERY, GROWTHS, answered, drafter, plain_answer, target

from eventspec.core import DraftSession, Media, Request, Sampling, TargetPrompt, Trace
from eventspec.drafters.heads import learning
from eventspec.drafters.heads.learning import LearningDraft, LearningDrafter, can_learn
from eventspec.lanes.workers import Workers
from eventspec.models.session import LanguageTarget
from eventspec.nn.draft import layer_pass
from eventspec.nn.weights import Place

TEXTS = ("5 1 9 2 14 7", "5 1 9 8 14", "5 1 11 30 2 2")
ONE_LAYER = [name for name in EVERY if name != "dream"]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """Gradients go through these weights, so that none of them may be made for inference."""
    with torch.no_grad():
        yield


class Watched(LearningDrafter):
    """Keeps its latest session, and what it read there as the answer grew."""

    session: LearningDraft

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        made = super().open(request, target, trace)
        assert isinstance(made, LearningDraft)
        self.session, self.roots = made, []
        return made

    def read(self, *given: Any) -> torch.Tensor:
        self.roots.append(super().read(*given))
        return self.roots[-1]


def learner(kind: str = "eaglevlm") -> tuple[LanguageTarget, Watched]:
    model = target()
    return model, Watched(drafter(model, EVERY[kind](), GROWTHS["dynamic"]))


def ask(model: LanguageTarget, by: LearningDrafter, text: str = TEXTS[0], **drawn: Any) -> tuple[list[int], Trace]:
    request = Request(Media(), text, Sampling(max_new_tokens=30, **drawn))
    found = answered(model, by, request)
    by.answered(request, Workers.here)
    return found


@pytest.mark.parametrize("kind", ONE_LAYER)
def test_what_is_learned_from_is_what_the_head_drafted_with(kind: str) -> None:
    model, by = learner(kind)
    ask(model, by)
    session, taught = by.session, by.rows_of(by.session)
    many, widths = session.many, [len(own) for own, _ in session.pairs]
    ends = [sum(widths[: place + 1]) - 1 for place in range(len(widths))]
    assert many > 8 and len(by.roots) == len(ends) > 3
    for end, root in zip(ends, by.roots, strict=True):
        if end < many:
            assert torch.allclose(taught[0][end], root[0])
    # One level ahead of a pair: what the drafting pass makes of the prediction behind it.
    ahead, cache, weights = taught[0][many : 2 * many - 1], session.cache, session.kernel.weights
    tokens, first = session.judged()[0], session.position - session.read
    assert cache is not None
    for place in range(1, many):
        start = cache.length - session.read + place
        other = cache.beginning(start, start + 1)
        rope = (table[first + place : first + place + 1] for table in by.tables)
        row = Place(*rope, other.keys, other.values, start, None, 0)
        found = layer_pass(by.embed(tokens[place : place + 1]), taught[0][place - 1 : place], row, weights)
        assert torch.allclose(ahead[place - 1], found[0])


@pytest.mark.parametrize("kind", ["eaglevlm", "eagle3", "vispec", "select"])
def test_a_head_that_learns_never_changes_an_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "RATE", 0.05)  # it changes a lot
    model, by = learner(kind)
    for number in range(4):
        drawn: dict[str, Any] = {} if number % 2 else {"temperature": 1.0, "seed": number}
        found, trace = ask(model, by, **drawn)
        assert found == plain_answer(target, 0, Sampling(max_new_tokens=30, **drawn))
        assert trace.learned == number and f"had learned from {number} answer" in trace.notes[0]
    assert by.updates == 4


def test_an_update_that_foretells_new_answers_worse_is_not_drafted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "RATE", 30.0)  # far beyond what helps
    model, by = learner()
    for text in TEXTS:
        ask(model, by, text)
    assert by.gain < 0 and by.updates == 3
    assert by.kernel is by.first


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "ROWS", 50)
    monkeypatch.setattr(learning, "LONGEST", 10)
    model, by = learner()
    for number in range(1, 5):
        ask(model, by)
        assert len(by.session.judged()[0]) == 10  # the latest tokens of a longer answer
        assert [len(part) for part in by.taught] == [min(50, number * (10 + 9 + 8 + 7 + 6 + 5))] * 5
    assert torch.equal(
        by.session.judged()[0],
        torch.tensor(plain_answer(target, 0, Sampling(max_new_tokens=30)))[by.session.many - 10 : by.session.many],
    )


def test_numbers_that_are_not_finite_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, by = learner()
    ask(model, by)
    state, kernel, taught = by.state, by.kernel, by.taught
    usual = LearningDraft.judged
    monkeypatch.setattr(LearningDraft, "judged", lambda one: (*usual(one)[:3], usual(one)[3] * float("nan"), usual(one)[4]))
    ask(model, by)
    assert (by.refused, by.updates, by.state, by.kernel, by.taught) == (1, 1, state, kernel, taught)
    monkeypatch.undo()
    monkeypatch.setattr(learning, "RATE", float("inf"))
    ask(model, by)
    assert (by.refused, by.updates, by.state, by.kernel) == (2, 1, state, kernel)
    monkeypatch.undo()
    ask(model, by)
    assert by.updates == 2


def test_an_answer_is_passed_over_while_a_job_runs_and_what_failed_is_said() -> None:
    model, by = learner()
    request, running = Request(Media(), TEXTS[0], Sampling(max_new_tokens=30)), Future[None]()
    answered(model, by, request)
    by.answered(request, lambda work: running)
    ask(model, by)
    assert (by.passed_over, by.updates) == (1, 0)
    running.set_exception(MemoryError("none left"))
    found, trace = ask(model, by)
    assert found == plain_answer(target, 0, Sampling(max_new_tokens=30))
    assert any("learned nothing from the answer before: MemoryError: none left" in note for note in trace.notes)
    assert (by.passed_over, by.updates) == (1, 1)

    def closed(work: Any) -> Future[None]:
        raise RuntimeError("worker drafter was closed")

    answered(model, by, request)
    by.answered(request, closed)
    by.answered(request, Workers.here)  # nothing is learned twice
    by.answered(Request(Media(), TEXTS[0], Sampling(max_new_tokens=30)), Workers.here)  # nor from an answer of others
    assert by.updates == 1


def test_a_head_of_several_layers_cannot_learn() -> None:
    model = target()
    assert not can_learn(drafter(model, EVERY["dream"](), GROWTHS["chain"]))
    assert not can_learn(None)
    assert can_learn(drafter(model, EVERY["eagle1"](), GROWTHS["chain"]))
