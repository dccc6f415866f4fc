"""Long answers of every method, head and kind of tree, token by token beside plain decoding: how many differ?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from typing import Any

import numpy as np

from eventspec.core import BadInput, Sampling
from eventspec.experiments.compare import environment
from eventspec.experiments.identity import BASE, Tally, Trial, compare_answers, heads_of, methods_of, tie_of, totals
from eventspec.experiments.measures.setup import QUESTIONS, Finding, Setup, held_out, one_thread
from eventspec.pairs import Pair, load_pair

KINDS = ("temperature 2", "temperature 0", "ties", "ties, not settled")
"""Sampled and greedy answers; answers with a tie of the two best tokens; the control, whose near ties are only counted."""
SEED = 5000


def measure(setup: Setup) -> Iterator[Finding]:
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
        for _ in compare_answers(pair, arms, [question], tallies=tallies):
            pass
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
            recording = held_out(SEED, index)
        if kind.startswith("ties"):
            place = int(np.random.default_rng((SEED, number)).integers(length))
            sampling = tie_of(pair, recording, QUESTIONS[which], place, length)
        else:
            drawn: dict[str, Any] = {"seed": SEED + number, "max_new_tokens": length, "banned_ids": (pair.eos_id,)}
            sampling = Sampling(temperature=float(kind.split()[1]), **drawn)
        if sampling is not None:
            yield number, Trial(f"{recording.name}, {QUESTIONS[which]}", recording, QUESTIONS[which], sampling)
