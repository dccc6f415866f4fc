"""The one verification rule, for chains and trees, chosen and drawn children, greedy and sampled.

Children that were chosen: the target draws its token from p, and the child that is this token, if there is one, is accepted.
Children that were drawn from q: x is accepted with min(1, p(x) / q(x)), after a refusal p becomes norm(max(0, p - q)), and when
no child is left the bonus token is drawn from what remains of p. The tokens that come out are distributed exactly as the
target's own (Leviathan et al. 2023, section 2.3 and appendix A.1; for trees Miao et al. 2024, SpecInfer, section 4.3).

What is drawn at a position depends on the seed and the position only. So where children are chosen, a sampled answer too is
the target's own token by token, whatever was drafted; where rounding could change that, see `engine.numerics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadInput, ConstraintState, NonFiniteLogits, Proposal, Sampling, Verdict
from eventspec.engine.admissible import advanced
from eventspec.engine.distribution import (
    PositionRng,
    Row,
    allowed,
    allowed_on_host,
    choose,
    draw,
    plain_greedy,
    processed,
)
from eventspec.engine.numerics import Numerics


def verify(
    logits: Tensor,
    proposal: Proposal,
    sampling: Sampling,
    answer: Sequence[int],
    rng: PositionRng,
    state: ConstraintState | None = None,
    numerics: Numerics = Numerics(),  # noqa: B008 - frozen
) -> Verdict:
    """Walk the proposal with the target's logits float [N+1, V]; `answer` int [A] are the tokens committed so far, and `state`
    is the constraint's after them. Near ties are settled by `numerics` and named in the verdict. Where children were drawn
    there are none: what is said depends on the draws, and only its distribution is the target's.

    BadInput when nothing may be said next, NonFiniteLogits where the logits that decide it are not finite.
    """
    if plain_greedy(sampling) and (followed := _follow(logits, proposal, sampling, numerics.rounding)) is not None:
        return followed
    children = _children(proposal)
    # At temperature 0 the target's token is certain: how the children came about does not matter.
    probs = None if sampling.temperature == 0 else proposal.probs
    tokens, path, close, node = list(answer), list[int](), list[int](), -1
    ended = False  # the answer ends before this place: what is decided here is cut off, and not worth settling
    while True:
        here, row, near = children.get(node, []), logits[node + 1], False
        try:
            if probs is None or not here:
                token, near = choose(row, tokens, sampling, state, rng, numerics.rounding)
                if near and not ended and numerics.settle is not None and (own := numerics.settle(tokens)) is not None:
                    token, _ = choose(own, tokens, sampling, state, rng)
                accepted = next((child for child in here if proposal.tokens[child] == token), None)
            else:
                p = processed(row, tokens, sampling, state)
                token, accepted = _among_drawn(p, proposal, here, rng(len(tokens)))
        except (BadInput, NonFiniteLogits):
            if not path:
                raise
            # The answer may end before this place, and then it does not matter: raised only when it stands here.
            return Verdict.of(tokens=tokens[len(answer) :], path=path[:-1], near_ties=close)
        if near:
            close.append(len(tokens) - len(answer))
        tokens.append(token)
        ended |= token in sampling.stop_ids or len(tokens) >= sampling.max_new_tokens
        if accepted is None:
            return Verdict.of(tokens=tokens[len(answer) :], path=path, near_ties=close)
        path.append(accepted)
        node, state = accepted, advanced(state, token, sampling)


def _among_drawn(p: Row, proposal: Proposal, children: list[int], rng: np.random.Generator) -> tuple[int, int | None]:
    """The next token, and the child it is (None: none of them)."""
    assert proposal.probs is not None
    for child in children:
        token, q = int(proposal.tokens[child]), proposal.probs[child].double().numpy(force=True)
        if rng.random() * float(q[token]) < p[token]:
            return token, child
        p = _residual(p, q)
    return draw(p, rng), None


def _follow(logits: Tensor, proposal: Proposal, sampling: Sampling, rounding: float) -> Verdict | None:
    """The rule for one-hot p, which is a walk along the argmax: equal to the general walk, and free of its arithmetic. None
    where a decision on the way is a near tie, nothing may be said or logits are no numbers: that is for the general walk."""
    # On the host in numpy, whose argmax takes a seventh of torch's there; from a device only what is needed comes.
    host = allowed_on_host(logits, sampling) if logits.device.type == "cpu" else None
    if host is not None and len(host) == 1:  # plain decoding, where every operation finds its code gone from the caches
        token = int(host[0].argmax())  # NaN is the largest number
        clear = math.isfinite(best := host[0][token]) and np.count_nonzero(host[0] >= best - rounding) == 1
        return Verdict.of(tokens=[token]) if clear else None
    rows = allowed(logits, sampling) if host is None else logits
    best = (rows if host is None else host).argmax(-1).tolist()
    tokens, parents = proposal.tokens.tolist(), proposal.parents.tolist()
    path: list[int] = []
    node, wanted = -1, best[0]
    # Parents come before children, so one pass meets every node of the path in order.
    for child, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == node and token == wanted:
            path.append(child)
            node, wanted = child, best[child + 1]
    places = [0, *(child + 1 for child in path)]
    walked = (rows if rows.dtype == torch.float64 else rows.float())[places].numpy(force=True) if host is None else host[places]
    highest = walked.max(-1, keepdims=True)  # minus infinity where all is banned
    if not np.isfinite(highest).all() or np.count_nonzero(walked >= highest - rounding) > len(places):
        return None
    return Verdict.of(tokens=[*(tokens[i] for i in path), wanted], path=path)


def _children(proposal: Proposal) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(proposal.parents.tolist()):
        children.setdefault(parent, []).append(child)
    return children


def _residual(p: Row, q: Row) -> Row:
    """What p becomes after the refusal of a token that was drawn from q."""
    left = np.maximum(0.0, p - q)
    total = left.sum()
    # Only rounding can leave nothing (p = q exactly and a refusal cannot happen together): then p itself is the right answer.
    return left / total if total > 0 else p
