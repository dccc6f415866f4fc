"""Entropy by modality: nats of the next token are added up, on the target's own answers, and intervals go by recording."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import BadInput, Proposal
from eventspec.experiments.measures import entropy as module
from eventspec.experiments.measures import run
from eventspec.experiments.measures.entropy import DRAFTER, QUALIFIER, TARGET, summary
from eventspec.experiments.measures.setup import Setup
from eventspec.experiments.reports import FOLDER, Results, alignment
from eventspec.pairs import load_pair

TOKENS = [3, 1, 4, 1]


def model(logits: torch.Tensor, read: list[Proposal]) -> Any:
    """One whose scores are these, whatever it sees."""

    def score(proposal: Proposal) -> Any:
        read.append(proposal)
        return SimpleNamespace(logits=logits)

    session = SimpleNamespace(score=score)
    return SimpleNamespace(encode=lambda media, trace: SimpleNamespace(open=lambda *words: session))


def test_entropy_is_of_the_distribution_before_every_token_of_the_answer() -> None:
    read = list[Proposal]()
    flat, sure = torch.zeros(4, 8), torch.full((4, 8), -1e9)
    sure[range(4), TOKENS] = 0.0
    sure[3, 1], sure[3, 2] = -1e9, 0.0  # the last one is wrong, and as sure
    entropy, right = module._surprise(model(flat, read), None, "?", TOKENS, 6)  # type: ignore[arg-type]
    assert entropy == pytest.approx(4 * math.log(6)), "ids that the target has not do not count"
    assert [one.tokens.tolist() for one in read] == [TOKENS[:-1]], "no model reads the token that it is asked for"
    assert module._surprise(model(sure, read), None, "?", TOKENS, 6) == (pytest.approx(0.0, abs=1e-6), 3)  # type: ignore[arg-type]
    assert right == 0


def rows(more: float, spread: float) -> list[dict[str, Any]]:
    """Of 12 recordings two questions each: the drafter has `more` nats a token than the target, and how much more goes by the
    recording."""
    rng, found = np.random.default_rng(0), []
    for recording in range(12):
        own = more + spread * rng.standard_normal()
        for question in range(2):
            about = {"recording": f"clip {recording}", "question": str(question), "tokens": 10, "right": 5}
            for name, nats in ((TARGET, 0.2), (DRAFTER, 0.2 + own), (QUALIFIER, 0.2)):
                found.append({**about, "model": name, "entropy": 10 * nats})
    return found


def test_differences_are_intervals_over_recordings() -> None:
    found = summary(rows(0.3, 0.1))
    value, low, high = found[DRAFTER]["more"]
    assert low < 0.3 < high and low > 0 and value == pytest.approx(found[DRAFTER]["entropy"][0] - 0.2)
    assert found[QUALIFIER]["more"] == pytest.approx([0.0, 0.0, 0.0]) and found[TARGET]["right"][0] == 0.5
    assert found[DRAFTER]["tokens"] == 240
    # As if questions about one recording had nothing in common it would be narrower; with no difference it includes 0.
    apart = [{**row, "recording": f"{row['recording']} {row['question']}"} for row in rows(0.3, 0.1)]
    assert np.ptp(summary(apart)[DRAFTER]["more"][1:]) < high - low
    _, low, high = summary(rows(0.0, 0.1))[DRAFTER]["more"]
    assert low < 0 < high


def test_a_pair_without_an_event_drafter_is_refused() -> None:
    with load_pair("nano", "one", fit=False) as pair:
        assert set(module._models(pair)) == {DRAFTER, QUALIFIER, TARGET}
        without = SimpleNamespace(name="blind", methods={}, drafter=pair.drafter)
        with pytest.raises(BadInput, match="pair blind has no event drafter that speaks the target's ids"):
            module._models(without)  # type: ignore[arg-type]


@pytest.mark.long
def test_it_is_measured_and_reported_and_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    asked, rows_of = list[str](), module._rows

    def stopping(*words: Any) -> Any:
        if len(asked) == 2:
            asked.clear()
            raise KeyboardInterrupt
        asked.append(words[-1].id)
        return rows_of(*words)

    monkeypatch.setattr(module, "_rows", stopping)
    setup, out = Setup("nano", quick=True, work=tmp_path / "work"), tmp_path / FOLDER / "entropy.json"
    (tmp_path / "work").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run("entropy", setup, out)
    found = run("entropy", setup, out)
    assert len(asked) == 1 and found["n"] == 3, "two of three questions were there"
    assert not (tmp_path / "work/entropy.jsonl").exists()
    assert set(found["models"]) == {DRAFTER, QUALIFIER, TARGET, f"{DRAFTER}, shuffled events", f"{DRAFTER}, blank events"}
    assert found["models"][TARGET]["right"][0] == 1.0, "they are its own answers"
    assert len({one["tokens"] for one in found["models"].values()}) == 1, "the same prefixes"
    page = alignment.entropy(Results(tmp_path))
    assert "| event drafter, blank events | blank events |" in page and "| target | all frames |" in page
