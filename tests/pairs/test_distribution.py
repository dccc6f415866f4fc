"""Sampled answers of every method have the target's own distribution: chi-square over answers of three tokens against exact
probabilities, each method with seeds of its own, under penalties, top-p and a grammar; drawn trees too.

The controls: the same answers do not fit a target that is a little warmer, and a drafter that claims to have drawn what it
chose is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from eventspec.ask.generation import media_of
from eventspec.core import (
    Budget,
    Constraint,
    DraftSession,
    Proposal,
    Request,
    Sampling,
    Scores,
    TargetPrompt,
    Trace,
    Verdict,
)
from eventspec.engine.distribution import processed
from eventspec.engine.method import QuestionInfo
from eventspec.engine.policy import NO_TAIL
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.auto import Chooser
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording

pytestmark = pytest.mark.long
LENGTH, DRAWS, ALPHA = 3, 1200, 1e-4
QUESTION = "What is ahead?"
METHODS = ("autoregressive", "cross-modal", "eagle", "specvlm", "hybrid", "ngram", "prior", "drawn", "cascade", "auto")
PENALISED = Sampling(temperature=3.0, top_k=12, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.4, max_new_tokens=LENGTH)


@dataclass
class Drawing:
    """Draws two first tokens without replacement, and one behind the first of them, from a distribution over the tokens that
    the target may well say; `honest`: hands over what it drew from, else it takes the likeliest and says they were drawn."""

    often: list[int]
    honest: bool = True
    name: str = "drawn"
    taps: tuple[int, ...] = ()
    needs_target: bool = False
    concurrent: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    vocabulary: int = 0

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        return self

    def propose(self, budget: Budget) -> Proposal:
        q = np.full(self.vocabulary, 0.1 / self.vocabulary)
        q[self.often] += 0.9 * np.arange(1, len(self.often) + 1) / sum(range(1, len(self.often) + 1))
        first = self.rng.choice(self.vocabulary, p=q) if self.honest else int(q.argmax())
        rest = np.where(np.arange(self.vocabulary) == first, 0.0, q)
        rest /= rest.sum()
        second = self.rng.choice(self.vocabulary, p=rest) if self.honest else int(rest.argmax())
        third = self.rng.choice(self.vocabulary, p=q) if self.honest else int(q.argmax())
        probs = torch.from_numpy(np.stack((q, rest, q)))
        tokens, parents = np.array([first, second, third], np.int64), np.array([-1, -1, 0], np.int64)
        kept = [node for node in range(3) if (0, 0, 1)[node] < budget.max_depth]
        return Proposal(tokens[kept], parents[kept], probs[kept], self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        pass


@pytest.fixture(scope="module")
def pair() -> Pair:
    # What is drafted, and waited for, must not depend on what else the machine does.
    return load_pair("nano", "one", fit=False).with_policy(node_cost=0.02, level_cost=0.02, patience=1e4)


def chances(pair: Pair, sampling: Sampling, least: float = 2e-3) -> dict[tuple[int, ...], float]:
    """Answers and how likely they are, by plain forwards; what begins with less than `least` is left out."""
    known: dict[tuple[int, ...], float] = {(): 1.0}
    media = media_of(as_recording(make_clip(split_seed("test", 9, 0)), "a clip"))
    session = pair.target.encode(media, Trace()).open(QUESTION, sampling, NO_TAIL, Trace())
    session.score(Proposal.empty())
    for _ in range(LENGTH):
        longer = dict[tuple[int, ...], float]()
        for path, chance in known.items():
            state = None if sampling.constraint is None else sampling.constraint.start()
            for token in path:
                state = None if state is None else state.after(token)
            row = processed(session.score(Proposal.chain(path)).logits[-1], path, sampling, state)
            longer |= {(*path, int(t)): chance * float(row[t]) for t in np.flatnonzero(row * chance > least)}
        known = longer
    return known


def fit(drawn: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """p of chi-square: every answer that is expected 6 times is a cell, all others are one."""
    answers = drawn.total()
    cells = {path: chance * answers for path, chance in wanted.items() if chance * answers >= 6}
    assert len(cells) > 8
    seen = [drawn[path] for path in cells]
    return float(chisquare([*seen, answers - sum(seen)], [*cells.values(), answers - sum(cells.values())]).pvalue)


def drawn_by(pair: Pair, method: str, sampling: Sampling, first: int) -> Counter[tuple[int, ...]]:
    context = pair.open(as_recording(make_clip(split_seed("test", 9, 0)), "a clip"))
    found, accepted = Counter[tuple[int, ...]](), 0
    for seed in range(first, first + DRAWS):
        result = context.ask(QUESTION, method, sampling, seed=seed)
        found[tuple(result.token_ids)] += 1
        accepted += result.trace.accepted
        assert not result.trace.given_up
    assert accepted > 20 or method in ("autoregressive", "ngram")
    return found


def with_drawing(pair: Pair, wanted: dict[tuple[int, ...], float], honest: bool = True) -> Pair:
    shares = dict[int, float]()
    for path, chance in wanted.items():
        for token in path:
            shares[token] = shares.get(token, 0.0) + chance
    often = sorted(shares, key=shares.__getitem__)[-6:]
    return pair.with_drafter("drawn", Drawing(often, honest, vocabulary=pair.target.limits.vocabulary))


@dataclass
class Turns(Chooser):
    """Takes its methods in turn: three tokens would best be decoded plainly, and nothing be drafted."""

    turn: Iterator[int] = field(default_factory=count)

    def choose(self, asked: QuestionInfo) -> str:
        return self.methods[next(self.turn) % len(self.methods)]


def taking_turns(pair: Pair) -> Pair:
    auto = pair.method("auto")
    assert isinstance(auto.choice, Chooser) and len(auto.choice.methods) > 2
    turns = Turns(auto.choice.methods, auto.choice.needs)
    return replace(pair, methods={**pair.methods, "auto": replace(auto, choice=turns)})


def settings(pair: Pair, kind: str, method: str = "") -> Sampling:
    if kind == "penalties":
        return pair.tokens.sampling(PENALISED)
    # A grammar that forbids all that is drafted would leave nothing to verify.
    drafted = "|(Brake|Follow).*" if method in ("cascade", "hybrid", "auto") else ""
    grammar: Constraint = pair.regex(f"(A|The|Two|One|No) (car|bus|truck|cyclist|pedestrian|way|road).*{drafted}")
    return pair.tokens.sampling(Sampling(temperature=1.5, max_new_tokens=LENGTH, constraint=grammar))


@pytest.mark.parametrize("kind", ["penalties", "grammar"])
@pytest.mark.parametrize("method", METHODS)
def test_sampled_answers_have_the_targets_distribution(pair: Pair, method: str, kind: str) -> None:
    sampling = settings(pair, kind, method)
    wanted = chances(pair, sampling)
    asked = with_drawing(pair, wanted) if method == "drawn" else taking_turns(pair) if method == "auto" else pair
    first = 1_000_000 * (1 + METHODS.index(method)) + (kind == "grammar") * 500_000
    drawn = drawn_by(asked, method, sampling, first)
    assert fit(drawn, wanted) > ALPHA
    assert fit(drawn, chances(pair, sampling.but(temperature=1.5 * sampling.temperature), 5e-4)) < 1e-6, "the control"


def test_what_was_chosen_and_is_said_to_be_drawn_is_caught(pair: Pair) -> None:
    sampling = settings(pair, "penalties")
    wanted = chances(pair, sampling)
    lying = with_drawing(pair, wanted, honest=False)
    context = lying.open(as_recording(make_clip(split_seed("test", 9, 0)), "a clip"))
    drawn = Counter(tuple(context.ask(QUESTION, "drawn", sampling, seed=seed).token_ids) for seed in range(DRAWS))
    assert fit(drawn, wanted) < 1e-6
