"""Low-rank updates of an event drafter: what learns, what stays, what is written, and what is refused."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from eventspec.ask import generate
from eventspec.core import BadInput
from eventspec.events.representations import red_blue_classes
from eventspec.models.eventgpt import load_eventgpt
from eventspec.models.video_llava import load_video_llava
from eventspec.pairs import bundled, load_pair
from eventspec.pairs.pair_file import PairFile
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording
from eventspec.train import frozen
from eventspec.train import lora as recipe
from eventspec.train.answers import target_answers
from eventspec.train.data import Branch, Clips, Questions
from eventspec.train.drafter import DistilledTraining
from eventspec.train.frozen import FrozenDrafter
from eventspec.train.models import autocast

NANO = bundled()["nano"]


class OneClip(Clips):
    """As `train.data.Clips`, of one clip."""

    def __init__(self, classes: np.ndarray[Any, Any]) -> None:
        self.classes = torch.from_numpy(classes)

    def column(self, name: str, index: np.ndarray[Any, Any]) -> torch.Tensor:
        assert name == "classes"
        return self.classes.expand(len(index), *self.classes.shape)


@pytest.fixture(scope="module")
def spoken() -> tuple[OneClip, dict[int, list[Branch]]]:
    """A clip, and the target's own answers to three questions about it."""
    clip = make_clip(split_seed("test", 61, 0))
    asked = Questions(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    texts = [qa.question for qa in questions(clip.facts, 0)][:3]
    events = as_recording(clip, "clip").events
    assert events is not None
    classes = red_blue_classes(events.slice(as_recording(clip, "clip").span), 5)
    return OneClip(classes), {0: target_answers(load_video_llava(NANO / "target"), asked, clip.frames, texts)}


def training_of(spoken: Any, rank: int = 4) -> recipe.LowRankTraining:
    torch.manual_seed(0)
    before = Questions.of_pair(NANO).prefix()
    drafter = load_eventgpt(NANO / "drafter")
    return recipe.LowRankTraining(FrozenDrafter(drafter, before), rank, *spoken, 3)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "autocast", lambda beside: torch.autocast("cpu", enabled=False))


def test_updates_learn_the_drafter_stays_and_merging_changes_nothing(spoken: Any) -> None:
    training, own = training_of(spoken), load_eventgpt(NANO / "drafter")
    layers, products = own.config.language.num_hidden_layers, ("qkv", "out", "gate_up", "down")
    sizes = [getattr(layer, product).weight.shape for layer in own.language.layers for product in products]
    assert training.learned == 4 * sum(map(sum, sizes)), "an update of rank 4 for every product, and nothing else"
    with torch.no_grad():
        before = training.said(spoken[0], np.array([0]), [spoken[1][0]]).logits
    optimiser, losses = torch.optim.AdamW([p for p in training.parameters() if p.requires_grad], lr=3e-3), []
    for _ in range(8):
        loss = training.losses(np.array([0]), 0.0)["teacher"]
        loss.backward()
        losses.append(float(loss.detach()))
        optimiser.step()
        optimiser.zero_grad()
    assert losses[-1] < losses[0]
    with torch.no_grad():
        learned = training.said(spoken[0], np.array([0]), [spoken[1][0]]).logits
    assert not torch.allclose(learned, before, atol=1e-2)
    merged = training.merged()
    changed = {name for name, tensor in merged.state_dict().items() if not torch.equal(tensor, own.state_dict()[name])}
    assert changed == {f"language.layers.{n}.{product}.weight" for n in range(layers) for product in products}
    with torch.no_grad():
        after = training.said(spoken[0], np.array([0]), [spoken[1][0]]).logits
    assert torch.allclose(after, learned, atol=1e-3)


def test_without_a_step_the_drafter_is_the_one_it_was(spoken: Any) -> None:
    merged, own = training_of(spoken).merged(), load_eventgpt(NANO / "drafter")
    assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in merged.state_dict().items())


def test_what_learns_is_fp32_beside_a_drafter_in_bfloat16(spoken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a ten thousandth of a weight is less than bfloat16 can tell."""
    monkeypatch.setattr(frozen, "autocast", autocast)
    before, drafter = Questions.of_pair(NANO).prefix(), load_eventgpt(NANO / "drafter", torch.bfloat16)
    training = recipe.LowRankTraining(FrozenDrafter(drafter, before), 4, *spoken, 3)
    learning = [parameter for parameter in training.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in learning} == {torch.float32}
    assert training.weight.dtype == torch.bfloat16
    training.losses(np.array([0]), 0.0)["teacher"].backward()
    assert any(bool(parameter.grad.any()) for parameter in learning if parameter.grad is not None)
    with torch.no_grad():
        for parameter in learning:
            parameter.fill_(0.003)
    whole, own = training.merged(), load_eventgpt(NANO / "drafter", torch.bfloat16)
    name = "language.layers.0.down.weight"
    added = whole.get_parameter(name) - own.get_parameter(name).float()
    assert float((added - 2 * 4 * 0.003**2).abs().max()) < 1e-7, "merged in fp32"


def test_a_distilled_drafter_learns_in_fp32(spoken: Any) -> None:
    drafter = load_eventgpt(NANO / "drafter", torch.bfloat16)
    training = DistilledTraining(drafter, Questions.of_pair(NANO).prefix(), *spoken, 3)
    assert {parameter.dtype for parameter in training.parameters()} == {torch.float32}
    training.losses(np.array([0]), 0.0)["teacher"].backward()
    assert training.model.language.embed.weight.grad is not None


def test_the_written_pair_drafts_with_it_and_answers_the_same(spoken: Any, tmp_path: Path) -> None:
    about = {"before": {}, "calibration": {}, "rank": 4}
    folder = recipe.export(PairFile.read(NANO), training_of(spoken).merged(), about, tmp_path)
    assert tomllib.loads((folder / "pair.toml").read_text())["drafters"][recipe.NAME] == recipe.FOLDER
    assert json.loads((folder / recipe.FIGURES).read_text())["rank"] == 4
    recording, question = Recording.open("example:street"), "What is ahead?"
    with load_pair(folder, "one", fit=False) as pair:
        pair = pair.with_event_drafter(recipe.NAME)
        plain = generate(pair, recording, question, "autoregressive")
        drafted = generate(pair, recording, question, "cross-modal")
    assert drafted.token_ids == plain.token_ids
    assert any("ids are shared" in note for note in drafted.trace.notes)
    again = recipe.export(PairFile.read(folder), load_eventgpt(NANO / "drafter"), about, tmp_path / "again")
    assert list(tomllib.loads((again / "pair.toml").read_text())["drafters"]).count(recipe.NAME) == 1


@pytest.mark.parametrize("rank", [0, -1, recipe.LARGEST + 1])
def test_a_rank_that_is_none(rank: int) -> None:
    with pytest.raises(BadInput, match=f"rank {rank} is none"):
        recipe.check_rank(rank)


def test_without_peft_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(BadInput, match=r"pip install 'eventspec\[lora\]'"):
        recipe.check_peft()
