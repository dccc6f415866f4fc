"""What a head sees: pairs of a token's feature and the embedding of the token after it, of a prompt when it drafts; in training
of a target's own pass over recordings with questions packed after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from eventspec.errors import BadInput
from eventspec.nn.draft import DraftKernel


@dataclass(frozen=True)
class HeadInputs:
    """Pairs: the feature of a token and the embedding of the token after it. Embeddings float [..., M, D], tapped outputs
    float [..., M, F], positions in the target's prompt int64 [..., M].

    embedding_only bool [M]: which pairs have no feature; global_feature float [..., D]: a vector of all visual rows that is
    fused into every feature (ViSpec); kept int64 [M]: which pairs of the whole prompt these are (None: all of them). branch:
    the compressor's that was taken.
    """

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    embedding_only: Tensor | None = field(default=None, kw_only=True)
    global_feature: Tensor | None = field(default=None, kw_only=True)
    kept: Tensor | None = field(default=None, kw_only=True)
    branch: str | None = field(default=None, kw_only=True)

    def continued(self, more: HeadInputs, first: int = 0) -> HeadInputs:
        """These without the `first` ones, then more that have all their features."""
        plain = self.embedding_only
        return HeadInputs(
            torch.cat((self.embeds[first:], more.embeds)),
            torch.cat((self.tapped[first:], more.tapped)),
            torch.cat((self.positions[first:], more.positions)),
            embedding_only=None if plain is None else torch.cat((plain[first:], plain.new_zeros(len(more.embeds)))),
            global_feature=self.global_feature,
        )

    def shared(self, other: HeadInputs) -> int:
        """How many of the first pairs are the other's too, one of the other's left out."""
        low, high = 0, min(len(self.embeds), len(other.embeds) - 1)
        while low < high:  # one pass over the pairs; row by row it takes five times as long
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._same(other, slice(low, middle)) else (low, middle - 1)
        return low

    def _same(self, other: HeadInputs, place: slice) -> bool:
        names = ("positions", "embeds", "tapped", "embedding_only")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return all(one is None or two is None or torch.equal(one[place], two[place]) for one, two in pairs)


class PromptView(nn.Module):
    """All pairs of a prompt; views that see fewer of them, or others, are subclasses."""

    sees_visual: bool = True
    """Whether it looks at features of visual rows."""

    def pairs(self, inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        """What is seen of all pairs of a prompt whose visual rows are [begin, end). The same in training, where a batch of
        prompts ends with the visual rows and questions are packed after them. A view that drops pairs names those that are
        left in `kept`, in order; it drops none after the visual rows."""
        return inputs

    def force(self, branch: str) -> None:
        """As `Head.force`."""
        raise BadInput(f"the head has no compressor that chooses: there is no branch {branch} to force")

    def fuse_global(self, tapped: Tensor, global_feature: Tensor) -> Tensor:
        """Tapped outputs [..., F] with what `HeadInputs.global_feature` [..., F] adds to them: by default nothing."""
        return tapped

    def kernel_for(self, kernel: DraftKernel, global_feature: Tensor) -> DraftKernel:
        """The head's own kernel with a recording's global feature in it."""
        return kernel


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
        all_rows, seen = mask.shape[-1], inputs.embeds.shape[-2]
        if seen != (all_rows if kept is None else len(kept)) or (
            kept is not None and kept[-mask.shape[-2] :].tolist() != list(range(prefix, all_rows))
        ):
            raise ValueError(
                f"{type(prompt_view).__name__}.pairs gave {seen} of {all_rows} pairs: name those that are left in `kept`, and "
                f"leave the {all_rows - prefix} after the visual rows"
            )
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
