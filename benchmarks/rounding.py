r"""How far apart are a row's logits among others and alone, over many rows, beside what is measured when a target is loaded?

python benchmarks/rounding.py                 # 15,000 rows, chains and trees, greedy words and random ones
python benchmarks/rounding.py --rows 2000

`engine.numerics.MARGIN` must cover the largest ratio twice: a gap of two logits moves by up to twice what one does. Writes its
part of benchmarks/results/rounding.json, by processor.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.ask.generation import media_of
from eventspec.core import Proposal, Sampling, TargetSession, Trace, Verdict
from eventspec.engine.numerics import MARGIN
from eventspec.experiments.compare import environment
from eventspec.files import write_text
from eventspec.models.session import LanguageSession
from eventspec.pairs import load_pair
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.writer import as_recording

RESULTS = Path(__file__).parent / "results/rounding.json"
QUESTIONS = ("Describe the scene.", "What is ahead?", "How many road users are visible?", "Is anybody crossing the road?")
SIZES = (1, 2, 3, 5, 9, 17, 33, 59)
"""Nodes of the trees whose rows are compared."""


def said(tokens: list[int]) -> Verdict:
    return Verdict(np.empty(0, np.int64), np.array(tokens, np.int64))


def drawn(rng: np.random.Generator, count: int, truth: list[int], vocabulary: int) -> Proposal:
    """A chain or a tree of tokens that are partly the target's own."""
    tokens = rng.integers(vocabulary, size=count)
    ahead = truth[:count]
    kept = rng.random(len(ahead)) < 0.6
    tokens[: len(ahead)] = np.where(kept, ahead, tokens[: len(ahead)])
    if rng.random() < 0.5:
        return Proposal.chain(tokens)
    return Proposal(tokens, np.array([int(rng.integers(max(-1, node - 6), node)) for node in range(count)], np.int64))


def path_to(proposal: Proposal, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(proposal.tokens[node]))
        node = int(proposal.parents[node])
    return path


def answer(session: TargetSession, most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        found.append(int(session.score(Proposal.empty()).logits[-1].argmax()))
        session.commit(said(found[-1:]))
    return found


def alone(session: LanguageSession, path: list[int]) -> torch.Tensor:
    """The row behind a path, reached by single steps, which are taken back."""
    length, pending = session.cache.length, session.pending
    for token in path:
        session.score(Proposal.empty())
        session.commit(said([token]))
    found = session.score(Proposal.empty()).logits[0]
    session.cache.truncate(length)
    session.pending = pending
    return found


@torch.inference_mode()
def measured(wanted: int, seed: int) -> dict[str, Any]:
    pair = load_pair("nano", "one", fit=False)
    target, rng = pair.parts.language_target, np.random.default_rng(seed)
    apart: list[float] = []
    gaps: list[float] = []
    index = 0
    while len(apart) < wanted:
        media = media_of(as_recording(make_clip(split_seed("test", seed, index)), f"scene {index}"))
        context = target.encode(media, Trace())
        question = QUESTIONS[index % len(QUESTIONS)]
        session = context.open(question, Sampling(max_new_tokens=200), 1, Trace())
        assert isinstance(session, LanguageSession)
        truth, index = answer(session.again(), 40), index + 1
        for place, token in enumerate(truth):
            if place:  # behind the prompt's own forward, which is the same for both
                proposal = drawn(rng, int(rng.choice(SIZES)), truth[place:], pair.vocabulary.size)
                rows = session.score(proposal).logits
                for node in rng.permutation(np.arange(-1, len(proposal)))[:4].tolist():
                    moved = rows[node + 1] - alone(session, path_to(proposal, node))
                    apart.append(float(moved.abs().max()))
                    gaps.append(float(moved.max() - moved.min()))
            session.score(Proposal.empty())
            session.commit(said([token]))
        if index % 20 == 0:
            print(f"{len(apart)} rows", file=sys.stderr, flush=True)
    once = target.limits.rounding / MARGIN
    return {
        "rows": len(apart),
        "scenes": index,
        "measured_at_load": once,
        "largest": max(apart),
        "largest_of_load": max(apart) / once,
        "largest_gap_of_load": max(gaps) / once,
        "margin": MARGIN,
        "percentiles_of_load": {f"{q}": float(np.percentile(apart, q)) / once for q in (50, 90, 99, 99.9)},
        "environment": environment(pair, ["real"]),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=15_000)
    options.add_argument("--seed", type=int, default=60)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    if given.rows < 100:
        options.error(f"--rows is {given.rows}: give at least 100")
    torch.set_num_threads(1)
    told = measured(given.rows, given.seed)
    print(json.dumps(told, indent=1))
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    write_text(given.out, json.dumps({**known, told["environment"]["processor"]: told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
