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


def halves(model: Any, embedded: str = TARGET) -> dict[str, str]:
    """All up to the language model's first layer on one device, the rest of it and the head on another. The embedding, and the
    layer that reads it, may be there too: so accelerate has it where a tower fills the first device."""
    parts = [f"model.{name}" for name, _ in model.model.named_children() if name != "language_model"]
    inner = [f"model.language_model.{name}" for name, _ in model.model.language_model.named_children() if name != "layers"]
    layers = [f"model.language_model.layers.{number}" for number in range(len(model.model.language_model.layers))]
    later = {"model.language_model.norm", *layers[1:], "lm_head"}
    made = {name: DRAFTER if name in later else TARGET for name in (*parts, *inner, *layers, "lm_head")}
    return {**made, "model.language_model.embed_tokens": embedded, layers[0]: embedded}


@pytest.fixture
def spread(checkpoint: Callable[[str], Path], anywhere: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pair]:
    """A pair whose target's layers lie on two devices, dispatched as `from_pretrained` does with a device map."""
    from accelerate import dispatch_model

    opened = hf_target._open

    def loaded(kind: str, embedded: str = TARGET) -> Pair:
        def dispatched(folder: Path, how: LoadOptions) -> Any:
            found = opened(folder, how)
            dispatch_model(found.model, halves(found.model, embedded), main_device=TARGET, force_hooks=True)
            return found

        monkeypatch.setattr(hf_target, "_open", dispatched)
        with far_device.far_devices():
            return load_folders(checkpoint(kind), method="autoregressive", how=LoadOptions(frames=2))

    return loaded


@pytest.mark.parametrize("embedded", [TARGET, DRAFTER])
@pytest.mark.parametrize("kind", ["qwen", pytest.param("llava", marks=pytest.mark.long)])
def test_the_answer_is_that_of_one_device(
    kind: str, embedded: str, checkpoint: Callable[[str], Path], spread: Callable[..., Pair], anywhere: list[str]
) -> None:
    recording = Recording.open(DATA / "clips/davis346_traffic_1s")
    plain = load_folders(checkpoint(kind), method="autoregressive", how=LoadOptions(frames=2))
    wanted = generate(plain, recording, QUESTION, "autoregressive", max_new_tokens=20).token_ids
    pair = spread(kind, embedded)
    anywhere.clear()
    found = generate(pair, recording, QUESTION, "autoregressive", max_new_tokens=20)
    assert found.token_ids == wanted
    noted = [note for note in found.trace.notes if note.startswith("the target is spread over")]
    assert noted == [f"the target is spread over {TARGET} (1 layer), {DRAFTER} (1 layer)"] * (embedded == TARGET)
    assert anywhere.count(f"{TARGET} {DRAFTER}") > 20


def test_a_head_drafts_for_it_on_one_device(
    checkpoint: Callable[[str], Path], spread: Callable[..., Pair], tmp_path: Path
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


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Two devices with so many bytes free, as far as torch says."""
    monkeypatch.setattr("eventspec.models.loading._check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return lambda free: monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free, free))


def test_a_model_of_our_own_is_not_spread(folders: Folders, cuda: Callable[[int], None]) -> None:
    with pytest.raises(BadInput, match="device auto spreads checkpoints that transformers opens over devices: name one"):
        load_folder(folders.video_llava, LoadOptions(device="auto"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_what_fits_no_devices_together_is_refused(
    dtype: torch.dtype | None, checkpoint: Callable[[str], Path], cuda: Callable[[int], None]
) -> None:
    """Before a weight is read; what fits gets the room that the devices have, and none on the host or on disk."""
    found = Checkpoint(checkpoint("qwen")).at
    how = LoadOptions(dtype=dtype, device="auto")
    needed = (2 if dtype == torch.bfloat16 else 4) * sum(math.prod(one.shape) for one in found.values())
    cuda(needed)
    made = hf_placement.placement(checkpoint("qwen"), how, found)
    assert made == {"device_map": "auto", "max_memory": dict.fromkeys(range(2), int(hf_placement.FREE * needed))}
    cuda(needed // 2)
    mend = "or choose --dtype bfloat16, int8 or nf4" if dtype == torch.float32 else "or choose --dtype int8 or nf4"
    with pytest.raises(BadInput, match=f"does not fit all CUDA devices together .*: free some of their memory, {mend}"):
        hf_placement.placement(checkpoint("qwen"), how, found)


def test_what_accelerate_puts_on_disk_is_refused(
    checkpoint: Callable[[str], Path], cuda: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It places whole blocks: all devices together may have room, and none of them for the last block."""
    folder, how = checkpoint("qwen"), LoadOptions(device="auto")
    model = hf_target._open(folder, LoadOptions()).model
    hf_placement.check_spread(folder, model, how)
    places = {name: "disk" if place == DRAFTER else "cpu" for name, place in halves(model).items()}
    kept = {"device_map": {**places, "lm_head": "cpu"}, "offload_folder": str(tmp_path)}
    monkeypatch.setattr(hf_target, "placement", lambda *asked: kept)
    with pytest.raises(BadInput, match="does not fit all CUDA devices together \\(its blocks cannot be shared out among them"):
        hf_target._open(folder, how)


def test_without_cuda_nothing_is_spread(checkpoint: Callable[[str], Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(BadInput, match="cannot be used"):
        LoadOptions(device="auto")
