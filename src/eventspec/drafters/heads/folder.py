"""The folder of a head: the fields of its config.json under a plain head's names, and its tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from eventspec.core import BadCheckpoint
from eventspec.drafters.heads import speculators
from eventspec.models import configuration
from eventspec.models.checkpoint import Checkpoint
from eventspec.models.configuration import Fields
from eventspec.nn import LlamaConfig

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

    def shape(self, name: str, axes: int, first: tuple[int, int] | None = None) -> list[int]:
        """Of a tensor; BadCheckpoint where it is missing, or has another number of axes or on the first one a length that is
        out of bounds."""
        if name not in self.checkpoint.at:
            problem = f"tensor {name} is missing: this is no head of that kind, or an incomplete one"
            raise BadCheckpoint(f"{self.checkpoint.where}: {problem}")
        shape = self.checkpoint.shape(name)
        if len(shape) != axes or (first is not None and not first[0] <= shape[0] <= first[1]):
            bounds = "" if first is None else f", {first[0]} to {first[1]} on the first"
            raise BadCheckpoint(f"{self.checkpoint.where}: tensor {name} is {shape}, wanted {axes} axes{bounds}")
        return shape
