"""How far apart are a row's logits among others and alone, beside what is measured when a target is loaded?

`engine.numerics.MARGIN` must cover the largest ratio twice: a gap of two logits moves by up to twice what one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch

from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import Proposal, Sampling, Trace
from eventspec.engine.numerics import MARGIN
from eventspec.experiments.compare import environment
from eventspec.experiments.measures.setup import QUESTIONS, Finding, Setup, held_out, one_thread, path_to, say
from eventspec.experiments.names import BASE
from eventspec.models.session import LanguageSession
from eventspec.pairs import Pair, load_pair

SIZES = (1, 2, 3, 5, 9, 17, 33, 59)
"""Nodes of the chains and trees whose rows are compared."""
SEED = 60


def measure(setup: Setup) -> Iterator[Finding]:
    """Rows of chains and trees of tokens that are partly the target's own, each beside the same row reached by single steps."""
    pair, moved, scene = load_pair(setup.pair, "one", fit=False), list[torch.Tensor](), 0
    wanted, rng = setup.size(15_000, 12), np.random.default_rng(SEED)
    with one_thread(), torch.inference_mode():
        for scene in count(1):
            moved += _moves(pair, scene - 1, rng)
            setup.progress(min(1.0, len(moved) / wanted))
            if len(moved) >= wanted:
                break
    apart = [float(move.abs().max()) for move in moved]
    gaps = [float(move.max() - move.min()) for move in moved]
    once, where = pair.target.limits.rounding / MARGIN, environment(pair)
    yield (
        (where["processor"],),
        {
            "rows": len(apart),
            "scenes": scene,
            "measured_at_load": once,
            "largest": max(apart),
            "largest_of_load": max(apart) / once,
            "largest_gap_of_load": max(gaps) / once,
            "margin": MARGIN,
            "percentiles_of_load": {f"{q}": float(np.percentile(apart, q)) / once for q in (50, 90, 99, 99.9)},
            "environment": where,
        },
    )


def _moves(pair: Pair, index: int, rng: np.random.Generator) -> list[torch.Tensor]:
    """Differences [V] of rows of one scene's answer."""
    recording, question = held_out(SEED, index), QUESTIONS[index % len(QUESTIONS)]
    truth = generate(pair, recording, question, BASE, max_new_tokens=40).token_ids
    context = pair.parts.language_target.encode(media_of(recording), Trace())
    session, moved = context.open(question, Sampling(max_new_tokens=200), 1, Trace()), list[torch.Tensor]()
    assert isinstance(session, LanguageSession)
    for place, token in enumerate(truth):
        if place:  # after the prompt's own forward, which is the same for both
            draft = _drawn(rng, int(rng.choice(SIZES)), truth[place:], pair.vocabulary.size)
            rows = session.score(draft).logits
            for node in rng.permutation(np.arange(-1, len(draft)))[:4].tolist():
                moved.append(rows[node + 1] - _alone(session, path_to(draft, node)))
        session.score(Proposal.empty())
        say(session, [token])
    return moved


def _drawn(rng: np.random.Generator, nodes: int, truth: list[int], vocabulary: int) -> Proposal:
    """A chain or a tree of tokens that are partly the target's own."""
    tokens, ahead = rng.integers(vocabulary, size=nodes), truth[:nodes]
    tokens[: len(ahead)] = np.where(rng.random(len(ahead)) < 0.6, ahead, tokens[: len(ahead)])
    if rng.random() < 0.5:
        return Proposal.chain(tokens)
    return Proposal(tokens, np.array([int(rng.integers(max(-1, node - 6), node)) for node in range(nodes)], np.int64))


def _alone(session: LanguageSession, path: list[int]) -> torch.Tensor:
    """The row [V] after a path, reached by single steps, which are taken back."""
    length, pending = session.cache.length, session.pending
    for token in path:
        session.score(Proposal.empty())
        say(session, [token])
    found = session.score(Proposal.empty()).logits[0]
    session.cache.truncate(length)
    session.pending = pending
    return found
