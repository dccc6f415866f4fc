"""What a head is for drafting: a small module that proposes tokens from what the target computed. How one is trained, and its
folder read and written, is its `family`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from eventspec.core import Drafter
from eventspec.drafters.heads.trees import TREE_POLICIES, Rates
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
