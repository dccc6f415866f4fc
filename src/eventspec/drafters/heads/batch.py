"""What a head learns from: a target's own pass over recordings with questions packed after them, and the head's view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eventspec.drafters.heads.views import HeadInputs, PromptView


@dataclass(frozen=True)
class TargetBatch:
    """What the target did with B recordings, rows [0, P) each, and R rows of packed branches after them: questions with
    answers, which see the prefix and themselves. The prefix ends with the last visual row.

    rows float [B, P + R, D]; ids int64 [B, P + R] (-1 = visual); following float [B, P + R, D]: the embedding after each;
    taps: layer outputs [B, P + R, D] by layer, -1 after the final norm; logits float [B, R, V]; positions int64 [B, P + R];
    mask bool [B, 1, R, P + R], True = may look; offsets int64 [B, R]: from 0 in every branch; labels int64 [B, R]: the token
    after where it is an answer's, else -100; visual: where the visual rows begin; prefix: P; loss_mask bool [B, R]: which rows
    are learned from.
    """

    rows: Tensor
    ids: Tensor
    following: Tensor
    taps: Mapping[int, Tensor]
    logits: Tensor
    positions: Tensor
    mask: Tensor
    offsets: Tensor
    labels: Tensor
    visual: int
    prefix: int
    loss_mask: Tensor

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(part.nbytes for part in (*vars(self).values(), *self.taps.values()) if isinstance(part, Tensor))

    def view(self, taps: tuple[int, ...], prompt_view: PromptView | None = None) -> View:
        """What a head sees that reads the layers `taps`: everything, unless a view says otherwise."""
        inputs = HeadInputs(self.following, torch.cat([self.taps[tap] for tap in taps], -1), self.positions)
        if prompt_view is not None:
            inputs = prompt_view.pairs(inputs, (self.visual, self.prefix))
        mask, prefix, kept = hidden_where(~self.mask), self.prefix, inputs.kept
        if kept is not None:
            mask, prefix = mask[..., kept], int((kept < prefix).sum())
        return View(**vars(inputs), mask=mask, prefix=prefix, loss_mask=self.loss_mask)


@dataclass(frozen=True)
class View(HeadInputs):
    """What a head sees of a batch: pairs [B, P + R, .], a mask float that is added to the scores, [B, 1, R, P + R] (the prefix
    is causal) or [B, 1, P + R, P + R], the rows P of the prefix, and which branch rows it learns from, bool [B, R]."""

    mask: Tensor
    prefix: int
    loss_mask: Tensor


@dataclass(frozen=True)
class Rollout:
    """What a head predicts: features [B, R, D] of every step; which branch rows are learned from, bool [B, R]; `extra`: further
    losses by name, scalars, made when they are wanted."""

    outs: Iterator[Tensor]
    loss_mask: Tensor
    extra: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)


def hidden_where(masked: Tensor) -> Tensor:
    """float, -inf where it is true."""
    return torch.zeros(masked.shape, device=masked.device).masked_fill_(masked, -torch.inf)


def loss_mask_of(labels: Tensor) -> Tensor:
    """Rows of labels int64 [B, R] (-100 = none) after which an answer goes on twice: bool [B, R]."""
    learned = (labels >= 0) & (labels.roll(-1, 1) >= 0)
    learned[:, -1] = False
    return learned
