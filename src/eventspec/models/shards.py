"""The files of a checkpoint folder, checked as far as needs no torch: a damaged folder is named at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from eventspec.errors import BadCheckpoint, BadInput
from eventspec.files import read_json
from eventspec.machine import SPREAD

if TYPE_CHECKING:
    from eventspec.media import Modality

SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
EVENTGPT, VIDEO_LLAVA = OURS = "EventChat_llama", "video_llava"
"""The `model_type` of our own architectures."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def modality_of(checkpoint: Path) -> Modality:
    """What a checkpoint sees, as far as its config.json says so."""
    return "events" if read_json(checkpoint / "config.json").get("model_type") == EVENTGPT else "frames"


def check_ours(dtype: str | None, device: str | None) -> None:
    """BadInput for what only checkpoints that transformers opens have."""
    if dtype in ("nf4", "int8"):
        raise BadInput(f"dtype {dtype} is for checkpoints that transformers opens: choose float32, bfloat16 or float16")
    if device == SPREAD:
        raise BadInput(f"device {SPREAD} spreads checkpoints that transformers opens over devices: name one, such as cuda:0")


def check_files(folder: Path, tokenizer: bool = True) -> dict[str, Any]:
    """What config.json says; BadCheckpoint for a folder that lacks a file, or has one that is damaged or cut off."""
    data = read_json(folder / "config.json")
    for name in ("generation_config.json", "tokenizer_config.json", TOKENIZERS[0]):
        if (folder / name).is_file():
            read_json(folder / name)
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        first, second = TOKENIZERS
        raise BadCheckpoint(f"{folder / first} is missing, and so is {second}: the folder is not a complete checkpoint")
    for path in shards(folder):
        if path.suffix != ".bin":
            opened(path, "numpy")
    return data


def opened(path: Path, framework: Literal["numpy", "pt"]) -> Any:
    """A .safetensors file; the library checks its header: sizes, overlaps, holes."""
    try:
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadCheckpoint(f"{path} cannot be read as safetensors ({error}): fetch or train it again") from None


def shards(folder: Path) -> list[Path]:
    """The weight files of a folder: safetensors before .bin, by index, whole, or numbered without an index."""
    for whole in (SAFETENSORS, BIN):
        index = folder / f"{whole}.index.json"
        if index.is_file():
            return _indexed(index)
        if (folder / whole).is_file():
            return [folder / whole]
        stem, kind = whole.split(".")
        if numbered := sorted(folder.glob(f"{stem}-*-of-*.{kind}")):
            return _all_numbered(numbered)
    raise BadCheckpoint(f"{folder / SAFETENSORS} is missing, as is {BIN}, and there are no shards: copy the weights there")


def _indexed(index: Path) -> list[Path]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise BadCheckpoint(f"{index}: weight_map is no table of tensor names and files: fetch it again")
    paths = []
    for name in sorted(set(table.values())):
        if Path(name).name != name or name in ("", ".", ".."):
            raise BadCheckpoint(f"{index}: weight_map names {name!r}, which is no file in the folder: fetch it again")
        if not (index.parent / name).is_file():
            raise BadCheckpoint(f"{index.parent / name} is missing, {index.name} names it: fetch that shard")
        paths.append(index.parent / name)
    return paths


def _all_numbered(paths: list[Path]) -> list[Path]:
    """Shards without an index say how many they are."""
    places = [re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.\w+", path.name) for path in paths]
    there = {int(place[2]) for place in places if place}
    total = max((int(place[3]) for place in places if place), default=0)
    if absent := sorted(set(range(1, total + 1)) - there):
        raise BadCheckpoint(f"{paths[0].parent}: shard {absent[0]} of {total} is missing: fetch it")
    return paths
