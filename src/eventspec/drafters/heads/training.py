"""How a head is trained: its recipes, and what a family's rollout predicts from a target's pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from eventspec.drafters.heads.batch import Rollout, TargetBatch
from eventspec.drafters.heads.head import Head
from eventspec.drafters.heads.unrolled import OneLayerHead, steps
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import LanguageEnds

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


def unrolled(head: OneLayerHead, target: LanguageEnds, batch: TargetBatch, count: int) -> Rollout:
    """What a head on the target's features predicts on the branch rows of a batch, `count` steps ahead."""
    view = batch.view(head.taps, head.view)
    rope = target.cos[view.positions], target.sin[view.positions]
    return Rollout(steps(head, view, rope, count), view.loss_mask)


@dataclass(frozen=True)
class Training(Generic[H]):
    """How heads of a family are trained: `recipes` by the name of the head; `rollout`(head, target, batch, count): predictions
    on the branch rows of a batch, `count` steps ahead; `layers_read`(head, layers): of a target of so many layers those whose
    outputs the training reads, besides the last one's; `begin` sets what is not to begin with random values."""

    recipes: Mapping[str, Recipe]
    rollout: Callable[[H, LanguageEnds, TargetBatch, int], Rollout]
    layers_read: Callable[[H, int], set[int]] = lambda head, layers: {tap for tap in head.taps if tap >= 0}
    begin: Callable[[H], None] = lambda head: None
