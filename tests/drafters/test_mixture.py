"""Several drafters' trees as one: nothing is lost, what two name counts once, calibrated probabilities decide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.align.acceptance import reliability
from eventspec.core import BadCheckpoint, BadInput, Budget, Proposal
from eventspec.drafters.mixture import Mixture, Rounds, SourceWeights, Union
from eventspec.drafters.texts import ReusedDrafter
from eventspec.engine import DraftPolicy
from eventspec.engine.drafts import Drafts
from eventspec.pairs import load_pair
from eventspec.recordings import Recording
from eventspec.train.mixture import COSTS, Judged, fitted, judged
from eventspec.tree import check, depths

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=80)


def drafted(name: str, tokens: list[int], parents: list[int], values: list[float] | None) -> Proposal:
    given = None if values is None else np.array(values, np.float64)
    return Proposal(np.array(tokens, np.int64), np.array(parents, np.int64), None, name, given)


def paths(proposal: Proposal) -> dict[tuple[int, ...], int]:
    """Every node's tokens from the root, with its place; of equal ones the first."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return {path: place for place, path in reversed(list(enumerate(found)))}


@st.composite
def trees(draw: Any, name: str) -> Proposal:
    count = draw(st.integers(1, 9))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    tokens = [draw(st.integers(0, 3)) for _ in range(count)]
    values: list[float] = []
    for parent in parents:
        values.append((values[parent] if parent >= 0 else 1.0) * draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])))
    return drafted(name, tokens, parents, values if draw(st.booleans()) else None)


@FIXED
@given(trees("one"), trees("two"), trees("three"))
def test_the_union_holds_every_path_once(one: Proposal, two: Proposal, three: Proposal) -> None:
    wide = Budget(max_nodes=99)
    merged = check(Mixture()([one, two, three], wide), wide)
    wanted = [paths(tree) for tree in (one, two, three)]
    found = paths(merged)
    assert set(found) == set().union(*wanted)
    assert len(found) == len(merged)
    assert merged.origin == "one+two+three"
    assert merged.sources is not None
    for path, node in found.items():
        assert merged.sources[node] == sum(1 << place for place, tree in enumerate(wanted) if path in tree)
    assert merged.values is not None
    for node, parent in enumerate(merged.parents.tolist()):
        assert merged.values[node] <= (merged.values[parent] if parent >= 0 else 1.0) + 1e-12


@FIXED
@given(trees("one"), trees("two"), st.integers(1, 6), st.integers(1, 3), st.sampled_from([0.0, 0.2, 0.6]))
def test_a_budget_is_kept_and_spent_on_the_likeliest(one: Proposal, two: Proposal, nodes: int, deep: int, floor: float) -> None:
    budget = Budget(nodes, min_path_prob=floor, max_depth=deep)
    merged, whole = Mixture()([one, two], budget), Mixture()([one, two], Budget(99, max_depth=deep))
    assert merged.values is not None
    assert whole.values is not None
    assert len(merged) == min(nodes, int((whole.values >= floor).sum()))
    assert max(depths(merged.parents.tolist()), default=0) < deep
    assert merged.values.tolist() == sorted(whole.values.tolist(), reverse=True)[: len(merged)]


def test_a_path_that_may_end_the_answer_is_worth_more() -> None:
    """It saves the round that would have said its end."""
    end, budget = 7, Budget(99, min_path_prob=0.2)
    tree = drafted("one", [1, 2, 3, end, 4], [-1, 0, 1, 2, 1], [0.9, 0.15, 0.12, 0.1, 0.03])
    plain, ending = Mixture()([tree], budget), replace(Mixture(), end=end)([tree], budget)
    assert plain.tokens.tolist() == [1]
    assert ending.tokens.tolist() == [1, 2, 3, end], "and a node beside that path is worth what it was"
    assert ending.values is not None
    assert ending.values.tolist() == pytest.approx([0.9, 0.15, 0.12, 0.1]), "its probabilities stay what they are"
    unlikely = drafted("one", [1, 2, 3, end], [-1, 0, 1, 2], [0.9, 0.1, 0.05, 0.02])
    assert replace(Mixture(), end=end)([unlikely], budget).tokens.tolist() == [1]
    for tight in (Budget(3, min_path_prob=0.2), Budget(99, max_depth=3, min_path_prob=0.2)):
        assert replace(Mixture(), end=end)([tree], tight).tokens.tolist() == [1], "half a path ends nothing"


@FIXED
@given(trees("one"), trees("two"), st.integers(1, 8), st.sampled_from([0.05, 0.2, 0.6]))
def test_ends_change_no_more_than_which_nodes_are_kept(one: Proposal, two: Proposal, nodes: int, floor: float) -> None:
    budget = Budget(nodes, min_path_prob=floor)
    merged, without = replace(Mixture(), end=2)([one, two], budget), Mixture()([one, two], budget)
    check(merged, budget)
    every = paths(Mixture()([one, two], Budget(99)))
    assert set(paths(merged)) <= set(every)
    assert len(merged) >= len(without)


@FIXED
@given(trees("one"), trees("two"), trees("three"))
def test_what_is_merged_by_is_what_was_fitted(one: Proposal, two: Proposal, three: Proposal) -> None:
    """Node by node, as drafts are merged, and by arrays, as the fit and its report have it."""
    weights = {"one": SourceWeights(0.3, 0.5, -0.1, -0.5), "two": SourceWeights(), "three": SourceWeights(-2.0, 2.0, 0.2, 1.0)}
    mixture, union = Mixture(weights, -0.2), Union.of([one, two, three])
    each = mixture.fitted_shares(union.names, union.features())
    together = np.bincount(np.array(union.parents) + 1, each, len(each) + 1)
    wanted = each / np.maximum(1.0, together[np.array(union.parents) + 1])
    assert mixture.shares(union) == pytest.approx(wanted.tolist())


def test_siblings_have_one_together_at_most() -> None:
    tree = drafted("sure", [1, 2, 3], [-1, -1, -1], [0.9, 0.9, 0.9])
    union = Union.of([tree, drafted("other", [4], [-1], [1.0])])
    assert sum(Mixture().shares(union)) == pytest.approx(1.0)


def test_what_a_drafter_names_that_is_never_right_is_not_believed() -> None:
    liar, honest = SourceWeights(named=-9), SourceWeights()
    mixture = Mixture({"liar": liar, "honest": honest})
    merged = mixture([drafted("liar", [1], [-1], [0.99]), drafted("honest", [2], [-1], [0.6])], Budget(1))
    assert merged.tokens.tolist() == [2]


def simulated(rng: np.random.Generator, count: int, agree: float) -> list[Judged]:
    """Two drafters name a token each behind the root: the first is right as often as it says, the second half as often."""
    found = []
    for _ in range(count):
        said, first, second = 7, rng.uniform(0.1, 0.95), rng.uniform(0.1, 0.95)
        a = said if rng.random() < first else 1
        b = said if rng.random() < second / 2 else (a if rng.random() < agree else 2)
        union = Union.of([drafted("honest", [a], [-1], [first]), drafted("boaster", [b], [-1], [second])])
        found.append(Judged.of(union, [said]))
    return found


def test_a_fit_finds_who_can_be_believed() -> None:
    mixture = fitted(simulated(np.random.default_rng(0), 4000, 0.0))
    alone = {
        name: mixture.shares(Union.of([drafted(name, [5], [-1], [0.8]), drafted(other, [6], [-1], [0.02])]))[0]
        for name, other in (("honest", "boaster"), ("boaster", "honest"))
    }
    assert alone["honest"] > 0.6
    assert alone["boaster"] < 0.55
    both = mixture.shares(Union.of([drafted("honest", [5], [-1], [0.6]), drafted("boaster", [5], [-1], [0.6])]))[0]
    one = mixture.shares(Union.of([drafted("honest", [5], [-1], [0.6]), drafted("boaster", [6], [-1], [0.6])]))[0]
    assert both > one, "a token that two name is worth more"


def test_a_fit_is_calibrated_on_what_it_did_not_see() -> None:
    rng = np.random.default_rng(1)
    mixture, held_out = fitted(simulated(rng, 4000, 0.3)), simulated(rng, 4000, 0.3)
    predicted, right = [], []
    for row in held_out:
        predicted.append(mixture.fitted_shares(row.names, row.features))
        right.append(row.right.astype(float))
    after = reliability(np.concatenate(predicted), np.concatenate(right))
    assert after["calibration_error"] < 0.03
    shuffled = reliability(np.concatenate(predicted), np.random.default_rng(2).permutation(np.concatenate(right)))
    assert shuffled["calibration_error"] > 0.1, "the control: labels that have nothing to do with what was said"


def test_only_what_the_target_came_to_is_judged() -> None:
    tree = drafted("one", [7, 8, 9, 3], [-1, 0, 0, 1], [0.9, 0.5, 0.2, 0.4])
    judged = Judged.of(Union.of([tree]), [7, 9])
    assert judged.right.tolist() == [True, False, True]  # 3 hangs below 8, which the target did not say


def test_too_few_questions_are_told() -> None:
    with pytest.raises(BadInput, match="500 are needed"):
        fitted(simulated(np.random.default_rng(0), 9, 0.0))


def test_weights_are_kept_in_a_file(tmp_path: Path) -> None:
    mixture = Mixture({"eagle": SourceWeights(0.5, 0.9, -0.1, -2.0)}, 0.25)
    mixture.save(tmp_path / "mixture.json")
    assert Mixture.load(tmp_path / "mixture.json") == mixture


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"bias": 0, "sources": {"a": {"wrong": 1}}}', '{"bias": NaN, "sources": {}}']
)
def test_a_file_without_weights_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "mixture.json").write_text(content)
    with pytest.raises(BadCheckpoint, match=r"mixture\.json"):
        Mixture.load(tmp_path / "mixture.json")


def test_a_drafter_without_weights_stands_in_for_another() -> None:
    own, other = SourceWeights(named=1.0), SourceWeights(named=2.0)
    mixture = Mixture({"events": own, "head": other}, 0.5)
    assert mixture.standing_in({"adapted": "events"}) == Mixture({"adapted": own, "events": own, "head": other}, 0.5)
    assert mixture.standing_in({"head": "events"}) == mixture, "a drafter with weights keeps them"
    assert mixture.standing_in({"adapted": "nobody"}) == mixture


def test_who_stands_in_for_another_has_its_rounds_too() -> None:
    found, texts = Rounds(6.0, 20.0, 9.0), Rounds(4.0, 20.0, 0.0)
    mixture = Mixture({"head": SourceWeights(), "prior": SourceWeights()}, 0.0, {"head+prior": found, "prior": texts})
    assert mixture.standing_in({"other": "head"}).rounds == {"head+prior": found, "other+prior": found, "prior": texts}
    assert mixture.standing_in({"prior": "head"}).rounds == mixture.rounds, "it has weights of its own"


class Named:
    """A drafter in name only."""

    taps: tuple[int, ...] = ()

    def __init__(self, name: str, needs_target: bool = False, concurrent: bool = False) -> None:
        self.name, self.needs_target, self.concurrent = name, needs_target, concurrent

    def open(self, request: Any, target: Any, trace: Any) -> Any:
        raise NotImplementedError


HEAD, PRIOR, NGRAM = Named("head", needs_target=True), Named("prior"), Named("ngram")
MEASURED = {"head+prior+ngram": Rounds(8.0, 16.0, 8.0), "prior+ngram": Rounds(5.0, 10.0, 0.0)}


@pytest.mark.parametrize(("level_cost", "chosen"), [(0.0, "head"), (0.05, "head"), (0.3, "prior ngram")])
def test_a_model_drafts_behind_the_prefill_where_its_levels_are_cheap_enough(level_cost: float, chosen: str) -> None:
    mixture, policy = Mixture(rounds=MEASURED), DraftPolicy(node_cost=0.04, level_cost=level_cost)
    drafts = Drafts((), (HEAD, PRIOR, NGRAM), mixture, mixture.worth_it)
    assert " ".join(drafter.name for drafter in drafts.later(policy)) == chosen


@pytest.mark.parametrize(("open_cost", "chosen"), [(0.0, "head"), (0.3, "head"), (4.0, "prior ngram")])
def test_what_a_model_reads_first_counts_too(open_cost: float, chosen: str) -> None:
    """Once an answer: 0.3 in every round would be too much."""
    mixture, policy = Mixture(rounds=MEASURED), DraftPolicy(node_cost=0.04, level_cost=0.05, open_cost=open_cost)
    assert " ".join(drafter.name for drafter in mixture.worth_it((HEAD, PRIOR, NGRAM), policy)) == chosen


@pytest.mark.parametrize(("tokens", "chosen"), [(6.0, "head prior ngram"), (7.5, "head"), (8.5, "head")])
def test_blind_texts_draft_beside_a_model_where_that_was_measured_to_pay(tokens: float, chosen: str) -> None:
    """They take time too, so a little more for a round is not enough (7.5)."""
    texts = {"prior+ngram": Rounds(3.0, 10.0, 0.0)}
    mixture = Mixture(rounds={**MEASURED, **texts, "head": Rounds(tokens, 16.0, 8.0)})
    policy, reused = DraftPolicy(node_cost=0.04, level_cost=0.05), ReusedDrafter(lambda request: ())
    found = mixture.worth_it((HEAD, PRIOR, NGRAM, reused), policy)
    assert " ".join(drafter.name for drafter in found) == f"{chosen} reused", "what a model wrote is no blind text"


@pytest.mark.parametrize("rounds", [{}, {"prior+ngram": Rounds(5.0, 10.0, 0.0)}, {"other": Rounds(99.0, 1.0, 0.0)}])
def test_everybody_drafts_where_it_was_not_measured(rounds: dict[str, Rounds]) -> None:
    mixture = Mixture(rounds=rounds)
    assert mixture.worth_it((HEAD, PRIOR, NGRAM), DraftPolicy(level_cost=9.0)) == (HEAD, PRIOR, NGRAM)
    assert Mixture(rounds=MEASURED).worth_it((PRIOR, NGRAM), DraftPolicy()) == (PRIOR, NGRAM)


def test_a_fit_asks_a_model_too_that_is_not_worth_its_cost() -> None:
    with load_pair("nano", "one", fit=False).with_policy(**COSTS) as pair:
        method = pair.method("hybrid")
        texts = replace(method.drafts, select=lambda drafters, policy: drafters[1:])
        asked = (Recording.open("example:street"), "Describe the scene.")
        with_texts = pair.with_method("hybrid", replace(method, drafts=texts))
        one, two = (list(judged(with_texts, [asked] * count, lambda *_: None, count)) for count in (1, 2))
    assert any("hivis" in row.names for row in one)
    assert not any("hivis" in row.names for row in two[len(one) :]), "to the next question texts alone"
    assert any("reused" in row.names for row in two[len(one) :])


def test_a_drafter_that_was_not_there_when_rounds_were_measured_adds_to_either() -> None:
    reused = ReusedDrafter(lambda request: ())
    for policy in (DraftPolicy(level_cost=9.0), DraftPolicy(level_cost=0.0)):
        known = Mixture(rounds=MEASURED).worth_it((HEAD, PRIOR, NGRAM), policy)
        assert list(Mixture(rounds=MEASURED).worth_it((HEAD, PRIOR, NGRAM, reused), policy)) == [*known, reused]


def test_measured_rounds_survive_the_file(tmp_path: Path) -> None:
    mixture = Mixture({"head": SourceWeights()}, 0.5, MEASURED)
    mixture.save(tmp_path / "mixture.json")
    assert Mixture.load(tmp_path / "mixture.json") == mixture
    data = json.loads((tmp_path / "mixture.json").read_text())
    del data["rounds"]
    (tmp_path / "mixture.json").write_text(json.dumps(data))
    assert Mixture.load(tmp_path / "mixture.json").rounds == {}, "a file of before"
    data["rounds"] = {"head": {"tokens": float("nan"), "nodes": 1.0, "levels": 0.0}}
    (tmp_path / "mixture.json").write_text(json.dumps(data))
    with pytest.raises(BadCheckpoint, match="no number"):
        Mixture.load(tmp_path / "mixture.json")
