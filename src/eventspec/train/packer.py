"""The recipe of a packer: it learns to make few visual rows from which the frozen target still gives its own answers.

The teacher is the target on all of its rows. Its answers on disk carry its top log-probabilities, so only the student runs, the
same language model on packed rows, and a step costs a fraction of the teacher's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eventspec.compress import Packer, PackerConfig
from eventspec.files import write_text
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.pairs.trained import save_packer
from eventspec.train.answers import TrainingPreset, answered
from eventspec.train.data import WORKERS, Branch, Index, PixelSource, Questions, shuffled
from eventspec.train.frozen import AnswerTraining, Branches, FrozenTarget, Said
from eventspec.train.loop import Calibration, Report, Stage, changed_copy, rounded, run_stage
from eventspec.train.models import initialise
from eventspec.train.processes import ALONE

PRESETS = {
    "cpu": TrainingPreset(3000, 32, Stage("packer", 720, 1e-3, 8), 4),
    "smoke": TrainingPreset(4, 2, Stage("packer", 0, 1e-3, 2, steps=4), 2),
}


class PackerTraining(AnswerTraining):
    """A packer before a frozen target."""

    def __init__(
        self, target: FrozenTarget, packer: Packer, clips: PixelSource, answers: Mapping[int, list[Branch]], packed: int
    ) -> None:
        super().__init__(target, clips, answers, packed)
        self.packer = packer

    def said(self, clips: PixelSource, index: Index, branches: Branches) -> Said:
        return self.target.reads(self.rows(clips, index), branches)

    def rows(self, clips: PixelSource, index: Index) -> Tensor:
        """Packed rows [B, T, D] of clips."""
        with torch.no_grad():
            layers = self.target.model.tower.outputs(clips.frames(index).to(self.target.device), self.packer.config.layers)
        rows: Tensor = self.packer(layers).flatten(0, 1).unflatten(0, (len(index), -1))
        return rows


def train(pair: str, preset_name: str, scale: int, out: Path, report: Report, workers: int = WORKERS) -> Path:
    """Train a packer for a pair's target and write OUT/pair: the pair with it. Picks up where a run was interrupted."""
    preset, folder = PRESETS[preset_name], folder_of(pair)
    target = load_video_llava(folder / "target")
    packer = Packer(PackerConfig.of(target.config, scale), target.config)
    clips, answers = answered(folder, out, "train", preset.answered, report, workers)
    held_out, wanted = answered(folder, out, "calibration", preset.held_out, report, workers)
    torch.manual_seed(0)
    initialise(packer).begin_as(target)
    target.to(ALONE.device)
    frozen = FrozenTarget(target, Questions.of_pair(folder).prefix())
    training = PackerTraining(frozen, packer, clips, answers, preset.packed).to(frozen.device)
    stage = replace(preset.stage, name=f"packer-{scale}")
    calibration = Calibration(
        lambda: rounded(training.agreement(held_out, wanted)), out / f"{stage.name}-calibration.jsonl", every=200
    )
    before = calibration.note_first()
    batches = shuffled(sorted(answers), stage.batch, 500)
    run_stage(stage, training, batches, training.losses, out, calibration.noting(report))
    figures = {"before": before, "calibration": calibration.note({"step": -1})}
    return export(folder, packer, target.to("cpu").eval(), out, figures)


def export(folder: Path, packer: Packer, target: VideoLlava, out: Path, figures: Mapping[str, Any]) -> Path:
    """A copy of the pair with the packer in it; packers of other scales stay where they are of this target."""
    with changed_copy(folder, out) as made:
        place = made / f"packers/{packer.config.scale}"
        shutil.rmtree(place, ignore_errors=True)
        save_packer(packer.cpu(), place, target)
        write_text(place / "provenance.json", json.dumps({**figures, "torch": torch.__version__}) + "\n")
        listed = {path.name: f"packers/{path.name}" for path in sorted((made / "packers").iterdir())}
        PairFile.read(made).with_table("packers", listed).write()
    return out / "pair"
