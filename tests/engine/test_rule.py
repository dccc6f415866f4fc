"""The rule is exact: sequences come out as if the target had drawn them, whatever was drafted and however.

Chi-square on all 125 sequences of three tokens over five, 40 000 draws, alpha 0.001, bins below 5 pooled. The negative controls
are the classical mistakes; they must be caught with a tenth of the draws, which is also what the quick suite takes.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from eventspec.core import Proposal, Sampling
from eventspec.engine.distribution import choose, draw, position_rng, processed
from eventspec.engine.verify import verify

V, LENGTH, DRAWS, ALPHA = 5, 3, 40_000, 1e-3
FEW = DRAWS // 10
START = V  # the row of both tables that stands before the first token
_TABLES = np.random.default_rng(7)
TARGET = torch.from_numpy(_TABLES.normal(0, 1.2, (V + 1, V)))
_DRAFTER = _TABLES.normal(0, 1.2, (V + 1, V))
Q = np.exp(_DRAFTER) / np.exp(_DRAFTER).sum(1, keepdims=True)

Rng = np.random.Generator
Draft = Callable[[int, Rng], Proposal]


def drafted(q: np.ndarray[Any, Any], rng: Rng) -> int:
    return min(int(np.searchsorted(np.cumsum(q), rng.random(), side="right")), V - 1)


def proposal(nodes: list[tuple[int, int]], rows: list[Any] | None) -> Proposal:
    tokens, parents = (np.array(column, np.int64) for column in zip(*nodes, strict=True))
    return Proposal(tokens, parents, None if rows is None else torch.from_numpy(np.array(rows)))


def drawn_chain(last: int, rng: Rng) -> Proposal:
    first = drafted(Q[last], rng)
    return proposal([(first, -1), (drafted(Q[first], rng), 0)], [Q[last], Q[first]])


def chosen_tree(last: int, rng: Rng) -> Proposal:
    """The likeliest two, and the likeliest two behind each: no randomness at all."""
    nodes = [(int(token), -1) for token in np.argsort(-Q[last])[:2]]
    for node in (0, 1):
        nodes += [(int(token), node) for token in np.argsort(-Q[nodes[node][0]])[:2]]
    return proposal(nodes, None)


def siblings(q: np.ndarray[Any, Any], count: int, replace: bool, rng: Rng) -> list[tuple[int, Any]]:
    """Tokens and what each was drawn from, given the ones before."""
    found = []
    for _ in range(count):
        token = drafted(q, rng)
        found.append((token, q))
        if not replace:
            q = np.where(np.arange(V) == token, 0.0, q)
            q = q / q.sum()
    return found


def drawn_tree(replace: bool) -> Draft:
    def draft(last: int, rng: Rng) -> Proposal:
        drawn = [(token, -1, q) for token, q in siblings(Q[last], 3, replace, rng)]
        drawn += [(token, 0, q) for token, q in siblings(Q[drawn[0][0]], 2, replace, rng)]
        return proposal([node[:2] for node in drawn], [node[2] for node in drawn])

    return draft


def greedy_tree_with_probs(last: int, rng: Rng) -> Proposal:
    """The mistake: children were chosen, and the drafter's softmax is handed over as if they had been drawn from it."""
    chosen = chosen_tree(last, rng)
    behind = [last if parent < 0 else int(chosen.tokens[parent]) for parent in chosen.parents]
    return Proposal(chosen.tokens, chosen.parents, torch.from_numpy(Q[behind]))


Behind = Callable[[Sampling, list[int]], Any]


def p_value(draft: Draft, sampling: Sampling, behind: Behind, draws: int = DRAWS, seed: int = 0) -> float:
    """Draw sequences through the rule, round by round, and compare with their exact probabilities."""
    rng, drafting = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    counts = np.zeros([V] * LENGTH)
    for _ in range(draws):
        answer: list[int] = []
        while len(answer) < LENGTH:
            last = answer[-1] if answer else START
            proposed = draft(last, drafting)
            logits = TARGET[[last, *proposed.tokens]]
            state = behind(sampling, answer)
            answer += verify(logits, proposed, sampling, answer, lambda position: rng, state).tokens.tolist()
        counts[tuple(answer[:LENGTH])] += 1
    expected = draws * np.array([exact(list(s), sampling, behind) for s in itertools.product(range(V), repeat=LENGTH)])
    got = counts.reshape(-1)
    assert got[expected == 0].sum() == 0, "a token that the target never says"
    rare = expected < 5
    pooled = [np.array([*x[~rare], x[rare].sum()]) if expected[rare].sum() >= 5 else x[~rare] for x in (got, expected)]
    return float(chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue)


def exact(sequence: list[int], sampling: Sampling, behind: Behind) -> float:
    share = 1.0
    for at, token in enumerate(sequence):
        if share > 0:  # what cannot be said has no state behind it
            state = behind(sampling, sequence[:at])
            share *= processed(TARGET[sequence[at - 1] if at else START], sequence[:at], sampling, state)[token]
    return share


PLAIN = Sampling(temperature=1.0)
PROCESSED = Sampling(temperature=0.8, top_k=4, top_p=0.93, min_p=0.03, repetition_penalty=1.3)


@pytest.mark.parametrize("draws", [FEW, pytest.param(DRAWS, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("draft", "sampling"),
    [
        pytest.param(drawn_chain, PLAIN, id="chain drawn"),
        pytest.param(chosen_tree, PLAIN, id="tree chosen"),
        pytest.param(drawn_tree(replace=True), PLAIN, id="tree drawn with replacement"),
        pytest.param(drawn_tree(replace=False), PLAIN, id="tree drawn without replacement"),
        pytest.param(chosen_tree, PROCESSED, id="tree chosen, processed"),
    ],
)
def test_sequences_are_distributed_as_the_targets_own(draft: Draft, sampling: Sampling, behind: Behind, draws: int) -> None:
    assert p_value(draft, sampling, behind, draws) > ALPHA


@pytest.mark.parametrize("draws", [FEW, pytest.param(DRAWS // 4, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("draft", "feature"),
    [
        pytest.param(
            drawn_tree(replace=False), {"frequency_penalty": 1.5, "presence_penalty": -0.5}, id="penalties, tree drawn"
        ),
        pytest.param(drawn_tree(replace=True), {"bad_words": ((1, 2), (3, 0, 4), (2,))}, id="bad words, tree drawn"),
        pytest.param(drawn_chain, {"logit_bias": {0: 1.5, 4: -2.0}}, id="bias, chain drawn", marks=pytest.mark.long),
        pytest.param(chosen_tree, {"min_new_tokens": 2, "stop_ids": (0, 3)}, id="least length, tree chosen"),
        pytest.param(drawn_tree(replace=False), {"constraint": 0.5}, id="constraint, tree drawn"),
        pytest.param(chosen_tree, {"constraint": 0.5}, id="constraint, tree chosen", marks=pytest.mark.long),
    ],
)
def test_sequences_are_the_targets_own_under_every_feature(
    draft: Draft, feature: dict[str, Any], behind: Behind, maze: Any, draws: int
) -> None:
    if share := feature.get("constraint"):
        feature = {"constraint": maze(5, share, V)}
    assert p_value(draft, Sampling(temperature=1.0, **feature), behind, draws) > ALPHA


@pytest.mark.parametrize(
    ("draft", "feature"),
    [(drawn_tree(replace=False), {"frequency_penalty": 1.5}), (chosen_tree, {"presence_penalty": -1.5})],
)
def test_the_test_catches_penalties_of_another_path(
    draft: Draft, feature: dict[str, Any], behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, real = importlib.import_module("eventspec.engine.verify"), processed
    monkeypatch.setattr(rule, "processed", lambda row, path, sampling, state: real(row, path[:1], sampling, state))
    monkeypatch.setattr(rule, "choose", lambda row, path, *more: choose(row, path[:1], *more))
    assert p_value(draft, Sampling(temperature=1.0, **feature), behind, FEW) < ALPHA


@pytest.mark.parametrize("draft", [drawn_tree(replace=False), chosen_tree])
def test_the_test_catches_a_mask_that_ignores_the_path(
    draft: Draft, behind: Behind, maze: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = importlib.import_module("eventspec.engine.verify")
    monkeypatch.setattr(rule, "advanced", lambda state, token, sampling: state)
    with pytest.raises(AssertionError, match=r"never says|the mask forbids"):
        p_value(draft, Sampling(temperature=1.0, constraint=maze(5, 0.8, V)), behind, DRAWS // 40)


def test_the_test_catches_a_residual_that_is_not_renormalised(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = importlib.import_module("eventspec.engine.verify")
    monkeypatch.setattr(rule, "_residual", lambda p, q: left if (left := np.maximum(0.0, p - q)).any() else p)
    assert p_value(drawn_tree(replace=True), PLAIN, behind, FEW) < ALPHA


def test_the_test_catches_chosen_children_that_are_passed_off_as_drawn(behind: Behind) -> None:
    assert p_value(greedy_tree_with_probs, PLAIN, behind, FEW) < ALPHA


@pytest.mark.parametrize("same", [True, False])
def test_nothing_is_left_only_by_rounding_and_then_p_itself_is_right(same: bool) -> None:
    """p and q are equal up to the last bit: a refusal can then only come from rounding."""
    p = processed(TARGET[0], [], PLAIN)
    q = p if same else np.nextafter(p, 1)
    drawn = Proposal(np.array([2]), np.array([-1]), torch.from_numpy(q[None]))
    last = SimpleNamespace(random=lambda: 1.0, gumbel=np.random.default_rng(0).gumbel)
    verdict = verify(TARGET[[0, 2]], drawn, PLAIN, [], lambda position: last)  # type: ignore[arg-type, return-value]
    assert verdict.path.tolist() == []
    assert 0 <= verdict.tokens[0] < V


def test_a_sampled_answer_does_not_depend_on_what_was_chosen_to_draft() -> None:
    """The same seed gives the same tokens with a tree, with another tree and with none."""

    def reversed_tree(last: int, rng: Rng) -> Proposal:
        return proposal([(int(token), -1) for token in np.argsort(Q[last])[:3]], None)

    def nothing(last: int, rng: Rng) -> Proposal:
        return Proposal.empty()

    for seed in range(200):
        answers = []
        for draft in (nothing, chosen_tree, reversed_tree):
            answer: list[int] = []
            while len(answer) < 6:
                last = answer[-1] if answer else START
                proposed = draft(last, np.random.default_rng(0))
                verdict = verify(TARGET[[last, *proposed.tokens]], proposed, PROCESSED, answer, position_rng(seed))
                answer += verdict.tokens.tolist()
            answers.append(answer[:6])
        assert answers[0] == answers[1] == answers[2]


def test_a_drawn_token_always_has_a_share() -> None:
    p, rng = np.array([0.0, 0.25, 0.0, 0.75, 0.0]), np.random.default_rng(0)
    drawn = [draw(p, rng) for _ in range(4000)]
    assert set(drawn) == {1, 3}
    assert abs(drawn.count(1) / 4000 - 0.25) < 0.03
    assert {draw(np.array([0.0, 1e-300, 0.0]), rng) for _ in range(20)} == {1}


def test_seeds_and_positions_draw_apart() -> None:
    """A position is no second word of the seed: position 7 of seed 5 is not position 0 of seed 5 + (7 << 32)."""
    drawn = [position_rng(seed)(position).random() for seed in (0, 5, 5 + (7 << 32), 7, 1 << 200) for position in (0, 1, 5, 7)]
    assert len(set(drawn)) == len(drawn)
    assert position_rng(5)(7).random() == position_rng(5)(7).random()
