"""What a head sees of a prompt: pairs of a token's feature and the embedding of the token after it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from eventspec.nn.draft import DraftKernel


@dataclass(frozen=True)
class HeadInputs:
    """Pairs: the feature of a token and the embedding of the token after it. Embeddings float [..., M, D], tapped outputs
    float [..., M, F], positions in the target's prompt int64 [..., M].

    embedding_only bool [M]: which pairs have no feature; global_feature float [..., D]: a vector of all visual rows that is
    fused into every feature (ViSpec); kept int64 [M]: which pairs of the whole prompt these are (None: all of them).
    """

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    embedding_only: Tensor | None = field(default=None, kw_only=True)
    global_feature: Tensor | None = field(default=None, kw_only=True)
    kept: Tensor | None = field(default=None, kw_only=True)

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
        prompts ends with the visual rows and questions are packed after them."""
        return inputs

    def fuse_global(self, tapped: Tensor, global_feature: Tensor) -> Tensor:
        """Tapped outputs [..., F] with what `HeadInputs.global_feature` [..., F] adds to them: by default nothing."""
        return tapped

    def kernel_for(self, kernel: DraftKernel, global_feature: Tensor) -> DraftKernel:
        """The head's own kernel with a recording's global feature in it."""
        return kernel
