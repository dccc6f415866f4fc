"""The target's processed distribution at one node (bias, penalties, bans, grammar, temperature, top-k, top-p, min-p: the p of
the rule), and the token that is drawn from it.

Whatever depends on what was said before goes by the answer's tokens along the node's path, so a tree's branches each get their
own.

Drawing is Gumbel-max (Gumbel 1954; Maddison et al. 2014): argmax of log p + g with noise g that depends on the seed and the
position only. A row that is scored among others differs by rounding from the same row scored alone, and then the drawn token
can change only where the two best sums are as close as that. An inverse-CDF draw changes wherever one of its V boundaries
moves past the random number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadInput, ConstraintState, NonFiniteLogits, Sampling
from eventspec.engine.admissible import completes, repeating

Row = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
PositionRng = Callable[[int], np.random.Generator]
"""What a position of the answer is drawn with; never what a drafter draws from."""


def position_rng(seed: int) -> PositionRng:
    """A generator of its own for every position, so that what is drawn there does not depend on how it was reached.

    The position is a spawn key: as a second word of the seed, position p of seed s would draw as position 0 of s + (p << 32).
    """
    return lambda position: np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(position,)))


def plain_greedy(sampling: Sampling) -> bool:
    """Whether the choice depends on nothing but the argmax of the `allowed` logits."""
    s = sampling
    shifted = s.repetition_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0 or bool(s.logit_bias)
    refused = bool(s.bad_words) or s.min_new_tokens > 0 or s.constraint is not None or s.no_repeat_ngram_size > 0
    return s.temperature == 0 and not shifted and not refused


def allowed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits float [..., V] with those of banned tokens at minus infinity; the same tensor when none of them has a logit.

    A tokenizer may have more ids than the model has rows: what has none cannot be said, so it is passed over here and below.
    """
    banned = _banned(sampling.banned_ids, logits.shape[-1], logits.device)
    if banned.is_cuda:  # made on another lane's stream, perhaps: not to be freed before this one has used it
        banned.record_stream(torch.cuda.current_stream(banned.device))
    return logits.index_fill(-1, banned, -torch.inf) if len(banned) else logits


@functools.lru_cache(maxsize=32)
def _banned(ids: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Those of the ids that have a logit, where logits are: a step should not wait for them to be carried there."""
    return torch.tensor([token for token in ids if token < size], dtype=torch.int64, device=device)


def allowed_on_host(logits: Tensor, sampling: Sampling) -> np.ndarray[Any, Any]:
    """As `allowed`, of logits on a CPU, as float32 or float64 [..., V] of numpy's: a step of plain decoding is short."""
    rows: np.ndarray[Any, Any] = (logits if logits.dtype == torch.float64 else logits.float()).numpy()
    banned = [token for token in sampling.banned_ids if token < rows.shape[-1]]
    if banned:
        rows = rows.copy()
        rows[..., banned] = -np.inf
    return rows


def choose(
    logits: Tensor,
    path: Sequence[int],
    sampling: Sampling,
    state: ConstraintState | None,
    rng: PositionRng,
    rounding: float = 0.0,
) -> tuple[int, bool]:
    """The next token of one row of logits float [V] after the answer `path`, and whether it hangs on rounding: whether another
    token would win if logits changed places that are no more than `rounding` apart. BadInput when nothing may be said.

    What depends on rounding by chance alone is a near tie too: a token at the edge of top-k, top-p or min-p.
    """
    row = _row(logits, path, sampling, state)
    # A penalty stretches rounding together with the logit.
    rounding *= max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    if sampling.temperature == 0:
        token = int(row.argmax())
        return token, bool(np.count_nonzero(row >= row[token] - rounding) > 1)
    row, slack = _tempered(row, sampling), rounding / sampling.temperature
    values = row + rng(len(path)).gumbel(size=len(row))
    token, rivals, edge = int(values.argmax()), values, False
    if _cuts(sampling):
        kept, doubtful = _cut(row, sampling, slack)
        token, rivals = int(np.where(kept, values, -np.inf).argmax()), np.where(kept | doubtful, values, -np.inf)
        edge = bool(doubtful[token])
    return token, edge or bool(np.count_nonzero(rivals >= values[token] - slack) > 1)


def draw(p: Row, rng: np.random.Generator) -> int:
    """One token from p float64 [V], which need not add up to 1. A token without a share is never drawn."""
    with np.errstate(divide="ignore"):
        return int((np.log(p) + rng.gumbel(size=len(p))).argmax())


def processed(logits: Tensor, path: Sequence[int], sampling: Sampling, state: ConstraintState | None = None) -> Row:
    """One row of logits float [V], the answer so far and the constraint's state there -> probabilities float64 [V]; one-hot at
    temperature 0.

    The order is transformers': logit bias, repetition penalty (then frequency and presence penalty, which only vLLM and OpenAI
    have), bad words and n-grams, least length, grammar, bans, temperature, top-k, top-p, min-p. BadInput if all are refused.
    """
    row = _row(logits, path, sampling, state)
    if sampling.temperature == 0:
        one_hot = np.zeros_like(row)
        one_hot[row.argmax()] = 1.0
        return one_hot
    row = _tempered(row, sampling)
    return _softmax(np.where(_cut(row, sampling, 0.0)[0], row, -np.inf) if _cuts(sampling) else row)


def _row(logits: Tensor, path: Sequence[int], sampling: Sampling, state: ConstraintState | None) -> Row:
    """Logits float [V] with bias and penalties, minus infinity for what must not come next."""
    given = logits.double().numpy(force=True)
    row = given.copy()
    row[[token for token in sampling.banned_ids if token < len(row)]] = -np.inf
    if not np.isfinite(row.max()) and not np.isfinite(given.max()):  # of either NaN is the largest
        raise NonFiniteLogits(
            f"the target's logits are not finite after {len(path)} tokens, because its weights hold NaN or its activations "
            "overflow: try dtype bfloat16 or float32, or fetch the weights again"
        )
    for token, bias in sampling.logit_bias.items():
        if token < len(row):
            row[token] += bias
    _penalise(row, path, sampling)
    _refuse(row, path, sampling, state)
    return row


def _tempered(row: Row, sampling: Sampling) -> Row:
    """Logarithms of probabilities, but for a constant that makes the best one 0."""
    with np.errstate(over="ignore"):  # by the smallest temperatures, and only to minus infinity: the best token is at 0
        return np.asarray((row - row.max()) / sampling.temperature)


def _cuts(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _cut(row: Row, sampling: Sampling, slack: float) -> tuple[Mask, Mask]:
    """bool [V] twice: what top-k, top-p and min-p keep of a tempered row, and whose place inside or outside hangs on entries
    that are no more than `slack` apart."""
    kept: Mask = row > -np.inf
    doubtful = np.zeros_like(kept)
    if 0 < sampling.top_k < len(row):
        kept &= row >= np.partition(row, -sampling.top_k)[-sampling.top_k]
        _doubt_the_edge(doubtful, row, kept, slack)
    if sampling.top_p < 1:
        # The shares hang on who is in: one doubtful place before makes all of them doubtful.
        doubtful |= kept & doubtful.any()
        order = np.argsort(-np.where(kept, row, -np.inf), kind="stable")[: np.count_nonzero(kept)]
        # The share of the likelier ones; the likeliest always stays.
        before = np.concatenate(([-np.inf], np.cumsum(_softmax(row[order]))[:-1]))
        kept = np.zeros_like(kept)
        kept[order[before < sampling.top_p]] = True
        # A change of `slack` in every entry moves the share P of a set by at most slack * P * (1 - P) * 2.
        doubtful[order[np.abs(before - sampling.top_p) <= slack / 2]] = True
        _doubt_the_edge(doubtful, row, kept, slack)
    if sampling.min_p > 0:
        doubtful |= kept & doubtful.any()
        apart = row - (row.max() + np.log(sampling.min_p))
        doubtful |= kept & (np.abs(apart) <= slack)
        kept &= apart >= 0
    return kept, doubtful


def _doubt_the_edge(doubtful: Mask, row: Row, kept: Mask, slack: float) -> None:
    """Mark the entries that could change places across the edge between what is kept and what is not."""
    inside, outside = np.where(kept, row, np.inf).min(), np.where(kept, -np.inf, row).max()
    if inside - outside < slack:
        doubtful |= (row > inside - slack) & (row < outside + slack)


def _penalise(row: Row, path: Sequence[int], sampling: Sampling) -> None:
    """Repetition penalty (Keskar et al. 2019, section 4.1), then OpenAI's: so much for every time a token was said, and so
    much for having been said at all."""
    if (penalty := sampling.repetition_penalty) != 1:
        seen = np.unique(np.asarray([*sampling.prompt_ids, *path], np.int64))
        seen = seen[seen < len(row)]
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    seen, times = np.unique(np.asarray(path, np.int64), return_counts=True)
    row[seen] -= sampling.frequency_penalty * times + sampling.presence_penalty


def _refuse(row: Row, path: Sequence[int], sampling: Sampling, state: ConstraintState | None) -> None:
    """Minus infinity for whatever must not come next, beside what is banned."""
    said = [*sampling.prompt_ids, *path]
    ended = {word[-1] for word in sampling.bad_words if completes(word, said, word[-1])} | repeating(said, sampling)
    row[[token for token in ended if token < len(row)]] = -np.inf
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
