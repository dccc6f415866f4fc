"""Is every method's answer the target's own? Many answers of every arm beside plain decoding, token by token.

Used by `eventspec doctor --self-test` (a minute, on the user's machine) and `bench run identity` (millions of tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from eventspec.ask import Result, generate, generation
from eventspec.core import BadInput, Sampling, Trace, never
from eventspec.drafters.heads import FAMILIES
from eventspec.drafters.retokenized import MAPPINGS
from eventspec.engine.numerics import PlainDecoding
from eventspec.engine.policy import NO_TAIL
from eventspec.experiments.arms import Arm
from eventspec.experiments.names import BASE
from eventspec.pairs import Pair
from eventspec.pairs.names import BRANCHES, EVENT_METHOD
from eventspec.recordings import Recording

REHEARSED = ("Describe the scene.", "What is ahead?", "Is anybody crossing the road?")


@dataclass(frozen=True)
class Trial:
    """One question about one recording under some settings."""

    name: str
    recording: Recording
    question: str
    sampling: Sampling


@dataclass
class Tally:
    """What was seen of one arm. `failed`: answers during which the drafter was given up, which are identical for no merit of
    the method; `near_ties`: decisions that were closer than rounding; `examples`: the first few answers that differ."""

    answers: int = 0
    tokens: int = 0
    different: int = 0
    failed: int = 0
    drafted: int = 0
    near_ties: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


def methods_of(pair: Pair) -> list[Arm]:
    """Every lossless method of a pair but the baseline."""
    return [Arm(name, name, pair) for name, method in pair.methods.items() if name != BASE and method.target.lossless]


def heads_of(pair: Pair) -> list[Arm]:
    """Every head of a pair with every kind of tree it can draft and every branch of its compressor, and its other event
    drafters."""
    arms, trees = [], dict.fromkeys(tree for family in FAMILIES for tree in family.head.tree_policies)
    for head in pair.parts.heads:
        for how in (*trees, *BRANCHES):
            try:
                arms.append(Arm(f"eagle, {head}:{how}", "eagle", pair.with_head(f"{head}:{how}")))
            except BadInput:  # a small model has no fixed trees, a head without rates no static one, most have no branches
                continue
    for drafter, mapping in product(pair.parts.drafters, MAPPINGS):
        own = pair.with_event_drafter(drafter, mapping)
        arms.append(Arm(f"{EVENT_METHOD}, {drafter}:{mapping}", EVENT_METHOD, own))
    return arms


def compare_answers(
    base: Pair,
    arms: Sequence[Arm],
    questions: Iterable[Trial],
    over: Callable[[], bool] = never,
    tallies: dict[str, Tally] | None = None,
) -> dict[str, Tally]:
    """Answer every question plainly and with every arm, and count. Ends after the answer during which time is `over`. `tallies`
    of an earlier run are added to."""
    tallies = {} if tallies is None else tallies
    for name in (BASE, *(arm.name for arm in arms)):
        tallies.setdefault(name, Tally())
    for asked in questions:
        plain = generate(base, asked.recording, asked.question, BASE, sampling=asked.sampling)
        _add(tallies[BASE], plain, plain.token_ids, asked.name)
        for arm in arms:
            if over():
                return tallies
            settings = (asked.question, arm.method, None, asked.sampling)
            found = generation(arm.pair, asked.recording, *settings, may_be_empty=("events",)).result()
            _add(tallies[arm.name], found, plain.token_ids, asked.name)
        if over():
            break
    return tallies


def _add(tally: Tally, found: Result, wanted: list[int], name: str) -> None:
    tokens, trace = found.token_ids, found.trace
    tally.answers += 1
    tally.tokens += len(tokens)
    tally.near_ties += trace.near_ties
    tally.drafted += trace.drafted
    tally.failed += bool(trace.given_up)
    if tokens != wanted:
        tally.different += 1
        place = next((i for i, (one, other) in enumerate(zip(tokens, wanted, strict=False)) if one != other), None)
        if len(tally.examples) < 8:
            tally.examples.append({"question": name, "position": place, "near_ties": trace.near_ties})


def rehearsal(pair: Pair) -> Iterator[Trial]:
    """Without end: short questions about the bundled clips under one setting after the other, a tie among them."""
    from eventspec.pairs.pair_file import DATA

    recordings = [Recording.open(path) for path in sorted((DATA / "clips").iterdir())]
    number = 0
    while True:
        recording, question = recordings[number % len(recordings)], REHEARSED[number // 2 % len(REHEARSED)]
        settings = [
            Sampling(max_new_tokens=24),
            tie_of(pair, recording, question, number % 7, 24),
            Sampling(temperature=1.0, seed=number, max_new_tokens=24),
            Sampling(temperature=2.0, top_k=40, top_p=0.95, repetition_penalty=1.2, seed=number, max_new_tokens=24),
        ]
        for sampling in settings:
            if sampling is not None:
                yield Trial(f"{recording.name}, {question}, {number}", recording, question, sampling)
        number += 1


def tie_of(pair: Pair, recording: Recording, question: str, position: int, most: int) -> Sampling | None:
    """Settings under which the two best tokens at a position of the greedy answer are equal to the last bit; None where the
    answer is shorter."""
    asking = generation(pair, recording, question, BASE, None, Sampling(max_new_tokens=most))
    truth = asking.result().token_ids
    if position >= len(truth):
        return None
    target, request = pair.target, asking.request

    def best_two() -> tuple[int, float]:
        context = target.encode(request.media, Trace())
        plain = PlainDecoding(lambda: context.open(request.question, request.sampling, NO_TAIL, Trace()))
        values, tokens = plain.logits(truth[:position]).double().topk(2)
        return int(tokens[1]), float(values[0] - values[1])

    with torch.inference_mode():
        token, gap = pair.workers.start("target", best_two).result()
    return Sampling(max_new_tokens=most, logit_bias={token: gap})


def totals(tallies: dict[str, Tally]) -> dict[str, int]:
    """What was seen of all arms together, the baseline left out."""
    arms, names = [tally for name, tally in tallies.items() if name != BASE], ("answers", "tokens", "different", "failed")
    return {name: sum(getattr(tally, name) for tally in arms) for name in (*names, "near_ties")}
