"""`bench compare`: the same questions in several arms, interleaved, one row a question and arm, and their summary.

Timings come first and for all questions; what is computed about an answer
afterwards must not warm or cool a cache for the arm that is timed next.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.core import BadInput, Budget, Proposal, Request, Sampling, Scores, Trace, Verdict
from eventspec.engine.distribution import allowed
from eventspec.engine.policy import NO_TAIL
from eventspec.experiments.arms import CONTEXTS, Arm, Opening, Recordings, ask, interleaved
from eventspec.experiments.figures import BASE, Row, summary
from eventspec.pairs import Pair
from eventspec.pairs.costs import processor
from eventspec.pairs.warming import session_of
from eventspec.recordings import Recording
from eventspec.recordings.qa import Question

EVENTS = ("real", "blank", "shuffled")
SEES_EVENTS = ("cross-modal", "cascade", "hybrid", "auto")
ALL_CORES = f"{BASE}, all cores"


def arms_of(pair: Pair, methods: list[str], events: list[str], contexts: Sequence[str] = CONTEXTS[:1]) -> list[Arm]:
    """Every method with the first kind of events; those that see events with the other kinds too; the baseline on all cores;
    each in every context. A method that chooses learns in each arm apart. BadInput for what does not exist."""
    for context in contexts:
        if context not in CONTEXTS:
            raise BadInput(f"context '{context}' is unknown: choose {', '.join(CONTEXTS)}")
    for kind in events:
        if kind not in EVENTS:
            raise BadInput(f"events '{kind}' is unknown: choose {', '.join(EVENTS)}")
    controls = [kind for kind in events if kind != EVENTS[0]]
    if controls and not set(methods) & set(SEES_EVENTS):
        problem = (
            f"none of the methods {', '.join(methods)} sees events, so {' and '.join(controls)} events would change nothing"
        )
        raise BadInput(f"{problem}: add the method {' or '.join(SEES_EVENTS)}, or leave --events out")
    arms = []
    for method in methods:
        pair.method(method)
        arms.append(Arm(method, method, pair, events[0]))
        if method in SEES_EVENTS:
            arms += [Arm(f"{method}, {kind} events", method, pair, kind) for kind in events[1:]]
    if BASE in methods and pair.workers.concurrent:
        arms.append(Arm(ALL_CORES, BASE, pair.on("one"), events[0]))
    return in_contexts(arms, contexts)


def in_contexts(arms: Sequence[Arm], contexts: Sequence[str]) -> list[Arm]:
    """Every arm in every context, named by it where it is not cold."""
    named = {context: "" if context == CONTEXTS[0] else f", {context}" for context in contexts}
    return [
        replace(arm, name=f"{arm.name}{named[context]}", pair=arm.pair.forgetful(), context=context)
        for context in contexts
        for arm in arms
    ]


def base_of(found: dict[str, Row]) -> Row | None:
    """The baseline's row of a question, of a cold context where there is one; None where the baseline was not run."""
    rows = [row for row in found.values() if row["drafter"] == BASE]
    return min(rows, key=lambda row: row["context"] != CONTEXTS[0], default=None)


def compare(
    pair: Pair,
    questions: list[Question],
    methods: list[str],
    sampling: Sampling,
    events: list[str],
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    opening: Opening = Recording.open,
    others: Sequence[Arm] = (),
    look: bool = True,
    contexts: Sequence[str] = CONTEXTS[:1],
) -> dict[str, Any]:
    """Run every question in every arm, in an order drawn anew for each, and write one row each; returns the summary. `others`
    are further arms, such as the same target with other drafters. `look`: whether to find out, afterwards, what each drafter
    would say where the blind prior is wrong, which takes longer than the answers."""
    arms = [*arms_of(pair, methods, events, contexts), *in_contexts(others, contexts)]
    recordings = Recordings(questions, opening)
    names = [arm.name for arm in arms]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"'{min(twice)}' is there twice: every arm to answer needs a name of its own")
    _must_have_frames(pair, recordings)
    total, table, earlier = 2 * len(questions), list[dict[str, Row]](), out.with_name(f"{out.name}.earlier")
    for _, found in interleaved(arms, recordings, questions, sampling):
        table.append(found)
        if len(table) == 1 and out.exists():
            out.replace(earlier)
        with out.open("a") as file:  # a run that is cut off leaves its rows, and those of the run before beside them
            file.writelines(json.dumps({**row, "vision": None, "first_difference": None}) + "\n" for row in found.values())
        progress(len(table), total)
    part = out.with_name(f".{out.name}.part")
    with part.open("w") as file:
        for number, (question, found) in enumerate(zip(questions, table, strict=True)):
            for arm in arms:
                row = found[arm.name]
                try:
                    row["vision"] = vision_acceptance(arm, recordings, question, sampling, row["token_ids"]) if look else None
                except Exception as error:  # a drafter that fails: its rows say so, and all others stay
                    row["vision"] = None
                    row["notes"] = [*row["notes"], f"{arm.name} failed afterwards: {type(error).__name__}"]
                row["first_difference"] = _difference(arm, recordings, question, sampling, base_of(found), row)
                file.write(json.dumps(row) + "\n")
            progress(len(questions) + number + 1, total)
    part.rename(out)
    earlier.unlink(missing_ok=True)
    for arm in arms:
        if arm.pair.workers is not pair.workers:
            arm.pair.workers.close()
    return summary([row for found in table for row in found.values()], names, environment(pair, events))


def _must_have_frames(pair: Pair, recordings: Recordings) -> None:
    """BadInput, before anything is timed, when the target sees frames and some recording has none."""
    if pair.parts.target_needs != "frames":
        return
    blind = [path for path in recordings.paths if not len(recordings.real(path).video or ())]
    if blind:
        problem = f"{len(blind)} of {len(recordings.paths)} recordings have no RGB frames, first {blind[0]}"
        raise BadInput(f"{problem}: the target of pair {pair.name} sees frames, whatever drafts; leave their questions out")


def vision_acceptance(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, answer: list[int]
) -> list[int] | None:
    """[right, all] over the answer's tokens that the blind prior gets wrong: whether the drafter's first choice, given the
    target's own tokens before, is the target's token. None for a method that drafts nothing, and for a pair without a prior."""
    if arm.pair.drafter(arm.method) is None or "prior" not in arm.pair.methods:
        return None
    request = ask(arm, recordings, question, sampling).request
    seen, blind = (_first_choices(arm.pair, request, method, answer) for method in (arm.method, "prior"))
    visual = [i for i, token in enumerate(answer) if blind[i] != token]
    return [sum(seen[i] == answer[i] for i in visual), len(visual)]


@torch.inference_mode()
def _first_choices(pair: Pair, request: Request, method: str, answer: list[int]) -> list[int | None]:
    """What a method's drafter would draft at every position behind the target's own prefix; a drafter that reads the target
    drafts nothing before the target has spoken."""
    drafter, nothing = pair.drafter(method), np.empty(0, np.int64)
    assert drafter is not None
    target, features = None, None
    if drafter.needs_target:
        target = session_of(pair.target, NO_TAIL, drafter.taps, request)
        features = target.score(Proposal.chain(answer)).features
    session = drafter.open(request, target, Trace())
    choices: list[int | None] = []
    for place, token in enumerate(answer):
        proposal = Proposal.empty() if drafter.needs_target and not place else session.propose(Budget(max_nodes=1, max_depth=1))
        choices.append(int(proposal.tokens[0]) if len(proposal) else None)
        seen = None if features is None else features[place : place + 1]
        session.observe(Verdict(nothing, np.array([token], np.int64)), Scores(torch.empty(0), seen))
    return choices


@torch.inference_mode()
def _difference(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, base: Row | None, row: Row
) -> Row | None:
    """Where a row leaves the baseline, and the target's top-2 logit gap there; None where it does not, or without one."""
    if base is None or base["token_ids"] == row["token_ids"]:
        return None
    one, two = base["token_ids"], row["token_ids"]
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    request = ask(arm, recordings, question, sampling).request
    logits = session_of(arm.pair.target, 1, asked=request).score(Proposal.chain(one[:at])).logits[-1]
    top = allowed(logits, request.sampling).topk(2).values
    return {"position": at, "gap": float(top[0] - top[1])}


def environment(pair: Pair, events: list[str]) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "pair": pair.name,
        "pair_sha256": pair.fingerprint(),
        "events": events,
        "device_plan": pair.workers.placement,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }
