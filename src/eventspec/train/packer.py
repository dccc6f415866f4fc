"""The recipe of a packer: it learns to make few visual rows from which the frozen target still gives its own answers.

The teacher is the target on all of its rows. Its answers on disk carry its top log-probabilities, so only the student runs, the
same language model on packed rows, and a step costs a fraction of the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eventspec.compress import Packer, PackerConfig
from eventspec.models.video_llava import VideoLlava
from eventspec.models.weights import fingerprint
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import save_packer
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.data import WORKERS, Branch, Index, PixelSource
from eventspec.train.frozen import AnswerTraining, Branches, FrozenTarget, Said
from eventspec.train.loop import PROVENANCE, Report, Stage, add_part
from eventspec.train.material import Models, material_of
from eventspec.train.models import initialise
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes

PRESETS = presets_of(
    {
        "cpu": TrainingPreset(3000, 32, Stage("packer", 720, 1e-3, 8), 4),
        "smoke": TrainingPreset(4, 2, Stage("packer", 0, 1e-3, 2, steps=4), 2),
    }
)


class PackerTraining(AnswerTraining):
    """A packer before a frozen target."""

    def __init__(
        self, target: FrozenTarget, packer: Packer, clips: PixelSource, answers: Mapping[int, list[Branch]], packed: int
    ) -> None:
        super().__init__(clips, answers, packed)
        self.target, self.packer = target, packer

    @property
    def weight(self) -> Tensor:
        return self.target.weight

    def said(self, clips: PixelSource, index: Index, branches: Branches) -> Said:
        return self.target.reads(self.rows(clips, index), branches)

    def rows(self, clips: PixelSource, index: Index) -> Tensor:
        """Packed rows [B, T, D] of clips."""
        with torch.no_grad():
            layers = self.target.model.tower.outputs(clips.frames(index).to(self.target.device), self.packer.config.layers)
        rows: Tensor = self.packer(layers).flatten(0, 1).unflatten(0, (len(index), -1))
        return rows


def train(
    pair: str,
    size: Preset,
    scale: int,
    out: Path,
    report: Report,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    given: Given | None = None,
) -> Path:
    """Train a packer for a pair's target and write OUT/pair: the pair with it. Picks up where a run was interrupted, with any
    number of processes. BadInput for a scale that the target's grid does not have."""
    preset = preset_of(PRESETS, size)

    def begin(models: Models) -> dict[str, object]:
        PackerConfig.of(models.target.config, scale)
        return {"target": fingerprint(models.target)}

    material = material_of(pair, preset, out, report, given, workers, processes, begin)
    target, learned = material.target, material.learned
    packer = Packer(PackerConfig.of(target.config, scale), target.config)
    torch.manual_seed(0)
    initialise(packer).begin_as(target)
    torch.manual_seed(1 + processes.rank)
    target.to(material.devices(processes)[0])
    frozen = FrozenTarget(target, material.before)
    training = PackerTraining(frozen, packer, learned.source, learned.answers, preset.packed).to(frozen.device)
    stage = replace(material.fitting(preset.stage, processes), name=f"packer-{scale}")
    found = material.teach(training, stage, 500, out, report, processes, every=200)
    if not processes.first:
        return out / "pair"
    return export(material.file, packer, target.to("cpu").eval(), out, found)


def place_of(scale: int) -> str:
    """Of a packer in its pair's folder."""
    return f"packers/{scale}"


def figures_at(scale: int) -> str:
    """In a pair's folder: what the packer of a scale reached on calibration clips."""
    return f"{place_of(scale)}/{PROVENANCE}"


def export(file: PairFile, packer: Packer, target: VideoLlava, out: Path, figures: Mapping[str, Any]) -> Path:
    """The pair with the packer in it; packers of other scales stay."""
    scale = packer.config.scale
    place = place_of(scale)
    return add_part(
        file,
        out,
        place,
        lambda folder: save_packer(packer.cpu(), folder, target),
        figures,
        lambda made: made.listing("packers", str(scale), place),
    )
