"""What a head is: a small module that proposes tokens from what the target computed. And what its family is: how such heads
are trained, and how their folders are recognised, read and written, but for what all families share (`checkpoint`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from eventspec.core import Drafter
from eventspec.drafters.heads.folder import LAYER, HeadFolder
from eventspec.drafters.heads.speculators import Verifier
from eventspec.drafters.heads.trees import TREE_POLICIES, Rates
from eventspec.drafters.heads.views import Rollout, TargetBatch
from eventspec.models import weights
from eventspec.models.configuration import Fields
from eventspec.models.prompt import TextIds
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import LanguageEnds


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
class HeadConfig:
    """`language`: sizes of the head's own decoder layers, with the target's vocabulary."""

    language: LlamaConfig


class Head(nn.Module):
    """A head of any family, as drafting sees it."""

    family: str
    """The name of its family."""
    tree_policies: ClassVar[tuple[str, ...]] = TREE_POLICIES
    """How its draft trees may grow, the usual way first."""
    config: HeadConfig
    taps: tuple[int, ...] = (-1,)
    """Which of the target's layers it reads, as `core.Drafter.taps`."""
    vocab_ids: Tensor | None
    """Target ids int64 [draft vocabulary] of the rows of `scores`; None: they are the target's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vocab_ids", None)

    def scores(self, hidden: Tensor, target: LanguageEnds) -> Tensor:
        """Predicted features [..., D] -> logits float [..., V], or of the draft vocabulary; by default through the target's own
        head."""
        logits: Tensor = target.head(hidden.to(target.head.weight.dtype))
        return logits

    def drafter(self, name: str, drafting: Drafting) -> Drafter:
        """The head as a drafter. BadInput for what it cannot do."""
        raise NotImplementedError


H = TypeVar("H", bound=Head)


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


@dataclass(frozen=True)
class Family(Generic[H]):
    """Heads called `name` in the code and `title` in their paper, all of one class, with `recipes` by the name of a head."""

    name: str
    title: str
    head: type[H]
    recipes: Mapping[str, Recipe]
    rollout: Callable[[H, LanguageEnds, TargetBatch, int], Rollout]
    """Predictions on the branch rows of a batch from the target's pass, so many steps ahead."""
    read: Callable[[HeadFolder], Callable[[], H]]
    """What makes the head that config and tensors describe, to be called on the meta device; BadField or BadCheckpoint where
    one contradicts the other or the target."""
    layers_read: Callable[[H, int], set[int]] = lambda head, layers: {tap for tap in head.taps if tap >= 0}
    """Of a target of so many layers those whose outputs the training reads, besides the last one's."""
    begin: Callable[[H], None] = lambda head: None
    """Sets what is not to begin with random values."""
    kind: str | None = None
    """`eventspec.kind` of config.json, for a head that no other code loads; None: the tensors decide."""
    recognises: Callable[[HeadFolder], bool] = lambda folder: False
    """Whether a folder without a kind is one of this family, by its tensors and fields."""
    own_fields: tuple[str, ...] = ()
    """Fields of `eventspec` in config.json that only this family has."""
    layer_name: str = LAYER
    """What SafeAILab's layout calls its decoder layer."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What tensors' names in a folder begin with, by what ours do; other names are ours, and those of `layer` LAYER's."""
    target_width: Callable[[HeadFolder], int] = lambda folder: folder.target.hidden_size
    """The width of the target that a folder's head is for, read without the target: by default the head's own."""
    fields: Callable[[H], tuple[Fields, Fields]] = lambda head: ({}, {})
    """Fields of SafeAILab's config.json besides the sizes, and of its part `eventspec` besides the kind; BadInput for a head
    that SafeAILab's code would run otherwise."""
    speculators: Callable[[H, Verifier, str], Fields] | None = None
    """config.json in the layout of `speculators`, of a head, its target and a dtype's name; None: it has no such layout."""
    details: Callable[[H], dict[str, Any]] = lambda head: {}
    """Further fields of `about`."""

    @property
    def published(self) -> bool:
        """Whether the code of others reads such folders."""
        return self.kind is None and not self.own_fields

    def about(self, head: H) -> dict[str, Any]:
        """What `models check` reports of a head."""
        return {"head": self.title, **self.details(head)}

    def sources(self, head: H) -> weights.Sources:
        """A head's tensors in a folder whose layout calls the decoder layer `LAYER`."""
        own = [name for name, parameter in head.named_parameters() if parameter.numel()]
        layer = weights.layer_sources(head.config.language, "layer.", LAYER)
        found = {ours: parts for ours, parts in layer.items() if ours in own}
        for name in own:
            begin = next((begin for begin in self.names if name.startswith(begin)), "")
            found.setdefault(name, [(self.names.get(begin, "") + name.removeprefix(begin), 0)])
        return found
