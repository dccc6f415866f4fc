"""Tiny checkpoints in the published layouts, and the tokenizers in them: made on the spot, shared by the rooms' tests."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eventspec.lanes import Workers

# Tests run side by side: threads that wait for each other by spinning would take the cores from those they wait for. Read once,
# when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:  # what asks for more threads than one still gets them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what it runs in the background with interrupts ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SPELLED = (
    "▁ t h e ▁t he ▁the a n an ▁an ▁a i s is ▁is c r ▁c ar ▁car o w",
    "▁ e h t th ▁th ▁the a c r ▁c ca car o ▁o n ▁on w i s",
)
WORDS, OTHER_WORDS = (tuple(words.split()) for words in SPELLED)
CONTROLS = (("<unk>", 2), ("<s>", 3), ("</s>", 3))


def sentencepiece_bytes(words: Sequence[str], dummy_prefix: bool = True, algorithm: int = 2) -> bytes:
    """A SentencePiece model file: unk, bos, eos, 256 byte pieces, then these words, earlier ones first to be joined."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2]) + _varint(len(data)) + data

    def piece(text: str, score: float, kind: int) -> bytes:
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind))

    pieces = [piece(text, 0.0, kind) for text, kind in CONTROLS] + [piece(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
    pieces += [piece(word, -float(place), 1) for place, word in enumerate(words)]
    rules = b"\x18" + _varint(int(dummy_prefix)) + b"\x20\x00"
    return b"".join(pieces) + field(2, b"\x18" + _varint(algorithm) + b"\x98\x02\x01") + field(3, field(1, b"identity") + rules)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.fixture(scope="session")
def sentencepiece_model() -> Callable[..., bytes]:
    return sentencepiece_bytes


@pytest.fixture(scope="session")
def words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two vocabularies that overlap."""
    return WORDS, OTHER_WORDS


@dataclass(frozen=True)
class Folders:
    """An EventGPT folder of .bin shards with special event tokens beside a CLIP folder of other weights; a Video-LLaVA folder
    with the same text pieces, and one with others."""

    eventgpt: Path
    clip: Path
    video_llava: Path
    other: Path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("checkpoints")
    _write_eventgpt(root / "eventgpt")
    for name, words in (("video_llava", WORDS), ("other", OTHER_WORDS)):
        _write_video_llava(root / name, words)
    return Folders(root / "eventgpt/checkpoint", root / "eventgpt/clip", root / "video_llava", root / "other")


def _randomised(model: object, seed: int) -> None:
    import torch

    assert isinstance(model, torch.nn.Module)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.requires_grad_(False).eval().named_parameters():
        parameter.normal_(0.0, 0.3 if "language" in name else 0.15, generator=generator)
        if "norm" in name and not name.endswith("bias"):
            parameter.add_(1.0)


def _write_eventgpt(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from eventspec.models.eventgpt import EventGpt, EventGptConfig, save_eventgpt
    from eventspec.nn import ClipConfig, LlamaConfig

    rows = 3 + 256 + len(WORDS) + 2  # <ev_start> and <ev_end>
    language = LlamaConfig(rows, 48, 64, 2, 3, 3, max_position_embeddings=512)
    model = EventGpt(EventGptConfig(ClipConfig(32, 64, 3, 2, 28, 14), language))
    _randomised(model, 3)
    checkpoint = folder / "checkpoint"
    save_eventgpt(model, checkpoint, {"bos_token_id": 1, "eos_token_id": 2})
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # what old versions saved
    names = sorted(tensors)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, kept in halves.items():
        torch.save({name: tensors[name] for name in kept}, checkpoint / file)
    table = {name: file for file, kept in halves.items() for name in kept}
    (checkpoint / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    (checkpoint / "clip").rename(folder / "clip")
    ours = "model.visual_tower.visual_tower."
    tower = {name.removeprefix(ours): t + 0.1 for name, t in tensors.items() if name.startswith(ours)}
    save_file(tower, folder / "clip/model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    del config["event_images"]
    config |= {"mm_use_im_start_end": True, "mm_use_im_patch_token": False}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "tokenizer.model").write_bytes(sentencepiece_bytes(WORDS))
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_video_llava(folder: Path, words: Sequence[str]) -> None:
    from tokenizers import AddedToken

    from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig, save_video_llava
    from eventspec.nn import ClipConfig, LlamaConfig
    from eventspec.text.sentencepiece_file import read_pieces, tokenizer_of

    base = 3 + 256 + len(words)
    language = LlamaConfig(base + 13, 48, 64, 2, 4, 2, max_position_embeddings=512)
    config = VideoLlavaConfig(ClipConfig(32, 64, 3, 2, 28, 14), language, frames=8, video_token=base + 1, image_token=base)
    model = VideoLlava(config)
    _randomised(model, 4)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": base + 2, "image_token_id": base, "video_token_id": base + 1}
    save_video_llava(model, folder, ids)
    (folder / "pieces").write_bytes(sentencepiece_bytes(words))
    tokenizer = tokenizer_of(read_pieces(folder / "pieces"), legacy=False, added=[])
    (folder / "pieces").unlink()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<image>", "<video>", "<pad>")])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session", autouse=True)
def one_start() -> Iterator[None]:
    """A training would start its process again, with another allocator, in the place of the tests. (The variable that keeps it
    from that is not set here: with it every process maps large tensors anew, which took a fifth of the tests' time.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", lambda *program: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def default_costs() -> Iterator[None]:
    """Pairs are loaded with the costs that the code names: what a busy machine measures would be another one in every run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventspec.pairs.loading.fitted", lambda pair: pair)
        yield


@pytest.fixture(scope="session", autouse=True)
def bundled_prior() -> Iterator[None]:
    """The bundled pair's text prior is read once, which is more than half of what loading the pair takes; drafting leaves it as
    it is. Every other one is read as usual."""
    from eventspec.drafters import TextPrior
    from eventspec.pairs.pair_file import DATA

    bundled, read = DATA / "pairs/nano/prior.json", TextPrior.load
    kept = cache(read)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextPrior, "load", staticmethod(lambda path: (kept if path == bundled else read)(path)))
        yield


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hangs waits here; opened at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def two() -> Iterator[Workers]:
    """Two lanes; their threads end with the test."""
    from eventspec.lanes import Workers

    lanes = Workers("two")
    yield lanes
    lanes.close()
