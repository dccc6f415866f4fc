"""Folders of trained packers: config.json, which names the target they were trained for, and model.safetensors in fp16. A pair
lists them by scale in the table `[packers]` of pair.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eventspec.compress.packer import Packer, PackerConfig, packed_rows
from eventspec.core import BadCheckpoint, BadInput
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.models.embedded import target_encoder
from eventspec.models.prompt import FrameEncoder
from eventspec.models.video_llava import VideoLlava
from eventspec.models.weights import fingerprint


@dataclass(frozen=True)
class Packers:
    """The packers of a pair by scale, the model whose tower they read, and how its prompt is encoded."""

    model: VideoLlava
    encode: Callable[[str], list[int]]
    folders: Mapping[str, Path]

    def encoder(self, scale: int) -> FrameEncoder:
        """The target's prompts on packed rows; BadInput when there is no packer of that scale, BadCheckpoint when it does not
        fit."""
        folder = self.folders.get(str(scale))
        if folder is None:
            there = f"there is {', '.join(self.folders)}" if self.folders else "there is none"
            raise BadInput(f"no trained packer of scale {scale}, {there}: train one with `eventspec train packer`")
        see = partial(packed_rows, self.model, self.load(folder, str(scale)))
        return target_encoder(self.model, self.encode, see)

    def load(self, folder: Path, scale: str) -> Packer:
        """The packer of a folder; BadCheckpoint unless it fits, and has the scale that it is listed by."""
        packer = load_packer(folder, self.model)
        if str(packer.config.scale) != scale:
            raise BadCheckpoint(f"{folder}: pair.toml lists it as a packer of scale {scale}, its config.json has another")
        return packer


def inspect_packer(folder: Path) -> tuple[PackerConfig, Checkpoint, str]:
    """A packer's config, its tensors, and the fingerprint of its target, as far as they can be checked without that;
    BadCheckpoint in one line for what fits no target."""
    data = fields.read_json(folder / "config.json")
    with fields.of_folder(folder):
        fields.require(data, "model_type", data.get("model_type") == "packer", "packer")
        own = fields.part(data, "eventspec", {})
        fields.require(own, "target", isinstance(own.get("target"), str), "a target's fingerprint")
        config = PackerConfig.from_json(data)
    checkpoint = Checkpoint(folder)
    missing = {"asking.weight", "reading.weight", "keys_values.weight", "projector.linear_1.weight"} - checkpoint.at.keys()
    if missing:
        raise BadCheckpoint(f"{folder}: tensor {min(missing)} is missing: this is no packer, or an incomplete one")
    width, read = (*checkpoint.shape("reading.weight"), 0, 0)[:2]
    with fields.of_folder(folder):
        fits = len(config.layers) * width == read > 0
        fields.require(data, "layers", fits, f"{read / max(1, width):g} layers: reading.weight reads so many")
    return config, checkpoint, own["target"]


def load_packer(folder: Path, target: VideoLlava) -> Packer:
    """The packer of a folder, checked against the target it is to pack for; BadCheckpoint in one line for what does not fit."""
    config, checkpoint, trained = inspect_packer(folder)
    if trained != (found := fingerprint(target)):
        raise BadCheckpoint(
            f"{folder}: the packer was trained for target {trained}, this one is {found}: `eventspec train packer` makes one"
        )
    with fields.of_folder(folder):
        config.check(target.config)
    with without_memory():
        packer = Packer(config, target.config)
    sources = weights.own_names(packer)
    checkpoint.check(packer, sources, lambda name: False)
    checkpoint.fill(packer, sources, target.projector.linear_1.weight.dtype)
    return packer.to(target.projector.linear_1.weight.device).requires_grad_(False).eval()


def save_packer(packer: Packer, folder: Path, target: VideoLlava) -> None:
    """Write a folder that `load_packer` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(packer, folder / "model.safetensors", weights.own_names(packer))
    config = {"model_type": "packer", "dtype": "float16", **packer.config.as_json()}
    (folder / "config.json").write_text(fields.pretty({**config, "eventspec": {"target": fingerprint(target)}}))
