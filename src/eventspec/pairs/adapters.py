"""Folders of trained adapters: config.json, which names the two models they were trained between, and model.safetensors in
fp16. A pair lists them by name in the table `[adapters]` of pair.toml, the best one of those with the same output first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eventspec.align.acceptance import Calibrated
from eventspec.align.adapters import Adapter, AdapterConfig, Output, pooled_layers
from eventspec.align.substitute import FEATURES
from eventspec.core import BadCheckpoint, BadInput, EventSlice
from eventspec.drafters.model_reading import Scored
from eventspec.events.representations import red_blue_classes
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.models.embedded import pixels_from_classes, target_ids
from eventspec.models.eventgpt import EventGpt
from eventspec.models.prompt import EventEncoder
from eventspec.models.video_llava import VideoLlava
from eventspec.models.weights import fingerprint

ACCEPTANCE = "acceptance.json"
"""In an adapter's folder: its calibrated acceptance predictor."""


@dataclass(frozen=True)
class Adapters:
    """The adapters of a pair by name, the event model whose tower they read, the target they write for, and how its prompt is
    encoded."""

    drafter: EventGpt
    target: VideoLlava
    encode: Callable[[str], list[int]]
    folders: Mapping[str, Path]

    def usual(self, output: Output) -> str | None:
        """The name of the one with an output that is used unless another is named. BadCheckpoint for a damaged one."""
        return next((name for name in self.folders if self.output(name) == output), None)

    def output(self, name: str) -> Output:
        """What an adapter writes. BadInput and BadCheckpoint, one line each."""
        return inspect_adapter(self.folder(name))[0].output

    def folder(self, name: str) -> Path:
        """Where an adapter lies, by the pair's name for it or as it is; BadInput for one that is not there."""
        folder = self.folders.get(name, Path(name))
        if not name or not folder.is_dir():
            known = f", or one of {', '.join(self.folders)}" if self.folders else ""
            raise BadInput(f"no adapter '{name}': give the folder of an adapter{known}; `eventspec train adapter` makes one")
        return folder

    def _loaded(self, name: str, output: Output) -> Adapter:
        folder = self.folder(name)
        adapter = load_adapter(folder, self.drafter, self.target)
        if (own := adapter.config.output) != output:
            raise BadInput(f"{folder}: this adapter writes {own}, and the method reads {output}: name another one")
        return adapter

    def calibrated(self, name: str) -> Calibrated | None:
        """What is known of the answers that an adapter gives from events alone; None where it was not calibrated. BadInput, and
        BadCheckpoint for a damaged file, and for one of an adapter whose weights were others."""
        path = self.folder(name) / ACCEPTANCE
        found = Calibrated.load(path) if path.is_file() else None
        if found is not None and found.predictor.names != FEATURES:
            raise BadCheckpoint(f"{path}: it goes by {', '.join(found.predictor.names)}, wanted {', '.join(FEATURES)}")
        if found is not None and found.of.get("adapter") != digest_of(self.folder(name)):
            raise BadCheckpoint(
                f"{path}: it was calibrated with other weights of the adapter: `eventspec train adapter` calibrates it"
            )
        return found

    def encoder(self, name: str) -> EventEncoder:
        """The target's prompt with adapted event rows where its visual rows would be; BadInput for an unknown adapter,
        BadCheckpoint for one that does not fit."""
        adapter, drafter = self._loaded(name, "rows"), self.drafter

        def see(events: EventSlice) -> Tensor:
            classes = torch.from_numpy(red_blue_classes(events, drafter.config.images))
            pixels = pixels_from_classes(classes).to(drafter.projector.linear_1.weight)
            rows: Tensor = adapter(pooled_layers(drafter, pixels, adapter.config.layers))[0]
            return rows

        return EventEncoder(self.target.language, target_ids(self.encode), see, "the target on adapted events")

    def scored(self, name: str) -> Scored:
        """Tokens after what the event model's language model computes, named by the target's own head through an adapter to
        features; errors as `encoder`."""
        adapter, normed, head = self._loaded(name, "features"), self.drafter.language.normed, self.target.language.head

        def scored(hidden: Tensor, rows: Tensor) -> Tensor:
            inputs = (normed(hidden), rows)
            logits: Tensor = head(adapter([inputs[number - 1] for number in adapter.config.layers]))
            return logits

        return scored


def digest_of(folder: Path) -> str:
    """SHA-256 of an adapter's weights, 16 hex digits: what was calibrated with others says nothing of these."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def inspect_adapter(folder: Path) -> tuple[AdapterConfig, Checkpoint, dict[str, str]]:
    """An adapter's config, its tensors, and the fingerprints of the `drafter` and the `target` it stands between; BadCheckpoint
    in one line for what can be none."""
    data = fields.read_json(folder / "config.json")
    with fields.of_folder(folder):
        fields.require(data, "model_type", data.get("model_type") == "adapter", "adapter")
        config, own = AdapterConfig.from_json(data), fields.part(data, "eventspec", {})
        for role in ("drafter", "target"):
            fields.require(own, role, isinstance(own.get(role), str), f"a {role}'s fingerprint")
    checkpoint = Checkpoint(folder)
    with without_memory():
        adapter = Adapter(config)
    checkpoint.check(adapter, weights.own_names(adapter), lambda name: False)
    return config, checkpoint, {role: own[role] for role in ("drafter", "target")}


def load_adapter(folder: Path, drafter: EventGpt, target: VideoLlava) -> Adapter:
    """The adapter of a folder, checked against the models it is to stand between; BadCheckpoint in one line for what does not
    fit."""
    config, checkpoint, between = inspect_adapter(folder)
    for role, model in (("drafter", drafter), ("target", target)):
        if between[role] != (found := fingerprint(model)):
            raise BadCheckpoint(
                f"{folder}: the adapter was trained for {role} {between[role]}, this one is {found}: "
                "`eventspec train adapter` makes one"
            )
    with fields.of_folder(folder):
        config.check(drafter.config, target.config.language.hidden_size)
    with without_memory():
        adapter = Adapter(config)
    checkpoint.fill(adapter, weights.own_names(adapter), target.projector.linear_1.weight.dtype)
    return adapter.to(target.projector.linear_1.weight.device).requires_grad_(False).eval()


def save_adapter(adapter: Adapter, folder: Path, drafter: EventGpt, target: VideoLlava) -> None:
    """Write a folder that `load_adapter` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(adapter, folder / "model.safetensors", weights.own_names(adapter))
    config = {"model_type": "adapter", "dtype": "float16", **adapter.config.as_json()}
    between = {"drafter": fingerprint(drafter), "target": fingerprint(target)}
    (folder / "config.json").write_text(fields.pretty({**config, "eventspec": between}))
