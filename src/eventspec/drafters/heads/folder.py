"""The folder of a head: the fields of its config.json under a plain head's names, its tensors, and how a family reads and
writes them, but for what all families share (`checkpoint`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from eventspec.core import BadCheckpoint
from eventspec.drafters.heads import speculators
from eventspec.drafters.heads.head import Head
from eventspec.models import configuration, weights
from eventspec.models.checkpoint import Checkpoint
from eventspec.models.configuration import Fields
from eventspec.nn import LlamaConfig

H = TypeVar("H", bound=Head)
LAYER = "layers.0."
"""What published layouts call the one decoder layer of a head."""


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
        data = _config(path)
        # EAGLE-3's layer is called `midlayer` by SafeAILab and `layers.0` by others.
        checkpoint = Checkpoint(path, lambda name: re.sub(r"^midlayer\.", LAYER, name.removeprefix("model.")))
        if target is None:
            named = [checkpoint.shape(name)[0] for name in ("t2d", "lm_head.weight") if name in checkpoint.at] or [1]
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

    def rows(self, name: str, axes: int, bounds: tuple[int, int]) -> int:
        """The first length of a tensor; BadCheckpoint where it is missing, has another number of axes or is out of bounds."""
        least, most = bounds
        wanted = f"{axes} axes, {least} to {most} on the first"
        return self._shape(name, lambda shape: len(shape) == axes and least <= shape[0] <= most, wanted)[0]

    def width(self, name: str) -> int:
        """What a matrix reads; BadCheckpoint where it is missing or none."""
        return self._shape(name, lambda shape: len(shape) == 2, "2 axes")[1]

    def _shape(self, name: str, fits: Callable[[list[int]], bool], wanted: str) -> list[int]:
        if name not in self.checkpoint.at:
            problem = f"tensor {name} is missing: this is no head of that kind, or an incomplete one"
            raise BadCheckpoint(f"{self.checkpoint.where}: {problem}")
        if not fits(shape := self.checkpoint.shape(name)):
            raise BadCheckpoint(f"{self.checkpoint.where}: tensor {name} is {shape}, wanted {wanted}")
        return shape


@dataclass(frozen=True)
class Files(Generic[H]):
    """How folders of a family are recognised, read and written. `title`: as its paper writes it."""

    title: str
    read: Callable[[HeadFolder], Callable[[], H]]
    """What makes the head that config and tensors describe, to be called on the meta device; BadField or BadCheckpoint where
    one contradicts the other or the target."""
    kind: str | None = None
    """`eventspec.kind` of config.json, for a head that no other code loads; None: the tensors decide."""
    recognises: Callable[[HeadFolder], bool] = lambda folder: False
    """Whether a folder without a kind is one of this family, by its tensors and fields."""
    own_fields: tuple[str, ...] = ()
    """Fields of `eventspec` in config.json that only this family has."""
    layer_name: str = LAYER
    """What SafeAILab's layout calls its decoder layer."""
    target_width: Callable[[HeadFolder], int] = lambda folder: folder.target.hidden_size
    """The width of the target that a folder's head is for, read without the target: by default the head's own."""
    sources: Callable[[H, str], weights.Sources] = lambda head, layer: weights.own_names(head)
    """Tensors' names in a folder whose layout calls the decoder layer `layer`; by default our own names."""
    fields: Callable[[H], tuple[Fields, Fields]] = lambda head: ({}, {})
    """Fields of SafeAILab's config.json besides the sizes, and of its part `eventspec` besides the kind; BadInput for a head
    that SafeAILab's code would run otherwise."""
    tables: Callable[[H], dict[str, Tensor]] = lambda head: {}
    """Tensors of a folder that are no weights."""
    filled: Callable[[H], None] = lambda head: None
    """Called once the weights are there."""
    speculators: Callable[[H, speculators.Verifier, str], Fields] | None = None
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


def _config(path: Path) -> Fields:
    data = configuration.read_json(path / "config.json")
    with configuration.of_folder(path):
        data = speculators.flattened(data) if speculators.KIND in data else data
        own = configuration.part(data, "eventspec", {})
        configuration.require(own, "target", isinstance(own.get("target"), str | None), "a target's fingerprint")
    if "hidden_size" not in data:
        raise BadCheckpoint(f"{path / 'config.json'} has no hidden_size: it is not the config of a head")
    return data
