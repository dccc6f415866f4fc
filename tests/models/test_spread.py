"""A target that transformers opens, spread over devices by accelerate: the same answers, and heads that learn and draft."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import far_device
import pytest
import torch
from far_device import DRAFTER, TARGET

from eventspec.ask import generate
from eventspec.core import BadInput
from eventspec.drafters.heads.checkpoint import TrainedHead, save_head
from eventspec.drafters.heads.eagle import EagleConfig, EagleHead
from eventspec.models import hf_placement, hf_target
from eventspec.models.checkpoint import Checkpoint
from eventspec.models.folder import load_folder
from eventspec.models.loading import LoadOptions
from eventspec.pairs import Pair, load_folders
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

if TYPE_CHECKING:  # never imported: other rooms may have a conftest of their own
    from conftest import Folders

QUESTION = "is the car on the way"


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What goes from layer to layer crosses between devices where accelerate moves it: here that is allowed, and counted."""
    moved = list[str]()

    def copied(source: torch.Tensor, goal: torch.device) -> None:
        if source.device != goal:
            moved.append(f"{source.device} {goal}")

    monkeypatch.setattr(far_device, "_check_copy", copied)
    far_device.on_lanes(monkeypatch)
    yield moved


def halves(model: Any) -> dict[str, str]:
    """All up to the language model's first layer on one device, the rest of it and the head on another."""
    parts = [f"model.{name}" for name, _ in model.model.named_children() if name != "language_model"]
    inner = [f"model.language_model.{name}" for name, _ in model.model.language_model.named_children() if name != "layers"]
    layers = [f"model.language_model.layers.{number}" for number in range(len(model.model.language_model.layers))]
    later = {"model.language_model.norm", *layers[1:], "lm_head"}
    return {name: DRAFTER if name in later else TARGET for name in (*parts, *inner, *layers, "lm_head")}


@pytest.fixture
def spread(checkpoint: Callable[[str], Path], anywhere: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Pair]:
    """A pair whose target's layers lie on two devices, dispatched as `from_pretrained` does with a device map."""
    from accelerate import dispatch_model

    opened = hf_target._open

    def dispatched(folder: Path, how: LoadOptions) -> Any:
        found = opened(folder, how)
        dispatch_model(found.model, halves(found.model), main_device=TARGET, force_hooks=True)
        return found

    def loaded(kind: str) -> Pair:
        monkeypatch.setattr(hf_target, "_open", dispatched)
        with far_device.far_devices():
            return load_folders(checkpoint(kind), method="autoregressive", how=LoadOptions(device="auto", frames=2))

    return loaded


@pytest.mark.parametrize("kind", ["qwen", pytest.param("llava", marks=pytest.mark.long)])
def test_the_answer_is_that_of_one_device(
    kind: str, checkpoint: Callable[[str], Path], spread: Callable[[str], Pair], anywhere: list[str]
) -> None:
    recording = Recording.open(DATA / "clips/davis346_traffic_1s")
    plain = load_folders(checkpoint(kind), method="autoregressive", how=LoadOptions(frames=2))
    wanted = generate(plain, recording, QUESTION, "autoregressive", max_new_tokens=20).token_ids
    pair = spread(kind)
    anywhere.clear()
    found = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=20)
    assert found.token_ids == wanted
    assert f"the target is spread over {TARGET}, {DRAFTER}" in found.trace.notes
    assert anywhere.count(f"{TARGET} {DRAFTER}") > 20


def test_a_head_drafts_for_it_on_one_device(
    checkpoint: Callable[[str], Path], spread: Callable[[str], Pair], tmp_path: Path
) -> None:
    """What it shares with the target comes to where the rows are: there the embedding is, the head is elsewhere."""
    recording = Recording.open(DATA / "clips/davis346_traffic_1s")
    plain = load_folders(checkpoint("qwen"), method="autoregressive", how=LoadOptions(frames=2))
    wanted = generate(plain, recording, QUESTION, "autoregressive", max_new_tokens=20).token_ids
    torch.manual_seed(3)
    head = EagleHead(EagleConfig(replace(plain.parts.ends.config, num_hidden_layers=1)))
    save_head(TrainedHead(head, ((0.3, 0.1, 0.1, 0.05),)), tmp_path / "eagle", plain.parts.ends)
    pair = spread("qwen")
    with far_device.far_devices():
        ends = pair.parts.ends
        pair = pair.with_head(str(tmp_path / "eagle")).drafting("always").with_policy(patience=1e5)
    assert {str(ends.embed.weight.device), str(ends.head.weight.device)} == {TARGET}
    assert str(ends.whole.lm_head.weight.device) == DRAFTER
    found = generate(pair, recording, QUESTION, "eagle", max_new_tokens=20)
    assert (found.token_ids, found.trace.given_up) == (wanted, [])
    assert found.trace.drafted > 0


def test_a_model_of_our_own_is_not_spread(folders: Folders) -> None:
    with pytest.raises(BadInput, match="device auto spreads checkpoints that transformers opens over devices: name one"):
        load_folder(folders.video_llava, LoadOptions(device="auto"))


def test_what_fits_no_devices_together_is_refused(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a weight is read; what fits gets the room that the devices have, and none on the host or on disk."""
    found = Checkpoint(checkpoint("qwen")).at
    how = LoadOptions(device="auto")
    needed = 4 * sum(math.prod(one.shape) for one in found.values())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (needed, needed))
    made = hf_placement.placement(checkpoint("qwen"), how, found)
    assert made == {"device_map": "auto", "max_memory": dict.fromkeys(range(2), int(hf_placement.FREE * needed))}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (needed // 2, needed))
    with pytest.raises(BadInput, match="does not fit all CUDA devices together"):
        hf_placement.placement(checkpoint("qwen"), how, found)


def test_without_cuda_all_of_it_is_on_the_cpu(checkpoint: Callable[[str], Path]) -> None:
    opened = hf_target._open(checkpoint("qwen"), LoadOptions(device="auto"))
    assert {parameter.device.type for parameter in opened.model.parameters()} == {"cpu"}
