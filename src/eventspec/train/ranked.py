"""How good a head's drafts are on clips it was not trained on: the rank that the target's next token has among its choices."""

from __future__ import annotations

import torch
from torch import Tensor

from eventspec.drafters.heads import Head, family_of
from eventspec.drafters.heads.batch import TargetBatch
from eventspec.drafters.heads.trees import Rates
from eventspec.drafters.heads.unrolled import shifted
from eventspec.nn.llama import LanguageEnds

SCARCE = 20
"""Rounds that a level's rates are counted from at least; deeper ones are taken to be alike."""


def ranked(head: Head, target: LanguageEnds, batch: TargetBatch, most: int, depth: int) -> Tensor:
    """Of a chain of `depth` drafts begun at every branch row, the ranks int64 [depth, B, R] that the target's next tokens have
    among the head's choices: `most` where they are no such one, -1 behind a draft that was not right and behind an answer's
    end."""
    wanted = batch.logits.roll(-1, 1).argmax(-1)
    steps = min(depth, wanted.shape[1])  # no answer is longer than all rows
    predicted = family_of(head).training.rollout(head, target, batch, steps)
    alive, found = predicted.loss_mask, []
    for step, out in enumerate(predicted.outs):
        scores = head.scores(out, target)
        named = scores.topk(min(most, scores.shape[-1])).indices
        if head.vocab_ids is not None:
            named = head.vocab_ids[named]
        hit = named == wanted[..., None]
        rank = torch.where(hit.any(-1), hit.float().argmax(-1), most)
        found.append(torch.where(alive, rank, -1).roll(-step, 1))  # row j is draft number `step` of what began `step` before
        alive = shifted(alive & (rank == 0), 1) & predicted.loss_mask
        alive[:, : step + 1] = False
    none = torch.full_like(found[0], -1)
    return torch.stack(found + [none] * (depth - len(found)))


def count_rounds(ranks: Tensor, most: int) -> Tensor:
    """Counts float [depth + 1, most + 1] of ranks [depth, B, R] by level, in the rounds that chains take through the answers:
    the next one begins behind the drafts that were right and the target's own token. The first entry of all is how many."""
    depth, count = len(ranks), torch.zeros(len(ranks) + 1, most + 1)
    loss_mask, gained = (ranks[0] >= 0).tolist(), (ranks == 0).sum(0).tolist()
    begun = torch.zeros(ranks.shape[1:], dtype=torch.bool)
    for branch, rows in enumerate(loss_mask):
        due = 0  # an answer's last round comes two rows behind its end at most, where the next one may begin
        for row, known in enumerate(rows):
            if known and row >= due:
                begun[branch, row], due = True, row + gained[branch][row] + 1
    count[0, 0] = begun.sum()
    for level in range(depth):
        found = ranks[level][begun.to(ranks.device)]
        count[level + 1] = found[found >= 0].bincount(minlength=most + 1).cpu()
    return count


def acceptance_rates(counts: Tensor) -> Rates:
    """Of `count_rounds`' counts, the rates by level, of the rounds that came so far."""
    found: list[tuple[float, ...]] = []
    for before, here in zip(counts[:-1, 0].tolist(), counts[1:, :-1], strict=True):
        if before < SCARCE and found:
            break
        found.append(tuple((here / max(1.0, before)).tolist()))
    return tuple(found)
