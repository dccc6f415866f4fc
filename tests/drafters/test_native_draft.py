"""Drafts of a small language model from machine code: its own likeliest continuations, behind whatever was committed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eventspec.core import Budget, Proposal, Request, Scores, Trace, Verdict
from eventspec.drafters import LanguageDrafter
from eventspec.drafters.language_model import LanguageDraft, NativeDraft
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.cpu.native import library
from eventspec.tree import check

pytestmark = pytest.mark.skipif(library() is None, reason="there is no compiler")
PROMPT = [7, 3, 11, 2, 19]
UNUSED = Scores(torch.empty(0))
END = 0
LIMIT = 28


def in_eight_bits(weight: Tensor) -> Tensor:
    """A matrix rounded to what eight bits hold of it, so that machine code has the model's own weights."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scales).round() * scales


@pytest.fixture(scope="module")
def language() -> Llama:
    with torch.inference_mode(False):
        made = Llama(LlamaConfig(30, 32, 48, 3, 4, 2, max_position_embeddings=80)).requires_grad_(False).eval()
        generator = torch.Generator().manual_seed(1)
        for part in made.parameters():
            part.normal_(0.0, 0.5, generator=generator)
            if part.dim() > 1:
                part.copy_(in_eight_bits(part))
        return made


@pytest.fixture
def drafter(language: Llama) -> LanguageDrafter:
    def reading(question: str) -> Prompt:
        return Prompt(language.embed(torch.tensor([int(word) for word in question.split()])), (0, 0))

    return LanguageDrafter("tiny", TextEncoder(language, reading), END, LIMIT, natively=True)


@pytest.fixture
def draft(drafter: LanguageDrafter, asked: Any) -> NativeDraft:
    opened = drafter.open(asked(PROMPT), None, Trace())
    assert isinstance(opened, NativeDraft)
    return opened


def told(draft: NativeDraft, *tokens: int) -> None:
    draft.observe(Verdict(np.empty(0, np.int64), np.array(tokens, np.int64)), UNUSED)


def truth(language: Llama, text: list[int]) -> Tensor:
    """Probabilities of the next token [LIMIT], as the whole model has them."""
    x = language.embed(torch.tensor(text))[None]
    hidden = language.forward(x, torch.arange(x.shape[1]), x.shape[1], None)
    return language.logits(hidden[0, -1])[:LIMIT].softmax(-1)


def check_true(language: Llama, said: list[int], proposal: Proposal) -> None:
    """Every value is the probability of its path, and no other node of the widest tree is worth more."""
    leading = list[list[int]]()
    assert proposal.values is not None
    for token, parent, value in zip(*map(np.ndarray.tolist, (proposal.tokens, proposal.parents, proposal.values)), strict=True):
        leading.append([*(leading[parent] if parent >= 0 else []), token])
        path, likely = leading[-1], 1.0
        for place, step in enumerate(path):
            assert place == 0 or path[place - 1] != END
            likely *= float(truth(language, PROMPT + said + path[:place])[step])
        assert value == pytest.approx(likely, rel=2e-3)
    roots = truth(language, PROMPT + said).topk(4).indices.tolist()
    firsts = [path[0] for path in leading if len(path) == 1]
    assert firsts == roots[: len(firsts)]


@pytest.mark.parametrize("said", [[], [4], [4, 9, 9, 12, 5, 1, 2]])
def test_values_are_the_models_own_probabilities(said: list[int], draft: NativeDraft, language: Llama) -> None:
    draft.propose(Budget(6))
    for token in said:
        told(draft, token)
    budget = Budget(12, min_path_prob=0.01)
    proposal = check(draft.propose(budget), budget)
    assert len(proposal) > 3
    assert proposal.depth > 1
    check_true(language, said, proposal)


def test_a_tree_is_the_one_that_torch_grows(drafter: LanguageDrafter, asked: Any) -> None:
    plain = LanguageDrafter("tiny", drafter.encoder, END, LIMIT)
    budget = Budget(100, min_path_prob=0.02)
    one, two = (made.open(asked(PROMPT), None, Trace()).propose(budget) for made in (drafter, plain))
    assert isinstance(plain.open(asked(PROMPT), None, Trace()), LanguageDraft)

    def values(proposal: Proposal) -> dict[tuple[int, ...], float]:
        leading, found = list[tuple[int, ...]](), dict[tuple[int, ...], float]()
        assert proposal.values is not None
        for token, parent, value in zip(proposal.tokens, proposal.parents, proposal.values, strict=True):
            leading.append((*(leading[parent] if parent >= 0 else ()), int(token)))
            found[leading[-1]] = float(value)
        return found

    first, second = values(one), values(two)
    assert len(first) > 5
    assert list(first.values()) == pytest.approx([second[path] for path in first], rel=5e-3)
    for path in second.keys() - first.keys():  # beyond a node's four likeliest
        beside = [first[other] for other in first if other[:-1] == path[:-1]]
        assert not beside or (len(beside) == 4 and min(beside) >= second[path])


def test_several_verdicts_at_once_are_caught_up_with(draft: NativeDraft, drafter: LanguageDrafter, asked: Any) -> None:
    for tokens in ([5, 6], [7], [8, 9, 10]):
        told(draft, *tokens)
    mine = draft.propose(Budget(10))
    yours = drafter.open(asked([*PROMPT, 5, 6, 7, 8, 9, 10]), None, Trace()).propose(Budget(10))
    assert mine.tokens.tolist() == yours.tokens.tolist()
    assert draft.base == len(PROMPT) + 6


def test_what_is_asked_for_again_is_the_same_and_grown_once(draft: NativeDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    first = draft.propose(Budget(10))
    monkeypatch.setattr(NativeDraft, "_grown", None)
    again = draft.propose(Budget(10))
    assert (again.tokens.tolist(), again.parents.tolist()) == (first.tokens.tolist(), first.parents.tolist())


def test_a_budget_is_kept(draft: NativeDraft) -> None:
    shown = list[list[int]]()
    few = draft.propose(Budget(5, show=shown.append))
    assert len(few) == 5
    assert shown
    assert shown[0][0] == few.tokens[0]
    assert draft.propose(Budget(40, max_depth=2)).depth == 2
    likely = draft.propose(Budget(40, min_path_prob=0.05))
    assert likely.values is not None
    assert likely.values.min() >= 0.05
    assert draft.propose(Budget(40, min_frontier_prob=2.0)).depth == 1
    hurried = draft.propose(Budget(40, until=lambda: True))
    assert 1 < hurried.depth <= 12 < draft.propose(Budget(200)).depth, "the target waits: most of what is accepted"


def test_it_writes_on_to_the_end_as_the_model_would(draft: NativeDraft, language: Llama) -> None:
    draft.propose(Budget(6))
    begun = [token for token, _ in draft.written]
    draft.write_on(Budget(6, max_depth=45))
    said = [token for token, _ in draft.written]
    assert said[: len(begun)] == begun
    assert len(said) > len(begun)
    for place in range(len(begun), len(said)):
        likely = truth(language, PROMPT + said[:place])
        assert said[place] == int(likely.argmax())
        assert draft.written[place][1] == pytest.approx(float(likely.max()), rel=2e-3)
    assert len(said) == 45 or said[-1] == END
    before = draft.propose(Budget(10))
    told(draft, 3)
    assert draft.propose(Budget(10)).tokens.tolist() != before.tokens.tolist()
    check_true(language, [3], draft.propose(Budget(10)))


def test_writing_stops_when_it_is_told_to_and_behind_a_verdict(draft: NativeDraft) -> None:
    draft.propose(Budget(6, max_depth=2))
    calls = itertools.count()
    draft.write_on(Budget(6, until=lambda: next(calls) > 0, max_depth=60))
    assert 2 < len(draft.written) <= 2 + 16
    told(draft, 4)
    before = draft.written
    draft.write_on(Budget(6, max_depth=60))
    assert draft.written == before


def test_the_tree_ends_with_the_context_and_what_lies_beyond_is_told(draft: NativeDraft) -> None:
    draft.context = context = len(PROMPT) + 6
    for _ in range(6):
        assert draft.propose(Budget(40)).depth <= max(1, context - draft.base)
        told(draft, 27)
    assert len(draft.propose(Budget(12)))
    told(draft, 27)
    with pytest.raises(ValueError, match=f"row {context + 1} of the drafter's context of {context}"):
        draft.propose(Budget(12))


def test_a_token_that_the_model_does_not_have_is_told(draft: NativeDraft) -> None:
    told(draft, 30)
    with pytest.raises(ValueError, match="token 30 is none of the drafter's 30"):
        draft.propose(Budget(4))


def test_questions_in_the_making_at_once_do_not_disturb_each_other(drafter: LanguageDrafter, asked: Any) -> None:
    texts = [[*PROMPT], [1, 2, 3], [9, 9]]
    drafts = [drafter.open(asked(text), None, Trace()) for text in texts]
    for token in (5, 17, 6):
        for text, one in zip(texts, drafts, strict=True):
            one.observe(Verdict(np.empty(0, np.int64), np.array([token])), UNUSED)
            text.append(token)
    for text, one in zip(texts, drafts, strict=True):
        alone = drafter.open(asked(text), None, Trace()).propose(Budget(8))
        assert one.propose(Budget(8)).tokens.tolist() == alone.tokens.tolist()


def test_models_that_it_does_not_suit_draft_leaf_by_leaf(model: Any, drafting: Any, asked: Any) -> None:
    made = drafting(model(1), natively=True)
    assert made.native is None, "of fp64"
    request: Request = asked(PROMPT)
    assert isinstance(made.open(request, None, Trace()), LanguageDraft)
