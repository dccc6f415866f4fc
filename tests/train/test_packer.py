"""The packer's recipe: what is learned, how agreement is counted, and what is written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from eventspec.compress import Packer, PackerConfig
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.pairs import bundled, load_pair
from eventspec.pairs.pair_file import PairFile
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.train import frozen
from eventspec.train import packer as recipe
from eventspec.train.answers import target_answers
from eventspec.train.data import Branch, Clips, Questions
from eventspec.train.frozen import FrozenTarget

NANO = bundled()["nano"]


class OneClip(Clips):
    """As `train.data.Clips`, of one clip."""

    def __init__(self, frames: np.ndarray[Any, Any]) -> None:
        self.own = torch.from_numpy(frames)

    def column(self, name: str, index: np.ndarray[Any, Any]) -> torch.Tensor:
        assert name == "frames"
        return self.own.expand(len(index), -1, -1, -1, -1)


@pytest.fixture(scope="module")
def spoken() -> tuple[OneClip, dict[int, list[Branch]]]:
    """A clip, and the target's own answers to three questions about it."""
    clip = make_clip(split_seed("test", 31, 0))
    asked = Questions(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    texts = [qa.question for qa in questions(clip.facts, 0)][:3]
    return OneClip(clip.frames), {0: target_answers(load_video_llava(NANO / "target"), asked, clip.frames, texts)}


def training_of(spoken: Any, packed: int = 2) -> recipe.PackerTraining:
    target = load_video_llava(NANO / "target")
    packer = Packer(PackerConfig.of(target.config, 2), target.config)
    packer.begin_as(target)
    asked = Questions(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    return recipe.PackerTraining(FrozenTarget(target, asked.prefix()), packer, *spoken, packed)


class Whole(torch.nn.Module):
    """Makes the target's own rows, or rows of nothing."""

    def __init__(self, target: VideoLlava, share: float) -> None:
        super().__init__()
        self.config = PackerConfig.of(target.config, 2)
        self.target, self.share = target, share

    def forward(self, layers: list[torch.Tensor]) -> torch.Tensor:
        rows: torch.Tensor = self.target.projector(layers[-1]) * self.share
        return rows


def test_agreement_is_whole_on_all_rows_and_little_on_none(spoken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "autocast", lambda beside: torch.autocast("cpu", enabled=False))
    training = training_of(spoken)
    training.packer = Whole(training.target.model, 1.0)  # type: ignore[assignment]
    longest = sum(len(branch.answer) for branch in spoken[1][0]) / 3
    assert training.agreement(*spoken) == {"tokens": 1.0, "leading": longest, "answers": 1.0, "n_answers": 3}
    training.packer = Whole(training.target.model, 0.0)  # type: ignore[assignment]
    found = training.agreement(*spoken)
    assert found["answers"] < 1.0
    assert found["tokens"] < 1.0
    assert found["leading"] < longest


def test_only_the_packer_learns_and_it_does(spoken: Any) -> None:
    torch.manual_seed(0)
    training = training_of(spoken, packed=3)
    target = training.target.model
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    assert {id(p) for p in training.parameters()}.isdisjoint(id(p) for p in target.parameters())
    optimiser = torch.optim.AdamW(training.parameters(), lr=1e-3)
    said = []
    for _ in range(6):
        losses = training.losses(np.array([0]), 0.0)
        losses["teacher"].backward()
        said.append(float(losses["teacher"].detach()))
        optimiser.step()
        optimiser.zero_grad()
    assert said[-1] < said[0]
    assert all(torch.equal(before[name], parameter) for name, parameter in target.named_parameters())


def test_a_written_pair_lists_its_packers_beside_its_heads(tmp_path: Path) -> None:
    """And other tables stay what they were; another scale joins."""
    figures = {"before": {"step": 0, "tokens": 0.5}, "calibration": {"step": -1, "tokens": 0.9}}
    target, folder = load_video_llava(NANO / "target"), NANO
    for scale in (2, 4):
        packer = Packer(PackerConfig.of(target.config, scale), target.config)
        packer.begin_as(target)
        folder = recipe.export(PairFile.read(folder), packer, target, tmp_path / str(scale), figures)
    made, old = (tomllib.loads((at / "pair.toml").read_text()) for at in (folder, NANO))
    assert made.pop("packers") == {"2": "packers/2", "4": "packers/4"}
    old.pop("packers", None)
    assert made == old
    pair = load_pair(folder, "one")
    assert pair.with_compression("packer:4").method("compressed-target").target.lossless is False


@pytest.mark.long
def test_a_small_run_gives_a_pair_with_a_packer(tmp_path: Path) -> None:
    folder = recipe.train("nano", "smoke", 2, tmp_path, lambda *words: None)
    assert (folder / "packers/2/model.safetensors").stat().st_size < 1_000_000
