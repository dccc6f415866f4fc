"""The one verification rule, for chains and trees, chosen and drawn children, greedy and sampled.

From the root: a child x that was drawn from q is accepted with min(1, p(x) / q(x)), and after a refusal p becomes
norm(max(0, p - q)). A chosen child has a one-hot q, so it is accepted with p(x) and a refusal sets p(x) = 0. When no child is
left, the bonus token is drawn from what remains of p. The tokens that come out are distributed exactly as the target's own
(Leviathan et al. 2023, section 2.3 and appendix A.1; for trees Miao et al. 2024, SpecInfer, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from eventspec.core import Proposal, Sampling, Verdict
from eventspec.engine.distribution import Row, allowed, plain_greedy, processed
from eventspec.engine.tree import BadProposal


def verify(logits: Tensor, proposal: Proposal, sampling: Sampling, answer: Sequence[int], rng: np.random.Generator) -> Verdict:
    """Walk the proposal with the target's logits float [N+1, V]; `answer` int [A] are the tokens committed so far.

    `rng` must not be the one a drafter draws from. BadProposal when `probs` are over another vocabulary.
    """
    if plain_greedy(sampling):
        return _follow(allowed(logits, sampling).argmax(-1).tolist(), proposal)
    if proposal.probs is not None and proposal.probs.shape != (len(proposal), logits.shape[-1]):
        raise BadProposal(f"probs are {list(proposal.probs.shape)}, wanted {[len(proposal), logits.shape[-1]]}")
    children = _children(proposal)
    tokens, path, node = list(answer), list[int](), -1
    while True:
        p = processed(logits[node + 1], tokens, sampling)
        accepted = None
        for child in children.get(node, ()):
            token = int(proposal.tokens[child])
            q = _drawn_from(proposal, child)
            if rng.random() * (1.0 if q is None else float(q[token])) < p[token]:
                accepted = child
                break
            p = _residual(p, token, q)
        if accepted is None:
            bonus = int(rng.choice(len(p), p=p))
            return _verdict(path, [*tokens[len(answer) :], bonus])
        tokens.append(int(proposal.tokens[accepted]))
        path.append(accepted)
        node = accepted


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


def _drawn_from(proposal: Proposal, child: int) -> Row | None:
    return None if proposal.probs is None else proposal.probs[child].double().numpy(force=True)


def _residual(p: Row, token: int, q: Row | None) -> Row:
    """What p becomes after the refusal of `token` (q None = it was chosen)."""
    left = p.copy()
    if q is None:
        left[token] = 0.0
    else:
        left = np.maximum(0.0, p - q)
    total = left.sum()
    # Only rounding can leave nothing (p = q exactly and a refusal cannot happen together): then p itself is the right answer.
    return left / total if total > 0 else p
