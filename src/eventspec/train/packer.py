"""The recipe of a packer: it learns to make few visual rows from which the frozen target still gives its own answers.

The teacher is the target on all of its rows. It has spoken before: the answers on disk carry its top log-probabilities, so only
the student runs, the same language model on packed rows, and a step costs a fraction of the teacher's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from eventspec.compress import Packer, PackerConfig
from eventspec.models.embedded import pixels_from_frames
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.pairs.packers import save_packer
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.train.answered import Preset, answered
from eventspec.train.data import WORKERS, Branch, Clips, Questions, drawn
from eventspec.train.frozen import FrozenTarget, Said
from eventspec.train.loop import Checkpoint, Report, Stage, run_stage
from eventspec.train.models import Sampler, autocast, initialise

PRESETS = {
    "cpu": Preset(3000, 32, Stage("packer", 720, 1e-3, 8), 4),
    "smoke": Preset(4, 2, Stage("packer", 2, 1e-3, 2), 2),
}


class PackerTraining(nn.Module):
    """A packer before a frozen target, and its loss on a batch of clips."""

    def __init__(
        self, target: FrozenTarget, packer: Packer, clips: Clips, answers: Mapping[int, list[Branch]], packed: int
    ) -> None:
        super().__init__()
        self.target, self.packer, self.clips, self.answers, self.packed = target, packer, clips, answers, packed
        self.rng = np.random.default_rng(0)

    def losses(self, index: object, progress: float) -> dict[str, Tensor]:
        """teacher: cross-entropy with the target's own distribution; `_accuracy`: how often its own token comes first."""
        assert isinstance(index, np.ndarray)
        branches = [drawn(self.answers[int(i)], self.packed, self.rng) for i in index]
        with autocast(self.target.device):
            said = self.target.reads(self.rows(self.clips, index), branches)
            return {"teacher": said.teacher_loss(), "_accuracy": said.accuracy()}

    def rows(self, clips: Clips, index: np.ndarray[Any, Any]) -> Tensor:
        """Packed rows [B, T, D] of clips."""
        model, frames = self.target.model, clips.column("frames", index).numpy()
        with torch.no_grad():
            pixels = torch.cat([pixels_from_frames(clip) for clip in frames]).to(self.target.device)
            layers = model.tower.outputs(pixels, self.packer.config.layers)
        rows: Tensor = self.packer(layers).flatten(0, 1).unflatten(0, (len(index), -1))
        return rows

    def agreement(self, clips: Clips, answers: Mapping[int, list[Branch]]) -> dict[str, float]:
        """As `FrozenTarget.agreement`, on held-out clips."""

        def saying(index: np.ndarray[Any, Any], branches: list[list[Branch]]) -> Said:
            return self.target.reads(self.rows(clips, index), branches)

        return self.target.agreement(saying, answers, self.packed)


def train(pair: str, preset_name: str, scale: int, out: Path, report: Report, workers: int = WORKERS) -> Path:
    """Train a packer for a pair's target and write OUT/pair: the pair with it. Picks up where a run was interrupted."""
    preset, folder = PRESETS[preset_name], folder_of(pair)
    target = load_video_llava(folder / "target")
    packer = Packer(PackerConfig.of(target.config, scale), target.config)
    clips, answers = answered(folder, out, "train", preset.answered, report, workers)
    held_out, wanted = answered(folder, out, "calibration", preset.held_out, report, workers)
    torch.manual_seed(0)
    initialise(packer)
    packer.begin_as(target)
    target.to("cuda" if torch.cuda.is_available() else "cpu")
    frozen = FrozenTarget(target, Questions(Tokenizer.from_file(str(folder / "tokenizer.json"))))
    training = PackerTraining(frozen, packer, clips, answers, preset.packed).to(frozen.device)
    stage = Stage(f"packer-{scale}", preset.stage.seconds, preset.stage.rate, preset.stage.batch)
    log = out / f"{stage.name}-calibration.jsonl"

    def report_step(name: str, progress: float, figures: dict[str, float]) -> None:
        if figures.get("step", 1) % 200 == 0:
            _note(log, {"step": figures["step"], "progress": round(progress, 4)}, training.agreement(held_out, wanted))
        report(name, progress, figures)

    if not log.exists():
        _note(log, {"step": 0}, training.agreement(held_out, wanted))
    run_stage(stage, training, Sampler(clips, stage.batch, 500, sorted(answers)), training.losses, out, report_step)
    Checkpoint(out, stage.name).require(training)
    _note(log, {"step": -1}, training.agreement(held_out, wanted))
    return export(folder, packer, target.to("cpu").eval(), out, log)


def _note(log: Path, where: dict[str, float], found: dict[str, float]) -> None:
    with log.open("a") as file:
        file.write(json.dumps({**where, **{name: round(value, 4) for name, value in found.items()}}) + "\n")


def export(folder: Path, packer: Packer, target: VideoLlava, out: Path, log: Path) -> Path:
    """A copy of the pair with the packer in it; packers of other scales stay where they are of this target."""
    made, place = out / ".pair.part", f"packers/{packer.config.scale}"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(folder, made)
    shutil.rmtree(made / place, ignore_errors=True)
    save_packer(packer.cpu(), made / place, target)
    first, *rows = log.read_text().splitlines()
    provenance = {"before": json.loads(first), "calibration": json.loads(rows[-1]), "torch": torch.__version__}
    (made / place / "provenance.json").write_text(json.dumps(provenance) + "\n")
    listed = {path.name: f"packers/{path.name}" for path in sorted((made / "packers").iterdir())}
    PairFile.read(made).with_table("packers", listed).write()
    shutil.rmtree(out / "pair", ignore_errors=True)
    made.rename(out / "pair")
    return out / "pair"
