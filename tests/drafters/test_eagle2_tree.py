"""EAGLE-2's tree as published: its shape at every round of an answer, and the nodes that SafeAILab's code would choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from eventspec.ask import Result, generate
from eventspec.core import Budget, Proposal
from eventspec.drafters import FeatureDrafter
from eventspec.drafters.heads import feature
from eventspec.drafters.heads.feature import FeatureDraft
from eventspec.nn.draft import DraftKernel, layer_pass, next_tokens
from eventspec.nn.weights import Place, TreeGrowth
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording
from eventspec.tree import depths

TOP_K, DEPTH, TOTAL = 10, 7, 60
RECORDING, QUESTION = Recording.open(DATA / "clips/street_scene"), "Describe the scene."
DEAR = {"node_cost": 0.9, "worth": 0.5}
"""No node is ever worth its verification at these costs."""


@dataclass
class Seen:
    """What was grown and what was proposed, by round; `left`: the tokens that the answer had room for."""

    grown: list[tuple[list[int], list[int]]] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("nano", "one", fit=False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, grow, propose = Seen(), DraftKernel.grow, FeatureDraft.propose

    def growing(self: DraftKernel, *given: object) -> tuple[Tensor, Tensor, Tensor]:
        made = grow(self, *given)  # type: ignore[arg-type]
        found.grown.append((made[0].tolist(), made[1].tolist()))
        return made

    def proposing(self: FeatureDraft, budget: Budget) -> Proposal:
        found.proposals.append(made := propose(self, budget))
        found.left.append(budget.max_depth)
        return made

    monkeypatch.setattr(DraftKernel, "grow", growing)
    monkeypatch.setattr(FeatureDraft, "propose", proposing)
    return found


def answered(pair: Pair, head: str, most: int = 48) -> Result:
    return generate(pair.with_head(head), RECORDING, QUESTION, "eagle", max_new_tokens=most)


def of_the_published_shape(seen: Seen, round_number: int) -> bool:
    """Candidates, their levels and the tree that is verified, counted; fewer levels only where the answer's room ends."""
    (tokens, parents), proposal = seen.grown[round_number], seen.proposals[round_number]
    levels = min(1 + DEPTH, seen.left[round_number])
    by_level, expanded = Counter(depths(parents)), {parent for parent in parents if parent >= 0}
    inner = Counter(depths(parents)[node] for node in expanded)
    chosen = depths(proposal.parents.tolist())
    return (
        by_level == {0: TOP_K, **dict.fromkeys(range(1, levels), TOP_K**2)}
        and inner == dict.fromkeys(range(levels - 1), TOP_K)
        and len(proposal) == min(TOTAL - 1, len(tokens))
        and max(chosen) < levels
        and max(Counter(proposal.parents.tolist()).values()) <= TOP_K
    )


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_the_shape_is_the_published_one_at_every_round(
    pair: Pair, seen: Seen, head: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At costs by which every other tree is declined, with machine code and without, greedy; the answer is the target's."""
    if not native:
        monkeypatch.setattr(DraftKernel, "natively", lambda self: self)
    plain = generate(pair, RECORDING, QUESTION, "autoregressive", max_new_tokens=48)
    dear = pair.with_policy(**DEAR)
    found = answered(dear, f"{head}:eagle2")
    assert found.token_ids == plain.token_ids
    rounds = [one for one in found.trace.rounds if one.proposed]
    assert len(rounds) == len(seen.proposals) == len(found.trace.rounds) - 1 > 2, (
        "every round but the one that ends the prefill"
    )
    assert [one.proposed for one in rounds] == [len(one) for one in seen.proposals]
    assert all(of_the_published_shape(seen, number) for number in range(len(rounds)))
    assert all(one.proposed == TOTAL - 1 for one, left in zip(rounds, seen.left, strict=True) if left > 1)
    declined = answered(dear, f"{head}:dynamic")
    assert declined.trace.drafted == 0


def test_only_the_answers_room_makes_it_smaller(pair: Pair, seen: Seen) -> None:
    found = answered(pair, "eagle:eagle2", most=6)
    assert len(found.token_ids) == 6 and seen.left[0] < 1 + DEPTH
    assert all(of_the_published_shape(seen, number) for number in range(len(seen.grown)))


def test_the_usual_tree_has_another_shape(pair: Pair, seen: Seen) -> None:
    """The control of the tests above: EAGLE-2's rule, without its limits by hand."""
    answered(pair, "eagle:dynamic")
    assert not any(of_the_published_shape(seen, number) for number in range(len(seen.grown)))


def topk_generate(drafter: FeatureDrafter, root: Tensor, position: int, cached: Place) -> set[tuple[int, ...]]:
    """The paths that `topK_genrate` of SafeAILab/EAGLE (eagle/model/cnets1.py) keeps, written down again from its description:
    `scores_list` of all candidates is cut to the best `total_tokens - 1` only once the last level is there. Every row looks at
    its own path by a pass of its own."""
    weights, paths, best = drafter.kernel.weights, dict[tuple[int, ...], float](), [((), 0.0, root)]
    start, (cos, sin) = cached.start, drafter.tables
    for level in range(1 + DEPTH):
        candidates = []
        for path, score, hidden in best:
            logs, tokens = next_tokens(hidden, TOP_K, weights)
            for log, token in zip(logs[0].tolist(), tokens[0].tolist(), strict=True):
                candidates.append(((*path, token), score + log))
        paths.update(candidates)
        best = []
        for path, score in sorted(candidates, key=lambda one: -one[1])[:TOP_K]:
            hidden = root
            for depth, token in enumerate(path):  # the whole path again, alone
                at = position + depth
                place = Place(cos[at : at + 1], sin[at : at + 1], cached.keys, cached.values, start + depth, None, 0)
                hidden = layer_pass(drafter.embed.weight[token : token + 1], hidden, place, weights)
            best.append((path, score, hidden))
        assert len(best) == TOP_K, level
    return {path for path, _ in sorted(paths.items(), key=lambda one: -one[1])[: TOTAL - 1]}


def test_the_nodes_are_those_that_the_released_code_keeps(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path by path, at every round of an answer, in the weights' own precision."""
    monkeypatch.setattr(DraftKernel, "natively", lambda self: self)
    wanted, found, propose = list[set[tuple[int, ...]]](), list[set[tuple[int, ...]]](), FeatureDraft.propose

    def proposing(self: FeatureDraft, budget: Budget) -> Proposal:
        made = propose(self, budget)
        assert self.root is not None and self.cache is not None
        cached = Place(made_cos, made_cos, self.cache.keys, self.cache.values, self.cache.length, None, 0)
        if budget.max_depth > DEPTH:
            wanted.append(topk_generate(self.drafter, self.root, self.position, cached))
            paths: list[tuple[int, ...]] = []
            for token, parent in zip(made.tokens.tolist(), made.parents.tolist(), strict=True):
                paths.append((*(paths[parent] if parent >= 0 else ()), token))
            found.append(set(paths))
        return made

    made_cos = torch.empty(0)
    monkeypatch.setattr(FeatureDraft, "propose", proposing)
    answered(pair, "eagle:eagle2", most=32)
    assert len(found) > 1
    same = np.mean([len(one & two) / (TOTAL - 1) for one, two in zip(found, wanted, strict=True)])
    assert same > 0.98, "but for nodes that are equally likely to rounding"


def test_an_answers_end_is_expanded_as_any_token_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    growths = list[TreeGrowth]()
    grow = DraftKernel.grow

    def growing(self: DraftKernel, hidden: Tensor, growth: TreeGrowth, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
        growths.append(growth)
        return grow(self, hidden, growth, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftKernel, "grow", growing)
    answered(pair, "eagle:eagle2", most=8)
    assert {(one.end, one.floor, one.mass) for one in growths} == {(feature.NO_TOKEN, 0.0, 0.0)}
    growths.clear()
    answered(pair, "eagle:dynamic", most=8)
    assert growths and all(one.end >= 0 and one.floor > 0 for one in growths)
