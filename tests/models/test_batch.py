"""Several answers in one forward: rounds with trees behind prompts of different lengths give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eventspec.ask.generation import media_of
from eventspec.core import Media, Proposal, Sampling, Trace, Verdict
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageSession, LanguageTarget, score_together
from eventspec.nn import Llama, LlamaConfig
from eventspec.pairs import load_pair
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording

ROUNDS = 8
PROMPTS = ([5, 1, 9], [2, 14, 7, 7, 3, 8, 1], [4], [11, 12, 13, 6, 5])
TAPS: tuple[tuple[int, ...], ...] = ((), (-1,), (0, 2), (1, -1))


def target(dtype: torch.dtype = torch.float64) -> LanguageTarget:
    language = Llama(LlamaConfig(20, 16, 24, 3, 4, 2, max_position_embeddings=200))
    generator = torch.Generator().manual_seed(0)
    for parameter in language.requires_grad_(False).parameters():
        parameter.normal_(0.0, 0.5, generator=generator)
    language.to(dtype).eval()

    def reading(question: str) -> Prompt:
        return Prompt(language.embed(torch.tensor([int(word) for word in question.split()])), (0, 0))

    return LanguageTarget(TextEncoder(language, reading))


def opened(model: LanguageTarget, prompt: list[int], taps: tuple[int, ...], tail: int) -> LanguageSession:
    context = model.encode(Media(), Trace())
    session = context.open(" ".join(map(str, prompt)), Sampling(max_new_tokens=60), tail, Trace(), taps)
    assert isinstance(session, LanguageSession)
    return session


def drafted(rng: np.random.Generator, vocabulary: int, room: int) -> Proposal:
    """A random tree, a chain or nothing."""
    count = int(rng.integers(0, min(room, 9)))
    tokens = rng.integers(0, vocabulary, count)
    parents = np.array([int(rng.integers(-1, node)) for node in range(count)], np.int64)
    return Proposal.chain(tokens) if rng.random() < 0.3 else Proposal(tokens, parents)


@torch.inference_mode()
def test_rounds_in_one_forward_are_rounds_alone() -> None:
    model, rng = target(), np.random.default_rng(0)
    together = [opened(model, prompt, taps, tail) for tail, (prompt, taps) in enumerate(zip(PROMPTS, TAPS, strict=True))]
    alone = [opened(model, prompt, taps, tail) for tail, (prompt, taps) in enumerate(zip(PROMPTS, TAPS, strict=True))]
    for _ in range(ROUNDS):
        proposals = [drafted(rng, 20, session.room) for session in alone]
        many = score_together(together, proposals)
        for one, other, proposal, scores in zip(alone, together, proposals, many, strict=True):
            wanted = one.score(proposal)
            torch.testing.assert_close(scores.logits, wanted.logits, rtol=1e-9, atol=1e-9)
            if wanted.features is None:
                assert scores.features is None
            else:
                torch.testing.assert_close(scores.features, wanted.features, rtol=1e-9, atol=1e-9)
            # Accept a random path, so that caches of different rows go on.
            path, at = list[int](), -1
            while children := [n for n, parent in enumerate(proposal.parents.tolist()) if parent == at]:
                at = int(rng.choice(children))
                path.append(at)
                if rng.random() < 0.4:
                    break
            tokens = [*proposal.tokens[path].tolist(), int(rng.integers(20))]
            for session in (one, other):
                session.commit(Verdict(np.array(path, np.int64), np.array(tokens, np.int64)))
    for one, other in zip(alone, together, strict=True):
        if one.taps:
            torch.testing.assert_close(one.prompt().features, other.prompt().features, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_sessions_of_two_models_do_not_share_a_forward() -> None:
    sessions = [opened(target(), PROMPTS[0], (), 1) for _ in range(2)]
    with pytest.raises(ValueError, match="one model"):
        score_together(sessions, [Proposal.empty()] * 2)


@torch.inference_mode()
def test_answers_of_the_bundled_pair_are_the_same_together() -> None:
    """Greedy, in fp32, with drafts that are partly right: three questions about two recordings, decoded side by side."""
    model, pair = load_pair("nano", "one").parts.language_target, load_pair("nano", "one")
    asked = []
    for index, question in ((0, "Describe the scene."), (0, "What is ahead?"), (1, "How many road users are visible?")):
        media = media_of(as_recording(make_clip(split_seed("test", 5, index)), "scene"))
        asked.append(model.encode(media, Trace()).open(question, Sampling(max_new_tokens=64), 1, Trace()))
    alone = [plain(session.fresh_copy(), pair.eos_id) for session in asked]
    said: list[list[int]] = [[] for _ in asked]
    rng, alive = np.random.default_rng(1), [0, 1, 2]
    while alive:
        proposals = [guess(alone[i], len(said[i]), rng) for i in alive]
        scores = score_together([asked[i] for i in alive], proposals)
        for i, proposal, found in zip(alive, proposals, scores, strict=True):
            best = found.logits.argmax(-1).tolist()
            kept = 0
            while kept < len(proposal) and proposal.tokens[kept] == best[kept]:
                kept += 1
            tokens = [*proposal.tokens[:kept].tolist(), best[kept]]
            asked[i].commit(Verdict(np.arange(kept), np.array(tokens, np.int64)))
            said[i] += tokens
        alive = [i for i in alive if len(said[i]) < len(alone[i])]
    assert [ids[: len(wanted)] for ids, wanted in zip(said, alone, strict=True)] == alone


def plain(session: LanguageSession, eos_id: int) -> list[int]:
    said = list[int]()
    while len(said) < 48 and eos_id not in said:
        said.append(int(session.score(Proposal.empty()).logits[-1].argmax()))
        session.commit(Verdict(np.empty(0, np.int64), np.array(said[-1:], np.int64)))
    return said


def guess(answer: list[int], done: int, rng: np.random.Generator) -> Proposal:
    """What follows, wrong in every third place or so."""
    ahead = answer[done : done + int(rng.integers(0, 6))]
    return Proposal.chain([token if rng.random() < 0.7 else int(rng.integers(100)) for token in ahead])
