"""In the default placement plain decoding has all cores and a drafted answer may have one: near ties are decided alike."""

from __future__ import annotations

import numpy as np
import pytest

from eventspec.ask import generate
from eventspec.experiments.identity import tie_of
from eventspec.experiments.names import BASE
from eventspec.machine import usable_cores
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording

QUESTIONS = ("Describe the scene.", "What is ahead?", "Is anybody crossing the road?", "What changed during the clip?")
DRAFTED = ("cross-modal", "hybrid", "eagle", "prior", "auto")

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="one core: there is nothing to share out")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "auto", fit=False)


def differing(pair: Pair, ties: int, seed: int) -> tuple[int, list[str]]:
    """How many constructed ties were met, and the answers that are not the baseline's."""
    rng, recordings = np.random.default_rng(seed), [Recording.open(f"example:{name}") for name in ("street", "davis")]
    met, wrong = 0, list[str]()
    while met < ties:
        recording, question = recordings[rng.integers(2)], QUESTIONS[rng.integers(len(QUESTIONS))]
        sampling = tie_of(pair, recording, question, int(rng.integers(0, 24)), 32)
        if sampling is None:
            continue
        met += 1
        wanted = generate(pair, recording, question, BASE, sampling=sampling).token_ids
        for method in DRAFTED:
            found = generate(pair, recording, question, method, sampling=sampling)
            wrong += [f"{method}, {question}: {sampling.logit_bias}"] * (found.token_ids != wanted)
    return met, wrong


def test_a_near_tie_gets_the_same_answer_by_every_method(pair: Pair) -> None:
    assert differing(pair, 2, seed=1) == (2, [])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_near_ties_get_the_same_answer_by_every_method(pair: Pair) -> None:
    assert differing(pair, 100, seed=2) == (100, [])


def test_a_drafted_answer_is_settled_with_all_cores(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a drafter works beside the target the target has one thread; what settles a tie has them all."""
    import torch

    from eventspec.engine.numerics import PlainDecoding

    threads, logits = list[int](), PlainDecoding.logits

    def watched(self: PlainDecoding, answer: list[int]) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return logits(self, answer)

    recording = Recording.open("example:street")
    sampling = next(s for place in range(1, 24) if (s := tie_of(pair, recording, "Describe the scene.", place, 32)) is not None)
    monkeypatch.setattr(pair.workers._load, "taken", lambda: 0)
    monkeypatch.setattr(PlainDecoding, "logits", watched)
    found = generate(pair, recording, "Describe the scene.", "cross-modal", sampling=sampling)
    assert found.trace.device_plan == "two"
    assert set(threads) <= {usable_cores()}
    assert threads or not found.trace.near_ties
    assert pair.workers.start("target", lambda: pair.workers.as_plain).result() is False
