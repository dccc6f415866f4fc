"""What a head is: a small module that proposes tokens from what the target computed. And what its family is: how such heads
are trained, and how their folders are recognised, read and written, but for what all families share (`checkpoint`). And what a
folder holds: the fields of its config.json under a plain head's names, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from eventspec.core import BadCheckpoint, BadInput, Drafter
from eventspec.drafters.heads import speculators
from eventspec.drafters.heads.speculators import Verifier
from eventspec.drafters.heads.trees import TREE_POLICIES, Rates
from eventspec.drafters.heads.views import Rollout, TargetBatch
from eventspec.models import configuration, weights
from eventspec.models.checkpoint import Checkpoint
from eventspec.models.configuration import Fields
from eventspec.models.prompt import TextIds
from eventspec.nn import LlamaConfig
from eventspec.nn.llama import LanguageEnds

LAYER = "layers.0."
"""What published layouts call the one decoder layer of a head."""


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

    def force(self, branch: str) -> None:
        """See the visual rows by one branch of its compressor, always. BadInput for one that it has not."""
        raise BadInput(f"a head of family {self.family} has no compressor that chooses: there is no branch {branch} to force")

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
    of its own name)."""

    make: Callable[[TargetSizes], Head]
    unroll: int = 1
    words: float = 0.1
    feature: float = 1.0
    decay: float = 0.8
    extra: Mapping[str, float] = field(default_factory=dict)
    begins_with: str | None = None
    own_targets_only: bool = False
    """It learns from more of the target than its layers' outputs, or reads its prompt's text."""
    gate_cost: float = 0.0
    """Where a gate chooses what it reads: what reading every visual row is worth, in the logarithm of tau."""


@dataclass(frozen=True)
class HeadFolder:
    """config.json and tensors at `path`; `target`: sizes of the model the head is to draft for."""

    path: Path
    data: Fields
    checkpoint: Checkpoint
    target: LlamaConfig

    @classmethod
    def open(cls, path: Path, target: LlamaConfig | None = None) -> HeadFolder:
        """BadCheckpoint in one line for what is no head. Without a target it is taken to have the head's width and
        vocabulary."""
        data = configuration.read_json(path / "config.json")
        with configuration.of_folder(path):
            data = speculators.flattened(data) if speculators.KIND in data else data
            own = configuration.part(data, "eventspec", {})
            configuration.require(own, "target", isinstance(own.get("target"), str | None), "a target's fingerprint")
        if "hidden_size" not in data:
            raise BadCheckpoint(f"{path / 'config.json'} has no hidden_size: it is not the config of a head")
        # EAGLE-3's layer is called `midlayer` by SafeAILab and `layers.0` by others.
        checkpoint = Checkpoint(path, lambda name: re.sub(r"^midlayer\.", LAYER, name.removeprefix("model.")))
        if target is None:
            named = [checkpoint.at[name].shape[0] for name in ("t2d", "lm_head.weight") if name in checkpoint.at] or [1]
            with configuration.of_folder(path):
                sizes = configuration.llama_config({"vocab_size": named[0], **data})
            target = replace(sizes, num_hidden_layers=configuration.LARGEST["num_hidden_layers"])
        return cls(path, data, checkpoint, target)

    @property
    def own(self) -> Fields:
        """What only our own folders say."""
        return configuration.part(self.data, "eventspec", {})

    def sizes(self) -> LlamaConfig:
        """Of the head's layers, with the target's vocabulary."""
        return configuration.llama_config({**self.data, "vocab_size": self.target.vocab_size})

    def layer_sizes(self) -> LlamaConfig:
        """Of a head of one layer that is as wide as the target; BadField or BadCheckpoint where it is not."""
        sizes = self.sizes()
        if sizes.hidden_size != self.target.hidden_size:
            widths = f"{sizes.hidden_size}, the target's {self.target.hidden_size}"
            raise BadCheckpoint(f"{self.path}: the head's width is {widths}: it belongs to another target")
        self.agrees("vocab_size", self.target.vocab_size, "as the target has")
        self.agrees("target_hidden_size", self.target.hidden_size, "as the target has")
        self.agrees("num_hidden_layers", 1, "a head has one layer")
        return replace(sizes, num_hidden_layers=1)

    def agrees(self, name: str, only: int | None, why: str) -> None:
        """BadField unless a field is absent or has the only value it can have."""
        found = self.data.get(name)
        configuration.require(self.data, name, found is None or (type(found) is type(only) and found == only), f"{only}: {why}")

    def shape(self, name: str, axes: int, first: tuple[int, int] | None = None) -> list[int]:
        """Of a tensor; BadCheckpoint where it is missing, or has another number of axes or on the first one a length that is
        out of bounds."""
        if name not in self.checkpoint.at:
            problem = f"tensor {name} is missing: this is no head of that kind, or an incomplete one"
            raise BadCheckpoint(f"{self.checkpoint.where}: {problem}")
        shape = self.checkpoint.at[name].shape
        if len(shape) != axes or (first is not None and not first[0] <= shape[0] <= first[1]):
            bounds = "" if first is None else f", {first[0]} to {first[1]} on the first"
            raise BadCheckpoint(f"{self.checkpoint.where}: tensor {name} is {shape}, wanted {axes} axes{bounds}")
        return shape


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
