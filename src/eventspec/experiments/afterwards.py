"""What is found out about answers once all times are taken: it must not warm or cool a cache for the arm that is timed next."""

from __future__ import annotations

import numpy as np
import torch

from eventspec.core import Budget, Proposal, Request, Sampling, Scores, Trace, Verdict
from eventspec.engine.distribution import allowed
from eventspec.engine.policy import NO_TAIL
from eventspec.experiments.arms import Arm, Recordings, ask
from eventspec.experiments.figures import Row
from eventspec.pairs import Pair
from eventspec.pairs.warming import session_of
from eventspec.recordings.qa import Question


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
def first_difference(
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
