"""The target's processed distribution at one node: penalties, bans, temperature, top-k, top-p, min-p. This is the p of the
rule.

Penalties see the answer's own tokens along the node's path, so a tree's branches each get their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Sampling

Row = np.ndarray[Any, np.dtype[np.float64]]


def plain_greedy(sampling: Sampling) -> bool:
    """Whether the choice depends on nothing but the argmax of the `allowed` logits."""
    return sampling.temperature == 0 and sampling.repetition_penalty == 1


def allowed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits float [..., V] with those of banned tokens at minus infinity; the same tensor when none is banned."""
    if not sampling.banned_ids:
        return logits
    return logits.index_fill(-1, torch.tensor(sampling.banned_ids, device=logits.device), -torch.inf)


def processed(logits: Tensor, path: Sequence[int], sampling: Sampling) -> Row:
    """One row of logits float [V] and the answer so far -> probabilities float64 [V]; one-hot at temperature 0.

    The order is transformers': repetition penalty, bans, temperature, top-k, top-p, min-p.
    """
    row = logits.double().numpy(force=True).copy()
    if sampling.repetition_penalty != 1 and len(path):
        seen = np.unique(np.asarray(path))
        score = row[seen]
        row[seen] = np.where(score > 0, score / sampling.repetition_penalty, score * sampling.repetition_penalty)
    if sampling.banned_ids:
        row[list(sampling.banned_ids)] = -np.inf
    if sampling.temperature == 0:
        hot = np.zeros_like(row)
        hot[row.argmax()] = 1.0
        return hot
    row /= sampling.temperature
    if 0 < sampling.top_k < len(row):
        row[row < np.partition(row, -sampling.top_k)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        row = _top_p(row, sampling.top_p)
    probs = _softmax(row)
    if sampling.min_p > 0:
        probs[probs < sampling.min_p * probs.max()] = 0.0
        probs /= probs.sum()
    return probs


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
