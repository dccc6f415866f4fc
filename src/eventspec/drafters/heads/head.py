"""What a head is: a small module that drafts from what the target computed. A family of them is one subclass in one module of
this room, which says everything that is particular to it: tensors, config, what it sees of a prompt, how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from eventspec.core import Drafter
from eventspec.models import weights
from eventspec.models.configuration import Fields
from eventspec.models.prompt import TextIds
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import LanguageEnds

if TYPE_CHECKING:
    from eventspec.drafters.heads.batch import Rollout, TargetBatch
    from eventspec.drafters.heads.folder import HeadFolder

LAYER = "layers.0."
"""What published layouts call the one decoder layer of a head."""
Rates = tuple[tuple[float, ...], ...]
"""Acceptance rates: by level, how often a head's first, second, ... choice is right behind right ones."""


@dataclass(frozen=True)
class HeadInputs:
    """Pairs: the feature of a token and the embedding of the token behind it. Embeddings float [..., M, D], tapped outputs
    float [..., M, F], positions in the target's prompt int64 [..., M].

    embedding_only bool [M]: which pairs have no feature; global_feature float [..., D]: a vector of all visual rows that is
    fused into every feature (ViSpec); kept int64 [M]: which pairs of the whole prompt these are (None: all of them).
    """

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    embedding_only: Tensor | None = None
    global_feature: Tensor | None = None
    kept: Tensor | None = None

    def followed_by(self, more: HeadInputs) -> HeadInputs:
        """These, and more behind them that have all their features."""
        plain = self.embedding_only
        return HeadInputs(
            torch.cat((self.embeds, more.embeds)),
            torch.cat((self.tapped, more.tapped)),
            torch.cat((self.positions, more.positions)),
            None if plain is None else torch.cat((plain, plain.new_zeros(len(more.embeds)))),
            self.global_feature,
        )

    def behind(self, rows: int) -> HeadInputs:
        """Without the first `rows`."""
        plain = self.embedding_only
        parts = (self.embeds[rows:], self.tapped[rows:], self.positions[rows:], None if plain is None else plain[rows:])
        return HeadInputs(*parts, self.global_feature)

    def shared(self, other: HeadInputs) -> int:
        """How many of the first pairs are the other's too, one of the other's left out."""
        low, high = 0, min(len(self.embeds), len(other.embeds) - 1)
        while low < high:  # one pass over the pairs; row by row it takes five times as long
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._same(other, slice(low, middle)) else (low, middle - 1)
        return low

    def _same(self, other: HeadInputs, place: slice) -> bool:
        """Whether the pairs of a place are the other's too."""
        parts = (self.positions, self.embeds, self.tapped, self.embedding_only)
        others = (other.positions, other.embeds, other.tapped, other.embedding_only)
        return all(
            one is None or two is None or torch.equal(one[place], two[place]) for one, two in zip(parts, others, strict=True)
        )


@dataclass(frozen=True)
class Drafting:
    """What a head is to draft for: `text_ids` gives the text of the target's prompts (None: not known), `eos_id` ends its
    answers; `tree` is one of the head's tree policies, `rates` is how often its choices are right (empty: not known)."""

    target: LanguageEnds
    text_ids: TextIds | None
    eos_id: int
    tree: str
    rates: Rates = ()


@dataclass(frozen=True)
class TargetSizes:
    """What a new head is made for: the target's sizes, the tokens that its answers use, the visual rows of a frame (0: not
    known)."""

    language: LlamaConfig
    used: tuple[int, ...] = ()
    frame: int = 0

    @property
    def layer(self) -> LlamaConfig:
        """Of one layer like the target's."""
        return replace(self.language, num_hidden_layers=1)


@dataclass(frozen=True)
class Recipe:
    """How a head is trained: what makes it, how many steps it is unrolled for, and the weights of its losses. `decay`: of each
    further step; `extra`: of what its rollout adds, by name; `begins_with`: the head whose weights it may take over (None: one
    of its own name), but for names that begin with one of `fresh`."""

    make: Callable[[TargetSizes], Head]
    unroll: int = 1
    words: float = 0.1
    feature: float = 1.0
    decay: float = 0.8
    extra: Mapping[str, float] = field(default_factory=dict)
    begins_with: str | None = None
    fresh: tuple[str, ...] = ()
    own_targets_only: bool = False
    """It learns from more of the target than its layers' outputs, or reads its prompt's text."""


class HeadConfig(Protocol):
    """Whatever else it holds: sizes of the head's own decoder layers, with the target's vocabulary."""

    @property
    def language(self) -> LlamaConfig: ...


class Head(nn.Module):
    """A head of any family, as the rest of the code sees it."""

    title: ClassVar[str]
    """As its paper writes it."""
    kind: ClassVar[str | None] = None
    """`eventspec.kind` of a folder's config.json, for a head that no other code loads; None: the tensors tell."""
    recipes: ClassVar[Mapping[str, Recipe]] = {}
    """How heads of the family are trained, by the name of the head."""
    layer_name: ClassVar[str] = LAYER
    """What SafeAILab's layout calls its decoder layer."""
    own_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of `eventspec` in config.json that only this family has."""
    tree_policies: ClassVar[tuple[str, ...]]
    """How its draft trees may grow, the usual way first."""

    config: HeadConfig
    taps: tuple[int, ...] = (-1,)
    """Which of the target's layers it reads, as `core.Drafter.taps`."""
    vocab_ids: Tensor | None
    """Target ids int64 [draft vocabulary] of what `scores` names; None: they are the target's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vocab_ids", None)

    # -------------------------------------------------------------------------------------------------------------- drafting
    @property
    def sees_visual(self) -> bool:
        """Whether its view of a prompt looks at features of visual rows."""
        return True

    def drafter(self, name: str, drafting: Drafting) -> Drafter:
        """The head as a drafter. BadInput for what it cannot do."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------------------- training
    def begin(self) -> None:
        """What is to be set behind random first values."""

    def layers_read(self, layers: int) -> set[int]:
        """Of a target of so many layers those whose outputs its training reads, besides the last one's."""
        return {tap for tap in self.taps if tap >= 0}

    def rollout(self, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
        """What the head predicts on the branch rows of a batch, `count` steps ahead."""
        raise NotImplementedError

    def scores(self, hidden: Tensor, target: LanguageEnds) -> Tensor:
        """Predicted features [..., D] -> logits float [..., V], or of the draft vocabulary; by default through the target's own
        head."""
        logits: Tensor = target.head(hidden.to(target.head.weight.dtype))
        return logits

    # --------------------------------------------------------------------------------------------------------------- folders
    @classmethod
    def recognises(cls, folder: HeadFolder) -> bool:
        """Whether a folder that names no kind is one of this family, by its tensors and fields."""
        return False

    @classmethod
    def read(cls, folder: HeadFolder) -> Self:
        """The head that config and tensors describe, on the meta device; BadField or BadCheckpoint where one contradicts the
        other or the target."""
        raise NotImplementedError

    @classmethod
    def target_width(cls, folder: HeadFolder) -> int:
        """The width of the target that a folder's head is for, told without the target: by default the head's own."""
        return folder.target.hidden_size

    def sources(self, layer: str = LAYER) -> weights.Sources:
        """Its tensors' names in a folder; `layer` is what the layout calls the decoder layer. By default our own names."""
        return {name: [(name, 0)] for name, _ in self.named_parameters()}

    def fields(self) -> tuple[Fields, Fields]:
        """What config.json says besides the sizes: at its top, and in its part `eventspec`."""
        return {}, {} if self.kind is None else {"kind": self.kind}

    def tables(self) -> dict[str, Tensor]:
        """Tensors of a folder that are no weights."""
        return {}

    def filled(self, folder: HeadFolder) -> None:
        """What is to be set once the weights are there."""

    @property
    def published(self) -> bool:
        """Whether the code of others reads its folder."""
        return self.kind is None and not self.own_fields

    def about(self) -> dict[str, Any]:
        """What `models check` says of it."""
        return {"head": self.title}
