"""Folders of what is trained beside a pair's models, adapters and packers: config.json, which names the models they were
trained for, and model.safetensors in fp16. A pair lists adapters by name in the table `[adapters]` of pair.toml, the best one
of those with the same output first, and packers by scale in `[packers]`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from eventspec.align.acceptance import Calibrated
from eventspec.align.adapters import (
    KINDS,
    PROMPTED,
    ROLLED,
    Adapter,
    AdapterConfig,
    Looked,
    Output,
    by_frame,
    laid_out,
    pooled_layers,
)
from eventspec.align.deciding import FEATURES, FITTED, USUAL_RULE
from eventspec.compress.packer import Packer, PackerConfig, packed_rows
from eventspec.core import BadCheckpoint, BadInput, Context, EventSlice, Media, Trace
from eventspec.drafters.language_model import Scored
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, without_memory
from eventspec.models.eventgpt import EventGpt
from eventspec.models.prompt import EventEncoder, FrameEncoder, Look, crossing, projected
from eventspec.models.session import LanguageContext
from eventspec.models.video_llava import VideoLlava
from eventspec.models.weights import fingerprint
from eventspec.pairs.names import ACCEPTANCE as ACCEPTANCE
from eventspec.pairs.names import check_packer, folder_named
from eventspec.text import TokenSpace
from eventspec.video.clip import uniform_indices

Encoded = Callable[[Media], Tensor | None]
"""A recording -> the target's own visual rows of it, where it has encoded them."""
Part = TypeVar("Part", Adapter, Packer)
Whole = TypeVar("Whole", EventGpt, VideoLlava)


@dataclass(frozen=True)
class Adapters:
    """The adapters of a pair by name, between the event model whose tower they read and the target that they write for.
    `other_ids`: the event model's, where they are not the target's."""

    events: EventEncoder
    frames: FrameEncoder
    folders: Mapping[str, Path]
    other_ids: TokenSpace | None = None

    @property
    def drafter(self) -> EventGpt:
        return whole(self.events, EventGpt)

    @property
    def target(self) -> VideoLlava:
        return whole(self.frames, VideoLlava)

    @property
    def devices(self) -> tuple[str, str]:
        """Where the target and the event model compute."""
        return str(self.target.projector.linear_1.weight.device), str(self.drafter.projector.linear_1.weight.device)

    def usual(self, *outputs: Output) -> str | None:
        """The name of the one that is used unless another is named, with the first of some outputs that there is. BadCheckpoint
        for a damaged one."""
        found = [(output, name) for output in outputs for name in self.folders if self.config(name).output == output]
        return found[0][1] if found else None

    def config(self, name: str) -> AdapterConfig:
        """What an adapter reads and writes. BadInput and BadCheckpoint, one line each."""
        return inspect_adapter(self.folder(name))[0]

    def folder(self, name: str) -> Path:
        """Where an adapter lies, by the pair's name for it or as it is; BadInput for one that is not there."""
        return folder_named("adapter", name, self.folders)

    def loaded(self, name: str, *outputs: Output) -> Adapter:
        """One of those outputs. BadInput for an unknown adapter and one of another, BadCheckpoint for one that does not fit."""
        folder = self.folder(name)
        adapter = load_adapter(folder, self.drafter, self.target)
        if (own := adapter.config.output) not in outputs:
            wanted = " or ".join(outputs)
            raise BadInput(f"{folder}: this adapter writes {own}, and the method reads {wanted}: name another one")
        return adapter

    def calibrated(self, name: str, rule: str = USUAL_RULE) -> Calibrated | None:
        """What a rule of `deciding.FITTED` knows of the answers that an adapter gives from events alone; None where it was not
        calibrated. BadInput, and BadCheckpoint for a damaged file, and for one of an adapter whose weights were others."""
        path, names = self.folder(name) / FITTED[rule].file, FITTED[rule].names(self.target.config.language.hidden_size)
        found = Calibrated.load(path) if path.is_file() else None
        if found is not None and found.predictor.names != names:
            goes, wanted = (", ".join(own[: len(FEATURES)]) for own in (found.predictor.names, names))
            raise BadCheckpoint(f"{path}: it goes by {goes}, wanted {wanted}")
        if found is not None and found.of.get("adapter") != digest_of(self.folder(name)):
            raise BadCheckpoint(
                f"{path}: it was calibrated with other weights of the adapter: `eventspec train adapter` calibrates it"
            )
        return found

    def encoder(self, name: str, seen: Encoded | None = None) -> EventEncoder:
        """The target's prompt with adapted event rows where its visual rows would be; a kind that looks at what the target has
        `seen` does so. BadInput for an unknown adapter, BadCheckpoint for one that does not fit."""
        return self.writing(self.loaded(name, *PROMPTED), seen)

    def writing(self, adapter: Adapter, seen: Encoded | None = None) -> EventEncoder:
        """The same through an adapter to rows, or to the tower's features, that is there."""
        drafter, vision, config = self.drafter, self.events.vision, adapter.config
        assert vision is not None  # `whole` looked

        def see(events: EventSlice, looked: list[Looked] | None = None) -> Tensor:
            layers = pooled_layers(drafter, vision.pixels(events), config.layers)
            return projected(lambda last: adapter(layers, looked or ())[0], layers[-1])

        def see_frames(events: EventSlice) -> Tensor:
            layers, tokens = drafter.tower.outputs(vision.pixels(events), config.layers), self.target.config.vision.tokens
            frames = [by_frame(layer, drafter.config.images, self.frames.frames, tokens) for layer in layers]
            written: Tensor = adapter(frames).flatten(0, 1)
            return written

        made = EventEncoder(self.target.language, self.frames.text, see, "the target on adapted events", crosses=True)
        if config.output == "tower":
            return replace(made, see=see_frames, projector=self.target.projector)
        return replace(made, look=self._look(adapter, seen))

    def _look(self, adapter: Adapter, seen: Encoded | None) -> Look | None:
        looks, like = KINDS[adapter.config.kind].looks, self.drafter.projector.linear_1.weight
        return Look(seen, like, adapter.look) if seen is not None and looks else None

    def compared(self, media: Media, adapted: Context, own: Context) -> tuple[Tensor, Tensor]:
        """What an adapter wrote of events and the target's own of a recording at the same places, [T, D] each: visual rows, or
        the tower's features before the projector, for which the target's tower looks once more. BadInput without frames."""
        assert isinstance(adapted, LanguageContext) and isinstance(own, LanguageContext)  # a target of ours
        if not len(own.visual):
            raise BadInput("the recording has no frames in this window: a rule that compares features needs the target's own")
        tokens, encoder = self.target.config.vision.tokens, adapted.encoder
        if not isinstance(encoder, EventEncoder) or encoder.projector is None:
            return adapted.visual, laid_out(own.visual.unflatten(0, (1, -1, tokens)), self.drafter.config)[0]
        theirs = self.target.tower(self.frames.pixels(media), self.target.config.vision_layer)
        written = encoder.before[adapted.visual].unflatten(0, (-1, tokens))
        return written[uniform_indices(len(written), len(theirs))].flatten(0, 1), theirs.flatten(0, 1)

    def scored(self, name: str, seen: Encoded | None = None) -> Scored:
        """Tokens after what the event model's language model computes, named by the target's own head through an adapter to
        features, which may look at what the target has `seen`; errors as `encoder`. A kind whose features follow each other
        names `ROLLED` tokens after a single row."""
        adapter, normed, head = self.loaded(name, "features"), self.drafter.language.normed, self.target.language.head
        config, look = adapter.config, self._look(adapter, seen)

        def logits(hidden: Tensor, rows: Tensor, media: Media, trace: Trace) -> Tensor:
            last, *tapped = hidden.split(rows.shape[-1], -1)
            inputs = {1: normed(last), 2: rows, **{2 + tap: layer for tap, layer in zip(config.taps, tapped, strict=True)}}
            own = [inputs[number] for number in config.layers]
            if adapter.fusion is not None:
                features = torch.cat(adapter.rolled(own, ROLLED))
            else:
                features = adapter(own, (look and look.rows(media, trace)) or ())
            found: Tensor = head(crossing(features, head.weight, trace, "drafter"))
            return found

        return Scored(logits, config.taps)


@dataclass(frozen=True)
class Packers:
    """The packers of a pair by scale, for the target whose tower they read."""

    frames: FrameEncoder
    folders: Mapping[str, Path]

    @property
    def target(self) -> VideoLlava:
        return whole(self.frames, VideoLlava)

    def encoder(self, scale: int) -> FrameEncoder:
        """The target's prompts on packed rows; BadInput when there is no packer of that scale, BadCheckpoint when it does not
        fit."""
        check_packer(scale, self.folders)
        target, packer, vision = self.target, self.load(self.folders[str(scale)], str(scale)), self.frames.vision
        assert vision is not None  # `whole` looked
        return replace(self.frames, see=lambda frames: packed_rows(target, packer, vision.pixels(frames)), vision=None)

    def load(self, folder: Path, scale: str) -> Packer:
        """The packer of a folder; BadCheckpoint unless it fits, and has the scale that it is listed by."""
        packer = load_packer(folder, self.target)
        if str(packer.config.scale) != scale:
            raise BadCheckpoint(f"{folder}: pair.toml lists it as a packer of scale {scale}, its config.json has another")
        return packer


def whole(encoder: FrameEncoder | EventEncoder, kind: type[Whole]) -> Whole:
    """The model that an encoder is a part of; BadInput where it is of no such kind."""
    model = None if encoder.vision is None else encoder.vision.model
    if not isinstance(model, kind):
        raise BadInput(f"{encoder.name} is no {kind.__name__}: parts that are trained between layers do not fit it")
    return model


def digest_of(folder: Path) -> str:
    """SHA-256 of an adapter's weights, 16 hex digits: what was calibrated with others says nothing of these."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def inspect_adapter(folder: Path) -> tuple[AdapterConfig, Checkpoint, dict[str, str]]:
    """An adapter's config, its tensors, and the fingerprints of the `drafter` and the `target` it stands between; BadCheckpoint
    in one line for what can be none."""
    data, between = _described(folder, "adapter", "drafter", "target")
    with fields.of_folder(folder):
        config = AdapterConfig.from_json(data)
    checkpoint = Checkpoint(folder)
    with without_memory():
        adapter = Adapter(config)
    checkpoint.check(adapter, weights.own_names(adapter), lambda name: False)
    checkpoint.check_values(checkpoint.at)
    return config, checkpoint, between


def inspect_packer(folder: Path) -> tuple[PackerConfig, Checkpoint, str]:
    """A packer's config, its tensors, and the fingerprint of its target, as far as they can be checked without that;
    BadCheckpoint in one line for what fits no target."""
    data, between = _described(folder, "packer", "target")
    with fields.of_folder(folder):
        config = PackerConfig.from_json(data)
    checkpoint = Checkpoint(folder)
    missing = {"asking.weight", "reading.weight", "keys_values.weight", "projector.linear_1.weight"} - checkpoint.at.keys()
    if missing:
        raise BadCheckpoint(f"{folder}: tensor {min(missing)} is missing: this is no packer, or an incomplete one")
    width, read = (*checkpoint.at["reading.weight"].shape, 0, 0)[:2]
    with fields.of_folder(folder):
        fits = len(config.layers) * width == read > 0
        fields.require(data, "layers", fits, f"{read / max(1, width):g} layers: reading.weight reads so many")
    checkpoint.check_values(checkpoint.at)
    return config, checkpoint, between["target"]


def load_adapter(folder: Path, drafter: EventGpt, target: VideoLlava) -> Adapter:
    """The adapter of a folder, checked against the models it is to stand between; BadCheckpoint in one line for what does not
    fit. It lives with the event model: there it works while the target's device is busy with frames, and of its inputs, which
    may be several, one tensor crosses."""
    config, checkpoint, between = inspect_adapter(folder)
    _check_trained_for(folder, "adapter", between, _fingerprints(drafter=drafter, target=target))
    with fields.of_folder(folder):
        config.check(drafter.config, target.config)
    return _filled(lambda: Adapter(config), checkpoint, drafter.projector.linear_1.weight)


def load_adapter_between(folder: Path, fingerprints: Mapping[str, str]) -> Adapter:
    """The adapter of a folder in fp32, without the models that it was trained for: `drafter` and `target` are known by their
    fingerprints. BadCheckpoint in one line for one of others."""
    config, checkpoint, between = inspect_adapter(folder)
    _check_trained_for(folder, "adapter", between, fingerprints)
    return _filled(lambda: Adapter(config), checkpoint, torch.zeros(0))


def load_packer(folder: Path, target: VideoLlava) -> Packer:
    """The packer of a folder, checked against the target it is to pack for; BadCheckpoint in one line for what does not fit."""
    config, checkpoint, trained = inspect_packer(folder)
    _check_trained_for(folder, "packer", {"target": trained}, _fingerprints(target=target))
    with fields.of_folder(folder):
        config.check(target.config)
    return _filled(lambda: Packer(config, target.config), checkpoint, target.projector.linear_1.weight)


def save_adapter(adapter: Adapter, folder: Path, drafter: EventGpt, target: VideoLlava) -> None:
    """Write a folder that `load_adapter` reads."""
    _save(adapter, folder, "adapter", {"drafter": drafter, "target": target})


def save_packer(packer: Packer, folder: Path, target: VideoLlava) -> None:
    """Write a folder that `load_packer` reads."""
    _save(packer, folder, "packer", {"target": target})


def _described(folder: Path, kind: str, *roles: str) -> tuple[fields.Fields, dict[str, str]]:
    """config.json of that kind, and the fingerprints of the models with those roles."""
    data = fields.read_json(folder / "config.json")
    with fields.of_folder(folder):
        fields.require(data, "model_type", data.get("model_type") == kind, kind)
        own = fields.part(data, "eventspec", {})
        for role in roles:
            fields.require(own, role, isinstance(own.get(role), str), f"a {role}'s fingerprint")
    return data, {role: own[role] for role in roles}


def _check_trained_for(folder: Path, kind: str, trained: Mapping[str, str], there: Mapping[str, str]) -> None:
    for role, found in there.items():
        if trained[role] != found:
            raise BadCheckpoint(
                f"{folder}: the {kind} was trained for {role} {trained[role]}, this one is {found}: "
                f"`eventspec train {kind}` makes one"
            )


def _fingerprints(**models: nn.Module) -> dict[str, str]:
    return {role: fingerprint(model) for role, model in models.items()}


def _filled(make: Callable[[], Part], checkpoint: Checkpoint, like: Tensor) -> Part:
    """A part with its checked weights, ready for use, of the dtype and on the device of `like`."""
    with without_memory():
        part = make()
    names = weights.own_names(part)
    checkpoint.check(part, names, lambda name: False)
    checkpoint.fill(part, names, like.dtype)
    return part.to(like.device).requires_grad_(False).eval()


def _save(part: Adapter | Packer, folder: Path, kind: str, models: Mapping[str, nn.Module]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(part, folder / "model.safetensors", weights.own_names(part))
    config = {"model_type": kind, "dtype": "float16", **part.config.as_json()}
    trained = _fingerprints(**models)
    write_text(folder / "config.json", fields.pretty({**config, "eventspec": trained}))
