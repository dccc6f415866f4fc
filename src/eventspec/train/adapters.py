"""The recipe of adapters between a pair's event tower and its target's language model, which both stay as they are.

Three phases, each from where the one before ended. alignment: rows like the target's own visual rows of the same moments and
places. acceptance: the target's own answers behind adapted rows, by cross-entropy with what it said on its own rows.
end-to-end: the same, and the share of an answer that a chain drafted from these rows would have accepted. Whatever its kind, an
adapter is trained on the text of the target: on two texts that two models make on their own, training stops at their
difference.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from eventspec.align.acceptance import Calibrated, Predictor
from eventspec.align.adapters import Adapter, AdapterConfig, check_kind, pooled_layers
from eventspec.align.substitute import FEATURES
from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Sampling
from eventspec.files import write_text
from eventspec.models.embedded import pixels_from_classes, pixels_from_frames
from eventspec.models.eventgpt import EventGpt, load_eventgpt
from eventspec.models.fingerprint import fingerprint
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import load_pair
from eventspec.pairs.adapters import ACCEPTANCE, save_adapter
from eventspec.pairs.methods import substitute_of
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording
from eventspec.train.answered import answered
from eventspec.train.answers import LONGEST
from eventspec.train.data import Branch, Clips, Questions, drawn
from eventspec.train.frozen import FrozenTarget
from eventspec.train.loop import Checkpoint, Report, Stage, note_run, run_stage
from eventspec.train.models import Sampler, autocast, initialise
from eventspec.train.processes import ALONE, Processes

Judged = tuple[int, tuple[float, ...], bool]
"""The number of a recording, what is known of an answer about it, and whether it is the target's."""
PHASES = ("alignment", "acceptance", "end-to-end")
TEMPERATURE = 0.1
"""Of InfoNCE, over cosines."""


@dataclass(frozen=True)
class Preset:
    """Clips that the target answers, in training and held out; a stage whose seconds are those of each adapter, the phases'
    shares of them; questions packed behind a recording."""

    answered: int
    held_out: int
    stage: Stage
    shares: tuple[float, ...]
    packed: int


PRESETS = {
    "cpu": Preset(3000, 64, Stage("adapters", 900, 1.5e-3, 8), (0.1, 0.6, 0.3), 6),
    "gpu": Preset(20000, 64, Stage("adapters", 120, 1.5e-3, 64), (0.1, 0.6, 0.3), 6),
    "smoke": Preset(4, 2, Stage("adapters", 2, 1e-3, 2), (0.2, 0.4, 0.4), 2),
}


def check_phases(phases: Iterable[str]) -> tuple[str, ...]:
    """The phases in their order, all of them for none; BadInput for an unknown one."""
    wanted = tuple(phases)
    for phase in wanted:
        if phase not in PHASES:
            raise BadInput(f"phase '{phase}' is unknown: choose from {', '.join(PHASES)}")
    return tuple(phase for phase in PHASES if phase in wanted or not wanted)


class AdapterTraining(nn.Module):
    """Adapters between a frozen event tower and a frozen target, and their losses on a batch of clips: they share the tower's
    pass, and each has a pass of the target's language model."""

    def __init__(
        self,
        target: FrozenTarget,
        drafter: EventGpt,
        adapters: Mapping[str, Adapter],
        clips: Clips,
        answers: Mapping[int, list[Branch]],
        packed: int,
    ) -> None:
        super().__init__()
        self.adapters = nn.ModuleDict(adapters)
        self.target, self.clips, self.answers, self.packed = target, clips, answers, packed
        self._drafter = [drafter.requires_grad_(False).eval()]  # in a list: it is no part of what is trained and saved
        self.rng = np.random.default_rng(0)

    def losses(self, phase: str, index: object, progress: float) -> dict[str, Tensor]:
        """Of every adapter, under its name; what begins with `_` says how it does."""
        assert isinstance(index, np.ndarray)
        parts = dict[str, Tensor]()
        with autocast(self.target.device):
            layers = self.layers(self.clips, index)
            if phase == "alignment":
                wanted = self.wanted(index)
                for name, adapter in self._each():
                    parts |= self._aligned(name, adapter, self._read(adapter, layers), wanted)
                return parts
            branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
            for name, adapter in self._each():
                said = self.target.reads(adapter(self._read(adapter, layers)), branches)
                parts |= {name: said.teacher_loss(), f"_{name}_accuracy": said.accuracy()}
                if phase == "end-to-end":
                    share = said.accepted_share()
                    parts |= {f"{name} missed": 2 * (1 - share), f"_{name}_accepted": share.detach()}
        return parts

    def layers(self, clips: Clips, index: np.ndarray[Any, Any]) -> dict[int, Tensor]:
        """Pooled layers of the event tower by number, [B, T, C] each: all that any adapter reads."""
        (drafter,) = self._drafter
        read = tuple(sorted({layer for _, adapter in self._each() for layer in adapter.config.layers}))
        with torch.no_grad():
            classes = clips.column("classes", index).flatten(0, 1)
            found = pooled_layers(drafter, pixels_from_classes(classes).to(self.target.device), read)
        return dict(zip(read, found, strict=True))

    def wanted(self, index: np.ndarray[Any, Any]) -> Tensor:
        """What adapted rows should be, [B, images + tokens, D]: the target's own visual rows, for every event picture the mean
        over the places of the frame nearest in time, then for every place the mean over the frames."""
        (drafter,), model = self._drafter, self.target.model
        images = drafter.config.images
        with torch.no_grad():
            frames = self.clips.column("frames", index).numpy()
            pixels = torch.cat([pixels_from_frames(clip) for clip in frames]).to(self.target.device)
            rows = model.encode(pixels).unflatten(0, (len(index), -1, model.config.vision.tokens))
        count = rows.shape[1]
        nearest = [min(count - 1, round((image + 0.5) / images * count - 0.5)) for image in range(images)]
        return torch.cat((rows[:, nearest].mean(2), rows.mean(1)), 1)

    def _aligned(self, name: str, adapter: Adapter, layers: list[Tensor], wanted: Tensor) -> dict[str, Tensor]:
        inner = adapter.inner(layers)
        rows, spread = adapter.said(inner).float(), wanted.float().var()
        near = F.cosine_similarity(rows, wanted.float(), dim=-1).mean()
        parts = {name: F.mse_loss(rows, wanted.float()) / spread + 0.5 * (1 - near) + 0.1 * contrast(rows, wanted.float())}
        foreseen = adapter.foreseen(inner)
        if foreseen is not None:
            parts[f"{name} next"] = 0.5 * F.mse_loss(foreseen[:, :-1].float(), wanted[:, 1:].float()) / spread
        return {**parts, f"_{name}_cosine": near.detach()}

    def agreement(self, clips: Clips, answers: Mapping[int, list[Branch]]) -> dict[str, dict[str, float]]:
        """As `FrozenTarget.agreement`, of every adapter on held-out clips."""

        def rows(adapter: Adapter, index: np.ndarray[Any, Any]) -> Tensor:
            made: Tensor = adapter(self._read(adapter, self.layers(clips, index)))
            return made

        self.eval()
        found = {name: self.target.agreement(partial(rows, adapter), answers, self.packed) for name, adapter in self._each()}
        self.train()
        return found

    def _each(self) -> list[tuple[str, Adapter]]:
        return [(name, adapter) for name, adapter in self.adapters.items() if isinstance(adapter, Adapter)]

    @staticmethod
    def _read(adapter: Adapter, layers: Mapping[int, Tensor]) -> list[Tensor]:
        return [layers[layer] for layer in adapter.config.layers]


def contrast(rows: Tensor, wanted: Tensor) -> Tensor:
    """InfoNCE over the recordings of a batch: each row of [B, T, D] is to be nearer to its own of `wanted` than to those of
    other recordings at the same place."""
    near = torch.einsum("btd,ctd->tbc", F.normalize(rows, dim=-1), F.normalize(wanted, dim=-1)) / TEMPERATURE
    own = torch.arange(len(rows), device=rows.device).expand(rows.shape[1], -1)
    return F.cross_entropy(near.flatten(0, 1), own.flatten())


def train(
    pair: str,
    preset_name: str,
    kinds: list[str],
    out: Path,
    report: Report,
    phases: Iterable[str] = (),
    workers: int = 2,
    processes: Processes = ALONE,
) -> Path:
    """Train adapters of some kinds for a pair and write OUT/pair: the pair with them, the best first. Picks up where a run was
    interrupted, with any number of processes; the first of them does alone what is not training."""
    preset, folder, chosen = PRESETS[preset_name], folder_of(pair), check_phases(phases)
    target, drafter = load_video_llava(folder / "target"), load_eventgpt(folder / "drafter")
    with processes.first_ahead():
        between = {"target": fingerprint(target), "drafter": fingerprint(drafter)}
        note_run(out, {**between, "preset": preset_name, "adapters": kinds, "phases": list(chosen)})
        clips, answers = answered(folder, out, "train", preset.answered, report, workers)
        held_out, wanted = answered(folder, out, "calibration", preset.held_out, report, workers)
    torch.manual_seed(0)
    adapters = {kind: _begun(AdapterConfig.of(kind, drafter.config, target.config.language.hidden_size)) for kind in kinds}
    torch.manual_seed(1 + processes.rank)
    for model in (target, drafter):
        model.to(processes.device)
    frozen = FrozenTarget(target, Questions(Tokenizer.from_file(str(folder / "tokenizer.json"))))
    training = AdapterTraining(frozen, drafter, adapters, clips, answers, preset.packed).to(processes.device)
    log, before = out / "calibration.jsonl", None
    for phase in chosen:
        share = preset.shares[PHASES.index(phase)]
        stage = replace(preset.stage, name=phase, seconds=preset.stage.seconds * share * len(kinds))
        if before is not None and not Checkpoint(out, phase).path.exists():
            Checkpoint(out, before).require(training)
        sampler = Sampler(clips, stage.batch, 600 + PHASES.index(phase), sorted(answers), processes)
        losses, clipped = partial(training.losses, phase), list(adapters.values())
        run_stage(stage, training, sampler, losses, out, report, clipped=clipped, processes=processes)
        if processes.first:
            _note(log, phase, training.agreement(held_out, wanted))
        before = phase
    if not processes.first:
        return out / "pair"
    made = export(folder, adapters, (drafter, frozen), out, log)
    calibrate(made, kinds, held_out, wanted, report)
    return made


def _begun(config: AdapterConfig) -> Adapter:
    adapter = Adapter(config)
    initialise(adapter)
    return adapter


def _note(log: Path, phase: str, found: Mapping[str, Mapping[str, float]]) -> None:
    rounded = {kind: {name: round(value, 4) for name, value in figures.items()} for kind, figures in found.items()}
    with log.open("a") as file:
        file.write(json.dumps({"phase": phase, "adapters": rounded}) + "\n")


def export(folder: Path, adapters: Mapping[str, Adapter], models: tuple[EventGpt, FrozenTarget], out: Path, log: Path) -> Path:
    """A copy of the pair with the adapters in it, in the place of those of the same kinds; the one whose drafts are accepted
    longest stands first."""
    made, last = out / ".pair.part", json.loads(log.read_text().splitlines()[-1])
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(folder, made)
    known = made / "adapters/adapters.json"
    figures = {**(json.loads(known.read_text())["calibration"] if known.exists() else {}), **last["adapters"]}
    drafter, target = models[0].to("cpu"), models[1].model.to("cpu").eval()
    for kind, adapter in adapters.items():
        shutil.rmtree(made / "adapters" / kind, ignore_errors=True)
        save_adapter(adapter.cpu(), made / "adapters" / kind, drafter, target)
    write_text(known, json.dumps({"calibration": figures, "phase": last["phase"], "torch": torch.__version__}) + "\n")
    there = [path.name for path in sorted((made / "adapters").iterdir()) if path.is_dir()]
    best = sorted(there, key=lambda kind: -figures.get(kind, {}).get("leading", 0.0))
    PairFile.read(made).with_table("adapters", {kind: f"adapters/{kind}" for kind in best}).write()
    shutil.rmtree(out / "pair", ignore_errors=True)
    made.rename(out / "pair")
    return out / "pair"


@torch.inference_mode()
def calibrate(pair: Path, kinds: Iterable[str], clips: Clips, answers: Mapping[int, list[Branch]], report: Report) -> None:
    """Look at what each adapter answers from events alone, beside the target's own answers: the predictor of method skip-encode
    learns from one half of the clips, and its threshold comes from the other. Nothing is written where there is too little."""
    loaded = load_pair(pair, "one", fit=False)
    plain, rows = loaded.tokens.sampling(Sampling(max_new_tokens=LONGEST)), dict[str, list[Judged]]()
    substitutes = {kind: substitute_of(loaded.parts, kind) for kind in kinds}
    for number, known in sorted(answers.items()):
        clip = make_clip(split_seed("calibration", 0, number))
        assert clip.facts == clips.facts(number), "the clip is another one than the target was asked about"
        media = media_of(as_recording(clip, f"clip {number}"))
        for qa, branch in zip(questions(clip.facts, number), known, strict=True):
            for kind, substitute in substitutes.items():
                drafted = substitute.answer(media, qa.question, plain)
                rows.setdefault(kind, []).append((number, drafted.features, drafted.token_ids == branch.answer))
        report("calibrate", len(rows[kind]) / sum(map(len, answers.values())), {})
    for kind, judged in rows.items():
        save_calibrated(judged, pair / "adapters" / kind)


def save_calibrated(rows: Sequence[Judged], folder: Path) -> None:
    """Fit on the recordings of even numbers, and keep what that says of the others."""
    learned, judged = ([row for row in rows if row[0] % 2 == half] for half in (0, 1))
    try:
        predictor = Predictor.fit(FEATURES, [row[1] for row in learned], [row[2] for row in learned])
    except BadInput:
        return
    probabilities = predictor.probabilities([row[1] for row in judged])
    Calibrated(predictor, probabilities, np.array([not row[2] for row in judged])).save(folder / ACCEPTANCE)


def checked(kinds: Iterable[str]) -> list[str]:
    """Kinds, each once; BadInput for an unknown one."""
    return [check_kind(kind) for kind in dict.fromkeys(kinds)]
