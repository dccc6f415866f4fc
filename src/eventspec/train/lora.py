"""The recipe of low-rank updates (LoRA, arXiv 2106.09685, through peft): a pair's event drafter learns to say what its target
says. Its own weights stay; what is written is an event drafter with the updates merged in, beside the pair's own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.models.eventgpt import EventGpt, save_with_weights
from eventspec.models.weights import fingerprint
from eventspec.pairs.pair_file import PairFile
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.data import WORKERS, Branch, Index, PixelSource
from eventspec.train.frozen import AnswerTraining, Branches, FrozenDrafter, Said, as_read, said_of
from eventspec.train.loop import PROVENANCE, Report, Stage, add_part
from eventspec.train.material import Models, material_of
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes

NAME = "lora"
"""What a pair calls the drafter with the updates."""
FOLDER = f"drafter_{NAME}"
FIGURES = f"{FOLDER}/{PROVENANCE}"
UPDATED = r"language\.layers\.\d+\.(qkv|out|gate_up|down)"
"""The products that get an update: all of the language model's layers. The event tower stays."""
LARGEST = 1024
"""Bound of a rank."""


PRESETS = presets_of(
    {
        "cpu": TrainingPreset(1500, 64, Stage(NAME, 240, 2e-3, 8), 6),
        "smoke": TrainingPreset(4, 2, Stage(NAME, 0, 2e-3, 2, steps=4), 2),
    }
)


def check_rank(rank: int) -> int:
    """The rank itself; BadInput outside 1 to LARGEST."""
    if not 1 <= rank <= LARGEST:
        raise BadInput(f"rank {rank} is none: low-rank updates have a rank of 1 to {LARGEST}")
    return rank


def check_peft() -> None:
    """BadInput where peft is not installed."""
    if find_spec("peft") is None:
        raise BadInput("low-rank updates need peft: pip install 'eventspec[lora]'")


class LowRankTraining(AnswerTraining):
    """An event drafter with low-rank updates of its language model."""

    def __init__(
        self,
        drafter: FrozenDrafter,
        rank: int,
        clips: PixelSource,
        answers: Mapping[int, list[Branch]],
        packed: int,
    ) -> None:
        from peft import LoraConfig, LoraModel  # takes seconds

        super().__init__(clips, answers, packed)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=UPDATED)
        self.updates = LoraModel(drafter.model, config, NAME)
        self.drafter = drafter
        for parameter in self.parameters():
            if parameter.requires_grad:  # late steps are too small for the bfloat16 that the drafter may be in
                parameter.data = parameter.data.float()

    @property
    def learned(self) -> int:
        """How many parameters the updates have."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    def said(self, clips: PixelSource, index: Index, branches: Branches) -> Said:
        hidden, _, packed = self.drafter.reads(clips, index, branches)
        return said_of(self.drafter.model.language.logits(hidden), packed, as_read(branches))

    def merged(self) -> EventGpt:
        """The event drafter with its updates in its weights, fp32, on the CPU; this training is over then."""
        model = self.updates.to("cpu", torch.float32).merge_and_unload()
        assert isinstance(model, EventGpt)
        return model.eval()


def train(
    pair: str,
    size: Preset,
    rank: int,
    out: Path,
    report: Report,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    given: Given | None = None,
) -> Path:
    """Train low-rank updates of a pair's event drafter and write OUT/pair: the pair with the drafter that they make. Picks up
    where a run was interrupted, with any number of processes. BadInput without peft."""
    check_peft()
    check_rank(rank)
    preset = preset_of(PRESETS, size)

    def begin(models: Models) -> dict[str, object]:
        return {"target": fingerprint(models.ends), "drafter": fingerprint(models.events), "rank": rank}

    material = material_of(pair, preset, out, report, given, workers, processes, begin)
    drafter, learned = material.events, material.learned
    torch.manual_seed(0)
    device = material.devices(processes)[1]
    events = FrozenDrafter(drafter.to(device), material.drafter_before)
    training = LowRankTraining(events, rank, learned.source, learned.answers, preset.packed).to(device)
    found = material.teach(training, material.fitting(preset.stage, processes), 700, out, report, processes)
    if not processes.first:
        return out / "pair"
    about = {"rank": rank, "parameters": training.learned, "seconds": preset.stage.seconds}
    return export(material.file, training.merged(), {**found, **about}, out)


def export(file: PairFile, drafter: EventGpt, about: Mapping[str, Any], out: Path) -> Path:
    """The pair with the drafter in it, in the place of an earlier one of low rank."""

    def write(place: Path) -> None:
        save_with_weights(drafter, file.place("drafter"), place)
        if file.load is None:  # whose models share a tokenizer
            shutil.copy(file.place("tokenizer"), place / "tokenizer.json")

    return add_part(file, out, FOLDER, write, about, lambda made: made.listing("drafters", NAME, FOLDER))
