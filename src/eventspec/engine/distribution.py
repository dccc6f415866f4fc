"""The target's processed distribution at one node: bias, penalties, bans, grammar, temperature, top-k, top-p, min-p. This is
the p of the rule.

Whatever depends on what was said before goes by the answer's own tokens along the node's path, so a tree's branches each get
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadInput, ConstraintState, Proposal, Sampling

Row = np.ndarray[Any, np.dtype[np.float64]]


def plain_greedy(sampling: Sampling) -> bool:
    """Whether the choice depends on nothing but the argmax of the `allowed` logits."""
    s = sampling
    shifted = s.repetition_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0 or bool(s.logit_bias)
    refused = bool(s.bad_words) or s.min_new_tokens > 0 or s.constraint is not None
    return s.temperature == 0 and not shifted and not refused


def advanced(state: ConstraintState | None, token: int, sampling: Sampling) -> ConstraintState | None:
    """The constraint's state behind one more token. Behind a stop token the answer is over, and nothing is asked of it."""
    return None if state is None or token in sampling.stop_ids else state.after(token)


def allowed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits float [..., V] with those of banned tokens at minus infinity; the same tensor when none of them has a logit.

    A tokenizer may have more ids than the model has rows: what has none cannot be said, so it is passed over here and below.
    """
    banned = [token for token in sampling.banned_ids if token < logits.shape[-1]]
    if not banned:
        return logits
    return logits.index_fill(-1, torch.tensor(banned, device=logits.device), -torch.inf)


def hopeless(proposal: Proposal, state: ConstraintState | None) -> bool:
    """Whether no node can be accepted, so that none need be scored: all first tokens were chosen and leave the grammar."""
    if state is None or proposal.probs is not None:
        return False
    mask, firsts = state.mask(), proposal.tokens[proposal.parents < 0]
    return not mask[firsts[firsts < len(mask)]].any()


def processed(logits: Tensor, path: Sequence[int], sampling: Sampling, state: ConstraintState | None = None) -> Row:
    """One row of logits float [V], the answer so far and the constraint's state there -> probabilities float64 [V]; one-hot at
    temperature 0.

    The order is transformers': logit bias, repetition penalty (then frequency and presence penalty, which only vLLM and OpenAI
    have), bad words, least length, grammar, bans, temperature, top-k, top-p, min-p. BadInput when nothing may be said.
    """
    row = logits.double().numpy(force=True).copy()
    for token, bias in sampling.logit_bias.items():
        if token < len(row):
            row[token] += bias
    _penalise(row, path, sampling)
    _refuse(row, path, sampling, state)
    if sampling.temperature == 0:
        hot = np.zeros_like(row)
        hot[row.argmax()] = 1.0
        return hot
    with np.errstate(over="ignore"):  # by the smallest temperatures, and only to minus infinity: the best token is at 0
        row = (row - row.max()) / sampling.temperature
    if 0 < sampling.top_k < len(row):
        row[row < np.partition(row, -sampling.top_k)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        row = _top_p(row, sampling.top_p)
    probs = _softmax(row)
    if sampling.min_p > 0:
        probs[probs < sampling.min_p * probs.max()] = 0.0
        probs /= probs.sum()
    return probs


def _penalise(row: Row, path: Sequence[int], sampling: Sampling) -> None:
    """Repetition penalty (Keskar et al. 2019, section 4.1), then OpenAI's: so much for every time a token was said, and so
    much for having been said at all."""
    if not len(path):
        return
    seen, times = np.unique(np.asarray(path, np.int64), return_counts=True)
    if (penalty := sampling.repetition_penalty) != 1:
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    row[seen] -= sampling.frequency_penalty * times + sampling.presence_penalty


def _refuse(row: Row, path: Sequence[int], sampling: Sampling, state: ConstraintState | None) -> None:
    """Minus infinity for whatever must not come next."""
    row[[token for token in sampling.banned_ids if token < len(row)]] = -np.inf
    for *before, last in sampling.bad_words:
        if last >= len(row):
            continue
        if not before or list(path[-len(before) :]) == before:
            row[last] = -np.inf
    if state is not None:
        mask = state.mask()[: len(row)]
        row[: len(mask)][~mask] = -np.inf
        row[len(mask) :] = -np.inf
    if len(path) < sampling.min_new_tokens:
        ends = [token for token in sampling.stop_ids if token < len(row)]
        ending = row[ends]
        row[ends] = -np.inf
        if row.max() == -np.inf:  # a grammar that is complete outweighs a least length
            row[ends] = ending
    if row.max() == -np.inf:
        raise BadInput(f"nothing may be said after {len(path)} tokens: grammar, bans and bad words together leave no token")


def _softmax(row: Row) -> Row:
    exps = np.exp(row - row.max())
    return np.asarray(exps / exps.sum())


def _top_p(row: Row, top_p: float) -> Row:
    """Keep the smallest set of tokens whose probability reaches `top_p`; the most likely one always stays."""
    order = np.argsort(-row, kind="stable")
    before = np.cumsum(_softmax(row)[order])
    dropped = order[1:][before[:-1] >= top_p]
    row[dropped] = -np.inf
    return row
