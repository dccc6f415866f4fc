"""What is found out after all times are taken, so that it warms or cools no cache for the arm that is timed next."""

from __future__ import annotations

import numpy as np
import torch

from eventspec.core import Budget, Drafter, Proposal, Request, Sampling, Scores, Trace, Verdict
from eventspec.costs.fit import session_of
from eventspec.engine.distribution import allowed
from eventspec.engine.method import Method
from eventspec.engine.policy import NO_TAIL
from eventspec.experiments.arms import Arm, Recordings, ask
from eventspec.experiments.figures import Row
from eventspec.pairs import Pair
from eventspec.recordings.qa import Question


def vision_acceptance(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, answer: list[int]
) -> list[int] | None:
    """[right, all] over the answer's tokens that the blind prior gets wrong: whether the first choice of a method's drafters
    together, given the target's own tokens before, is the target's token. None for a method that drafts nothing, and for a
    pair without a prior."""
    if not _drafters(arm.pair.method(arm.method)) or "prior" not in arm.pair.methods:
        return None
    request = ask(arm, recordings, question, sampling).request
    seen, blind = (_first_choices(arm.pair, request, method, answer) for method in (arm.method, "prior"))
    visual = [i for i, token in enumerate(answer) if blind[i] != token]
    return [sum(seen[i] == answer[i] for i in visual), len(visual)]


def _drafters(method: Method) -> list[Drafter]:
    """Every drafter at the method's costs, before the prefill's end or after it, once."""
    return list({id(one): one for one in (*method.drafts.ahead, *method.drafts.later(method.current_policy))}.values())


@torch.inference_mode()
def _first_choices(pair: Pair, request: Request, method: str, answer: list[int]) -> list[int | None]:
    """What a method's drafters together would name first at every position after the target's own prefix; a drafter that reads
    the target drafts nothing before the target has spoken."""
    drafters, one, nothing = _drafters(pair.method(method)), Budget(max_nodes=1, max_depth=1), np.empty(0, np.int64)
    reading = next((drafter for drafter in drafters if drafter.needs_target), None)
    target, features = None, None
    if reading is not None:
        target = session_of(pair.target, NO_TAIL, reading.taps, request)
        features = target.score(Proposal.chain(answer)).features
    sessions = [(drafter.needs_target, drafter.open(request, target, Trace())) for drafter in drafters]
    choices: list[int | None] = []
    for place, token in enumerate(answer):
        drafts = [session.propose(one) for needs_target, session in sessions if place or not needs_target]
        named = [proposal for proposal in drafts if len(proposal)]
        together = pair.method(method).drafts.merge(named, one) if len(named) > 1 else next(iter(named), Proposal.empty())
        choices.append(int(together.tokens[0]) if len(together) else None)
        seen = None if features is None else features[place : place + 1]
        for _, session in sessions:
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
