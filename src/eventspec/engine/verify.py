"""The one verification rule, for chains and trees, chosen and drawn children, greedy and sampled.

Children that were chosen: the target draws its token from p, and the child that is this token, if there is one, is accepted.
Children that were drawn from q: x is accepted with min(1, p(x) / q(x)), after a refusal p becomes norm(max(0, p - q)), and when
no child is left the bonus token is drawn from what remains of p. The tokens that come out are distributed exactly as the
target's own (Leviathan et al. 2023, section 2.3 and appendix A.1; for trees Miao et al. 2024, SpecInfer, section 4.3).

What is drawn at a position depends on the seed and the position only. So where children are chosen, a sampled answer too is
the target's own token by token, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from eventspec.core import BadInput, ConstraintState, Proposal, Sampling, Verdict
from eventspec.engine.distribution import Row, advanced, allowed, plain_greedy, processed
from eventspec.engine.tree import BadProposal

Chance = Callable[[int], np.random.Generator]
"""What a position of the answer is drawn with; never what a drafter draws from."""


def chance(seed: int) -> Chance:
    """A generator of its own for every position, so that what is drawn there does not depend on how it was reached."""
    return lambda position: np.random.default_rng((seed, position))


def verify(
    logits: Tensor,
    proposal: Proposal,
    sampling: Sampling,
    answer: Sequence[int],
    chance: Chance,
    state: ConstraintState | None = None,
) -> Verdict:
    """Walk the proposal with the target's logits float [N+1, V]; `answer` int [A] are the tokens committed so far, and `state`
    is the constraint's behind them.

    BadProposal when `probs` are over another vocabulary, BadInput when nothing may be said next.
    """
    if plain_greedy(sampling):
        return _follow(allowed(logits, sampling).argmax(-1).tolist(), proposal)
    if proposal.probs is not None and proposal.probs.shape != (len(proposal), logits.shape[-1]):
        raise BadProposal(f"probs are {list(proposal.probs.shape)}, wanted {[len(proposal), logits.shape[-1]]}")
    children = _children(proposal)
    tokens, path, node = list(answer), list[int](), -1
    while True:
        try:
            p, rng = processed(logits[node + 1], tokens, sampling, state), chance(len(tokens))
        except BadInput:
            if not path:
                raise
            # The answer may end before this place, and then it does not matter: told only when it stands here.
            return _verdict(path[:-1], tokens[len(answer) :])
        here = children.get(node, [])
        if proposal.probs is None:
            token = _draw(p, rng)
            accepted = next((child for child in here if proposal.tokens[child] == token), None)
        else:
            token, accepted = _among_drawn(p, proposal, here, rng)
        tokens.append(token)
        if accepted is None:
            return _verdict(path, tokens[len(answer) :])
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
    return _draw(p, rng), None


def _draw(p: Row, rng: np.random.Generator) -> int:
    """One token from p [V]: where a uniform number falls among the cumulated shares. A token without a share is never hit."""
    upto = p.cumsum()
    return int(min(np.searchsorted(upto, rng.random() * upto[-1], side="right"), np.flatnonzero(p)[-1]))


def _follow(best: list[int], proposal: Proposal) -> Verdict:
    """The rule for one-hot p, which is a walk along the argmax: equal to the general walk, and free of its arithmetic."""
    tokens, parents = proposal.tokens.tolist(), proposal.parents.tolist()
    path: list[int] = []
    node, wanted = -1, best[0]
    # Parents come before children, so one pass meets every node of the path in order.
    for child, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == node and token == wanted:
            path.append(child)
            node, wanted = child, best[child + 1]
    return _verdict(path, [tokens[i] for i in path] + [wanted])


def _verdict(path: list[int], tokens: list[int]) -> Verdict:
    return Verdict(np.array(path, np.int64), np.array(tokens, np.int64))


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
