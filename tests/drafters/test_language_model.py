"""A language model's draft tree: it grows on when asked again, and survives verdicts as if it had been opened anew."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import Budget, Proposal, Scores, Trace, Verdict
from eventspec.drafters.language_model import LanguageDraft
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.models.session import LanguageTarget
from eventspec.nn.runner import DecoderRunner, Rows
from eventspec.text import StopDetector
from eventspec.tree import check, depths

PROMPT = [7, 3, 11, 2, 19]
UNUSED = Scores(torch.empty(0))
END = 0


def told(draft: LanguageDraft, *tokens: int) -> None:
    draft.observe(Verdict(np.empty(0, np.int64), np.array(tokens, np.int64)), UNUSED)


def paths(draft: LanguageDraft, proposal: Proposal) -> dict[tuple[int, ...], float]:
    """Every proposed node as the tokens that lead to it, with the drafter's value."""
    found: dict[tuple[int, ...], float] = {}
    leading: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        leading.append((*(leading[parent] if parent >= 0 else ()), token))
        node: int | None = -1
        for step in leading[-1]:
            node = None if node is None else draft.tree.child(node, step)
        assert node is not None
        found[leading[-1]] = draft.tree.values[node]
    assert len(found) == len(proposal), "a path stands in the proposal twice"
    return found


def assert_as_fresh(draft: LanguageDraft, drafter: Any, asked: Any, committed: list[int], budget: Budget) -> None:
    """The next proposal is that of a session opened on the committed prefix, and so is the cache below it."""
    mine = paths(draft, check(draft.propose(budget), budget))
    plain = copy.copy(drafter)
    plain.model = replace(plain.model, lookahead=None)
    fresh = plain.open(asked(PROMPT + committed), None, Trace())
    yours = paths(fresh, fresh.propose(budget))
    assert mine.keys() == yours.keys()
    assert [mine[path] for path in yours] == pytest.approx(list(yours.values()), abs=1e-4)
    assert draft.base == fresh.base == len(PROMPT) + len(committed)
    for one, other in zip([*draft.cache.keys, *draft.cache.values], [*fresh.cache.keys, *fresh.cache.values], strict=True):
        torch.testing.assert_close(one[:, : draft.base], other[:, : draft.base], rtol=1e-4, atol=1e-4)


@pytest.fixture(params=["no guess", "right guesses", "wrong guesses", "guesses that are right at first"])
def drafter(request: pytest.FixtureRequest, model: Any, drafting: Any) -> Any:
    made = drafting(model(1))

    def guess(question: str, answer: Any) -> list[int]:
        text, found = [int(word) for word in question.split()] + list(answer), list[int]()
        for place in range(4):
            x = made.encoder.language.embed(torch.tensor(text + found))[None]
            hidden = made.encoder.language.forward(x, torch.arange(x.shape[1]), x.shape[1], None)
            right = int(made.encoder.language.logits(hidden[0, -1]).argmax())
            wrong = request.param == "wrong guesses" or (place > 1 and request.param != "right guesses")
            found.append((right + 7) % 30 if wrong else right)
        return found

    if request.param != "no guess":
        made.model = replace(made.model, lookahead=guess)
    return made


@pytest.fixture
def draft(drafter: Any, asked: Any) -> LanguageDraft:
    opened: LanguageDraft = drafter.open(asked(PROMPT), None, Trace())
    return opened


# ------------------------------------------------------------------------------------------------------------ after a verdict
def inside(draft: LanguageDraft, levels: int) -> list[int]:
    """Tokens down the most valuable chain of expanded nodes."""
    chain: list[int] = []
    node = -1
    while len(chain) < levels:
        children = [n for n in draft.tree.expanded if draft.tree.parents[n] == node]
        node = max(children, key=lambda n: draft.tree.values[n])
        chain.append(draft.tree.tokens[node])
    return chain


WIDE = Budget(max_nodes=20, min_path_prob=0.002)


@pytest.mark.parametrize("levels", [1, 2])
def test_tokens_inside_the_tree_keep_what_hangs_below(levels: int, draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    draft.propose(Budget(max_nodes=500))
    tokens = inside(draft, levels)
    told(draft, *tokens)
    assert draft.unread == []
    assert len(draft.tree.expanded) > 0, "nothing was kept"
    assert_as_fresh(draft, drafter, asked, tokens, WIDE)


def test_tokens_partly_inside_the_tree_keep_the_part(draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    draft.propose(Budget(max_nodes=60))
    tokens = inside(draft, 2)
    known = {draft.tree.tokens[n] for n in range(len(draft.tree)) if draft.tree.parents[n] == draft.tree.descend(tokens)[0][-1]}
    tokens += [next(t for t in range(1, 30) if t not in known), 5]
    told(draft, *tokens)
    assert draft.base == len(PROMPT) + 2
    assert_as_fresh(draft, drafter, asked, tokens, WIDE)


def test_a_token_that_was_foreseen_but_never_expanded_is_read(draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    draft.propose(Budget(max_nodes=20))
    leaf = next(n for n, parent in enumerate(draft.tree.parents) if n not in draft.tree.expanded and parent >= 0)
    tokens = draft.tree.path(leaf)
    told(draft, *tokens)
    assert draft.unread == tokens[-1:]
    assert_as_fresh(draft, drafter, asked, tokens, WIDE)


def test_tokens_outside_the_tree_start_it_anew(draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    draft.propose(Budget(max_nodes=30))
    first = {draft.tree.tokens[n] for n in range(len(draft.tree)) if draft.tree.parents[n] < 0}
    token = next(t for t in range(1, 30) if t not in first)
    told(draft, token)
    assert_as_fresh(draft, drafter, asked, [token], WIDE)


def test_a_draft_that_never_proposed_catches_up_with_several_verdicts(draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    told(draft, 4, 9)
    told(draft, 1)
    told(draft, 8, 8, 2)
    assert_as_fresh(draft, drafter, asked, [4, 9, 1, 8, 8, 2], WIDE)


def test_an_unlikely_path_that_was_committed_has_all_its_likely_children(
    draft: LanguageDraft, drafter: Any, asked: Any
) -> None:
    """Its children's probability from the old root is far below the smallest share that is remembered."""
    draft.propose(Budget(max_nodes=400))
    deepest = min(draft.tree.expanded, key=lambda n: draft.tree.values[n])
    assert draft.tree.values[deepest] < 0.02
    tokens = draft.tree.path(deepest)
    told(draft, *tokens)
    assert draft.unread == []
    assert_as_fresh(draft, drafter, asked, tokens, WIDE)


@settings(
    derandomize=True, database=None, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_any_history_of_verdicts_leads_to_the_draft_of_a_fresh_session(
    seed: int, model: Any, drafting: Any, asked: Any
) -> None:
    drafter, rng = drafting(model(seed % 3, sure=(1.0, 3.0)[seed % 2])), np.random.default_rng(seed)
    draft, committed = drafter.open(asked(PROMPT), None, Trace()), list[int]()
    for _ in range(4):
        if rng.random() < 0.8:
            floor, levels = float(rng.choice([0.0, 0.02, 0.1])), int(rng.integers(1, 6))
            draft.propose(Budget(int(rng.integers(1, 50)), min_path_prob=floor, max_depth=levels))
        tokens, node = list[int](), -1
        for _ in range(rng.integers(1, 6)):
            children = [n for n, parent in enumerate(draft.tree.parents) if parent == node] if node is not None else []
            if children and rng.random() < 0.85:
                node = max(children, key=lambda n: draft.tree.values[n]) if rng.random() < 0.7 else int(rng.choice(children))
                tokens.append(draft.tree.tokens[node])
            else:
                tokens.append(int(rng.integers(1, 30)))
                node = draft.tree.child(node, tokens[-1]) if node is not None else None
        told(draft, *tokens)
        committed += tokens
        if rng.random() < 0.5:
            assert_as_fresh(draft, drafter, asked, committed, Budget(int(rng.integers(1, 30)), min_path_prob=0.01, max_depth=4))
    assert_as_fresh(draft, drafter, asked, committed, WIDE)


# ------------------------------------------------------------------------------------------------------------ while it grows
class Times:
    """`until`: true after so many questions."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self) -> bool:
        self.count -= 1
        return self.count < 0


def test_proposing_twice_goes_on_with_the_same_tree(draft: LanguageDraft, drafter: Any, asked: Any) -> None:
    some = paths(draft, draft.propose(Budget(40, Times(2))))
    expanded, rows = list(draft.tree.expanded), draft.cache.keys[0][:, : draft.base + 8].clone()
    all_of_it = paths(draft, draft.propose(Budget(40)))
    assert draft.tree.expanded[: len(expanded)] == expanded
    assert len(set(draft.tree.expanded)) == len(draft.tree.expanded)
    assert torch.equal(draft.cache.keys[0][:, : draft.base + 8], rows)
    assert set(some) <= {*all_of_it, *some}
    assert_as_fresh(draft, drafter, asked, [], Budget(40))


def test_a_proposal_that_is_asked_for_again_is_the_same(draft: LanguageDraft) -> None:
    first, again = draft.propose(Budget(25)), draft.propose(Budget(25))
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.parents.tolist() == again.parents.tolist()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_until_stops_growth_after_the_step_it_is_in(steps: int, draft: LanguageDraft) -> None:
    proposal = draft.propose(Budget(60, Times(steps)))
    assert 4 * steps <= len(draft.tree.expanded) <= 8 * steps  # guesses that were right come on top
    assert len(proposal) > 0
    assert max(depths(proposal.parents.tolist())) <= 5 * steps


def test_no_node_is_below_the_floor(draft: LanguageDraft) -> None:
    proposal = draft.propose(Budget(60, min_path_prob=0.05))
    values = paths(draft, proposal).values()
    assert min(values) >= 0.05
    assert len(proposal) == sum(value >= 0.05 for value in draft.tree.values)


@pytest.mark.parametrize("mass", [0.9, 0.4, 0.1])
def test_growth_stops_when_the_tip_is_worth_less_than_a_level(mass: float, draft: LanguageDraft) -> None:
    draft.propose(Budget(60, min_frontier_prob=mass))
    tip = draft.tree.leaves(4, 0.001, 1 << 30, 60)
    assert sum(draft.tree.values[n] for n in tip) < mass
    before = len(draft.tree.expanded)
    draft.propose(Budget(60))
    assert len(draft.tree.expanded) > before


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_no_branch_is_longer_than_levels_even_when_the_tree_is(levels: int, draft: LanguageDraft) -> None:
    draft.propose(Budget(100, max_depth=8))
    budget = Budget(100, max_depth=levels)
    assert max(depths(check(draft.propose(budget), budget).parents.tolist())) < levels


def test_a_tree_larger_than_its_rows_stops_growing(draft: LanguageDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("eventspec.drafters.language_model"), "_TREE_ROWS", 10)
    assert len(draft.propose(Budget(60))) > 0
    grown = len(draft.tree.expanded)
    assert 4 <= grown <= 10
    draft.propose(Budget(60))
    assert len(draft.tree.expanded) == grown


def test_nothing_is_drafted_behind_the_end(model: Any, drafting: Any, asked: Any) -> None:
    for seed in range(4):
        draft = drafting(model(seed)).open(asked(PROMPT), None, Trace())
        proposal = draft.propose(Budget(200))
        behind = [int(proposal.tokens[parent]) for parent in proposal.parents if parent >= 0]
        assert END not in behind


def test_the_best_chain_is_shown_as_it_grows(draft: LanguageDraft) -> None:
    shown: list[list[int]] = []
    draft.propose(Budget(30, show=shown.append))
    assert len(shown) > 1
    assert shown[-1] == draft.tree.best_chain()
    assert len(shown[-1]) > len(shown[0])


# ---------------------------------------------------------------------------------------------------------------- in the loop
def answered(
    target: LanguageTarget, drafter: Any, request: Any, policy: DraftPolicy, lanes: Workers
) -> tuple[list[int], Trace]:
    trace = Trace()
    stop = StopDetector(request.sampling.stop_ids)
    asked = Asking(target, request, stop, Drafts.by(drafter), policy)
    return run(Decoding(asked, lanes, trace), lanes).token_ids, trace


def greedy(model: Any, most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most and (not found or found[-1] != END):
        x = model.embed(torch.tensor(PROMPT + found))[None]
        hidden = model.forward(x, torch.arange(x.shape[1]), x.shape[1], None)
        found.append(int(model.logits(hidden[0, -1]).argmax()))
    return found


@pytest.mark.parametrize("lanes", ["one", "two"])
@pytest.mark.parametrize("nodes", [1, 5])
def test_with_the_target_itself_as_drafter_everything_is_accepted(
    nodes: int, lanes: str, model: Any, drafting: Any, asked: Any
) -> None:
    same = model(2, sure=60.0)  # so sure that its best nodes are a chain
    policy = DraftPolicy(
        head_nodes=nodes, max_nodes=nodes, node_cost=0, level_cost=0, patience=1e5, step_seconds=1, look_ahead=False
    )
    drafter, request = drafting(same), asked(PROMPT, max_new_tokens=24)
    tokens, trace = answered(LanguageTarget(drafter.encoder), drafter, request, policy, Workers(lanes))
    assert tokens == greedy(same, 24)
    assert trace.notes == []
    later = trace.rounds[1:-1] if lanes == "two" else trace.rounds[:-1]
    assert [(r.proposed, r.accepted) for r in later] == [(nodes, nodes)] * len(later)


@pytest.mark.parametrize("lanes", ["one", "two"])
@pytest.mark.parametrize("seed", range(4))
def test_another_model_as_drafter_never_changes_the_answer(
    seed: int, lanes: str, model: Any, drafting: Any, asked: Any
) -> None:
    mine, other = model(seed), model(seed + 10)
    target, request = LanguageTarget(drafting(mine).encoder), asked(PROMPT, max_new_tokens=20, stop_ids=(END,))
    policy = DraftPolicy(tail=2, max_nodes=8, node_cost=0.01, level_cost=0.01, patience=1e5, step_seconds=1)
    tokens, trace = answered(target, drafting(other), request, policy, Workers(lanes))
    assert tokens == greedy(mine, 20)
    assert trace.notes == []


def test_the_tree_ends_with_the_context_and_what_lies_beyond_is_told(
    model: Any, drafting: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA an index behind a table would end the target's work on the device too."""
    drafter = drafting(model(1))
    draft = drafter.open(asked(PROMPT), None, Trace())
    draft.context = context = len(PROMPT) + 6
    asked_of: list[int] = []
    step = DecoderRunner.step

    def seen(runner: DecoderRunner, rows: Rows, *more: Any, **named: Any) -> Any:
        last = rows.cache.length + len(rows.x) - 1
        asked_of.append(last if rows.positions is None else int(rows.positions.max()))
        return step(runner, rows, *more, **named)

    monkeypatch.setattr(DecoderRunner, "step", seen)
    for _ in range(6):
        draft.propose(Budget(12))
        told(draft, 29)
    draft.propose(Budget(12))
    assert max(asked_of) == context - 1
    told(draft, 29)
    with pytest.raises(ValueError, match=f"row {context + 1} of the drafter's context of {context}"):
        draft.propose(Budget(12))


def test_a_token_that_the_drafter_has_no_row_for_is_told(model: Any, drafting: Any, asked: Any) -> None:
    drafter = drafting(model(1))
    draft = drafter.open(asked(PROMPT), None, Trace())
    told(draft, 3, drafter.model.language.config.vocab_size)
    with pytest.raises(ValueError, match="is none of the drafter's"):
        draft.propose(Budget(4))
