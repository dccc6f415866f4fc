"""Do answers differ where rows share a forward, and how far do such rows move? Each goes into a file of its own name.

Identity: long answers of every method, head and kind of tree, token by token beside plain decoding. Rounding: a row's logits
among others and alone, beside what is measured when a target is loaded. `engine.numerics.MARGIN` must cover the largest ratio
twice: a gap of two logits moves by up to twice what one does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from typing import Any

import numpy as np
import torch

from eventspec.ask import generate
from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Proposal, Sampling, Trace, Verdict
from eventspec.engine.numerics import MARGIN
from eventspec.experiments.compare import environment
from eventspec.experiments.identity import Tally, Trial, compare_answers, heads_of, methods_of, tie_of, totals
from eventspec.experiments.measures.setup import QUESTIONS, Finding, Setup, one_thread, scene
from eventspec.experiments.names import BASE
from eventspec.models.session import LanguageSession
from eventspec.pairs import Pair, load_pair

KINDS = ("temperature 2", "temperature 0", "ties", "ties, not settled")
"""Sampled and greedy answers; answers with a tie of the two best tokens; the control, whose near ties are only counted."""
SIZES = (1, 2, 3, 5, 9, 17, 33, 59)
"""Nodes of the chains and trees whose rows are compared."""
SEED = 5000
ROUNDING_SEED = 60


def identity(setup: Setup) -> Iterator[Finding]:
    """Every kind of answers until enough was compared, a part after every question; goes on from what is known. BadInput where
    that was measured otherwise."""
    pair = load_pair(setup.pair, "one", fit=False)
    with one_thread():
        for number, kind in enumerate(kinds := setup.size(KINDS, KINDS[::2])):
            settled = pair if "not settled" not in kind else pair.with_policy(settle=False)
            yield from _of_kind(setup, settled, kind)
            setup.progress((number + 1) / len(kinds))


def _of_kind(setup: Setup, pair: Pair, kind: str) -> Iterator[Finding]:
    ties, where = kind.startswith("ties"), environment(pair)
    place = (where["processor"], kind)
    part = before = setup.known_at(place)
    length = 64 if ties else setup.size(400, 8)
    about = {"seed": SEED, "weights": pair.fingerprint(), "length": length}
    if other := [f"{name} {before.get(name)}" for name, value in about.items() if before and before.get(name) != value]:
        raise BadInput(f"the results hold {kind} with {', '.join(other)}: measure it again with --fresh, or name another --out")
    try:
        tallies = {name: Tally(**seen) for name, seen in before.get("by_arm", {}).items()}
    except TypeError:
        raise BadInput(f"what the results hold of {kind} is of another program: name another --out") from None
    arms = methods_of(pair)[:2] if setup.quick else [*methods_of(pair), *heads_of(pair)]
    began, what, enough = time.monotonic(), *(("answers", setup.size(460, 1)) if ties else ("tokens", setup.size(1_000_000, 1)))
    for number, question in _asked(pair, kind, length, before.get("questions", 0)):
        if part.get(what, 0) >= enough:
            return
        compare_answers(pair, arms, [question], tallies=tallies)
        minutes = round(before.get("minutes", 0.0) + (time.monotonic() - began) / 60, 1)
        plain = {"plain_answers": tallies[BASE].answers, "plain_tokens": tallies[BASE].tokens}
        part = {"arms": len(arms), "questions": number + 1, **plain, **totals(tallies), "rounding": pair.target.limits.rounding}
        part |= {"minutes": minutes, **about, "environment": where}
        yield place, {**part, "by_arm": {name: asdict(tally) for name, tally in tallies.items()}}


def _asked(pair: Pair, kind: str, length: int, first: int) -> Iterator[tuple[int, Trial]]:
    """Numbered questions from the `first` on, without end: four about every scene."""
    recording = None
    for number in count(first):
        index, which = divmod(number, len(QUESTIONS))
        if recording is None or not which:
            recording, _ = scene(SEED, index)
        if kind.startswith("ties"):
            place = int(np.random.default_rng((SEED, number)).integers(length))
            sampling = tie_of(pair, recording, QUESTIONS[which], place, length)
        else:
            drawn: dict[str, Any] = {"seed": SEED + number, "max_new_tokens": length, "banned_ids": (pair.eos_id,)}
            sampling = Sampling(temperature=float(kind.split()[1]), **drawn)
        if sampling is not None:
            yield number, Trial(f"{recording.name}, {QUESTIONS[which]}", recording, QUESTIONS[which], sampling)


def rounding(setup: Setup) -> Iterator[Finding]:
    """Rows of chains and trees of tokens that are partly the target's own, each beside the same row reached by single steps."""
    pair, moved, scene = load_pair(setup.pair, "one", fit=False), list[torch.Tensor](), 0
    wanted, rng = setup.size(15_000, 12), np.random.default_rng(ROUNDING_SEED)
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
    (recording, _), question = scene(ROUNDING_SEED, index), QUESTIONS[index % len(QUESTIONS)]
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
        _step(session, token)
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
        _step(session, token)
    found = session.score(Proposal.empty()).logits[0]
    session.cache.truncate(length)
    session.pending = pending
    return found


def _step(session: LanguageSession, token: int) -> None:
    """Score a row, and commit this token after it, whatever the row says."""
    session.score(Proposal.empty())
    session.commit(Verdict.of(tokens=[token]))


def path_to(draft: Proposal, node: int) -> list[int]:
    """The tokens on the way to a node, -1 for the root: none."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(draft.tokens[node]))
        node = int(draft.parents[node])
    return path
