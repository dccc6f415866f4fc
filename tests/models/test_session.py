"""A target session: one forward scores all pending rows and the proposal; what is committed is what was read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eventspec.core import Media, Proposal, Request, Sampling, Verdict
from eventspec.costs.fit import session_of
from eventspec.engine.policy import NO_TAIL
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageSession, LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.nn.cpu.decoder import CpuLayers
from eventspec.tree import BadProposal, fit, within

PROMPT = [5, 1, 9, 2, 14, 7, 7, 3]


@pytest.fixture(scope="module")
def target() -> LanguageTarget:
    language = Llama(LlamaConfig(20, 16, 24, 2, 2, 1, max_position_embeddings=40)).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in language.parameters():
        parameter.normal_(0.0, 0.5, generator=generator)

    def reading(question: str) -> Prompt:
        return Prompt(language.embed(torch.tensor([int(word) for word in question.split()])), (0, 0))

    return LanguageTarget(TextEncoder(language, reading))


def opened(target: LanguageTarget, text: list[int], tail: int = 1) -> LanguageSession:
    request = Request(Media(), " ".join(map(str, text)), Sampling(max_new_tokens=8))
    return session_of(target, tail, asked=request)


def verdict(path: list[int], tokens: list[int]) -> Verdict:
    return Verdict(np.array(path, np.int64), np.array(tokens, np.int64))


TREE = Proposal(np.array([4, 6, 4, 8, 1]), np.array([-1, -1, 1, 2, 0]))


@pytest.mark.parametrize("tail", [0, 1, 3, 8, 1000])
@pytest.mark.parametrize("proposal", [Proposal.empty(), Proposal.chain([4, 6, 8]), TREE], ids=["empty", "chain", "tree"])
@torch.inference_mode()
def test_the_pending_tail_changes_no_score(tail: int, proposal: Proposal, target: LanguageTarget) -> None:
    session = opened(target, PROMPT, tail)
    assert len(session.pending) == min(len(PROMPT), max(1, tail))
    scores = session.score(proposal)
    assert scores.logits.shape == (len(proposal) + 1, 20)
    for node in range(-1, len(proposal)):
        path, at = list[int](), node
        while at >= 0:
            path.insert(0, int(proposal.tokens[at]))
            at = int(proposal.parents[at])
        alone = opened(target, PROMPT + path).score(Proposal.empty()).logits[0]
        torch.testing.assert_close(scores.logits[node + 1], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("tail", "pending"), [(5, 3), (2, 1), (1, 1)])
def test_more_than_asked_for_is_read_where_that_fills_a_product_but_never_the_last_row(
    tail: int, pending: int, target: LanguageTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opened(target, PROMPT, tail).score(Proposal.chain([3, 1]))
    monkeypatch.setattr(CpuLayers, "whole", lambda backend, rows: rows + 2)
    session = opened(target, PROMPT, tail)
    assert len(session.pending) == pending
    torch.testing.assert_close(session.score(Proposal.chain([3, 1])).logits, plain.logits)


@pytest.mark.parametrize("tail", [1, 3, 1000])
@torch.inference_mode()
def test_after_a_verdict_the_session_is_as_if_opened_on_the_longer_text(tail: int, target: LanguageTarget) -> None:
    session = opened(target, PROMPT, tail)
    session.score(TREE)
    session.commit(verdict([1, 2], [6, 4, 11]))
    fresh = opened(target, [*PROMPT, 6, 4, 11])
    assert session.cache.length == fresh.cache.length
    rows = slice(0, fresh.cache.length)
    for mine, yours in zip([*session.cache.keys, *session.cache.values], [*fresh.cache.keys, *fresh.cache.values], strict=True):
        torch.testing.assert_close(mine[:, rows], yours[:, rows], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(session.score(TREE).logits, fresh.score(TREE).logits, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_scoring_twice_gives_the_same_scores(target: LanguageTarget) -> None:
    session = opened(target, PROMPT)
    first = session.score(TREE).logits
    session.score(Proposal.chain([1, 2, 3, 4, 5, 6, 7]))
    torch.testing.assert_close(session.score(TREE).logits, first)


@pytest.mark.parametrize("proposal", [Proposal.chain([20]), Proposal.chain([1, 1 << 40])])
def test_what_the_target_cannot_read_is_refused_by_its_limits(proposal: Proposal, target: LanguageTarget) -> None:
    with pytest.raises(BadProposal, match="is none of the target's 20"):
        fit(proposal, target.limits)


@torch.inference_mode()
def test_as_many_nodes_as_there_is_room_for_can_be_read(target: LanguageTarget) -> None:
    session = opened(target, PROMPT)
    before = session.score(TREE).logits
    wide = within(Proposal(np.ones(300, np.int64), np.full(300, -1)), session.room)
    assert len(wide) == session.room < 300
    assert len(session.score(wide).logits) == session.room + 1
    torch.testing.assert_close(session.score(TREE).logits, before)


@torch.inference_mode()
def test_a_session_again_has_the_prompt_and_nothing_else(target: LanguageTarget) -> None:
    session = opened(target, PROMPT)
    request = Request(Media(), " ".join(map(str, PROMPT)), Sampling(max_new_tokens=20))
    first = session_of(target, NO_TAIL, asked=request).score(Proposal.empty()).logits
    session.score(TREE)
    session.commit(verdict([0], [4, 2]))
    assert torch.equal(session.fresh_copy().score(Proposal.empty()).logits, first)
