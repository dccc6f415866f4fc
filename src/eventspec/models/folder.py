"""A checkpoint folder of any architecture we know: what it is, and the model with its prompt, tokenizer and limits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventspec.core import BadCheckpoint
from eventspec.files import check_name
from eventspec.models import configuration as fields
from eventspec.models import eventgpt, generation_config, hf_target, video_llava
from eventspec.models.checkpoint import Opened
from eventspec.models.features import FeatureCache
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.models.shards import check_ours
from eventspec.text import TokenSpace, Vocabulary

_Architecture = tuple[Callable[[Path, LoadOptions], VisionLanguage], Callable[[Path], dict[str, Any]]]
"""Loads a folder, describes a folder."""
ANSWER_ROWS = 4096
"""Positions kept for text where the context is extrapolated."""


def load_folder(folder: Path, how: LoadOptions | None = None) -> VisionLanguage:
    """The model of a checkpoint folder; BadCheckpoint, one line, for what is missing, unknown or does not fit."""
    check_name(folder)
    how = how or LoadOptions()
    if _model_type(folder) in _KNOWN:
        check_ours(how.quantized, how.device)
    asked = {} if how.ignore_generation_config else generation_config.stored(folder)
    loaded = _architecture(folder)[0](folder, how)
    tokens, notes = generation_config.with_settings(loaded.tokens, asked, folder)
    return replace(loaded, tokens=tokens, notes=loaded.notes + notes)


def describe(folder: Path) -> dict[str, Any]:
    """What a checkpoint folder holds, for people and programs. All of it is checked: weights are read, and must be numbers."""
    found = _architecture(folder)[1](folder)
    generation_config.stored(folder)
    return found


def _architecture(folder: Path) -> _Architecture:
    found = _model_type(folder)
    if isinstance(found, str) and found in _KNOWN:
        return _KNOWN[found]
    problem = f"{folder / 'config.json'}: model_type is {found!r}: the architectures known here are {', '.join(_KNOWN)}"
    if importlib.util.find_spec("transformers") is None:
        raise BadCheckpoint(f"{problem}; others need transformers: pip install 'eventspec[hf]'")
    if not hf_target.knows(found):
        raise BadCheckpoint(f"{problem}, and those that this version of transformers asks about pictures")
    return hf_target.load_hf, hf_target.describe_hf


def check_weights(folder: Path, frames: int | None = None) -> None:
    """BadCheckpoint for a folder of no known architecture, and where a model of our own ones lacks weights, or has some that do
    not fit it; BadInput for more frames than its context holds. No weight is read."""
    _architecture(folder)
    if (found := _model_type(folder)) == eventgpt.MODEL_TYPE:
        eventgpt.open_eventgpt(folder)
    elif found == video_llava.MODEL_TYPE:
        config = video_llava.open_video_llava(folder).model.config
        video_llava.check_frames(config.frames if frames is None else frames, config, frames is None)


def _model_type(folder: Path) -> Any:
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder} is no folder: give the folder of a checkpoint, with its config.json")
    return fields.read_json(folder / "config.json").get("model_type")


# ---------------------------------------------------------------------------------------------------------------- EventGPT
def _load_eventgpt(folder: Path, how: LoadOptions) -> VisionLanguage:
    vocabulary = eventgpt.eventgpt_vocabulary(folder)
    model = eventgpt.load_eventgpt(folder, how.dtype, how.device, rows=vocabulary.size)
    pixels = eventgpt.EventPixels(folder, model.config.vision.image_size)
    encoder = eventgpt.eventgpt_encoder(model, vocabulary, pixels, bos_id(folder, model.config.language.vocab_size), how.compat)
    tokens = token_space(vocabulary, end_ids(folder, model.config.language.vocab_size), eventgpt.banned_ids(folder, vocabulary))
    return VisionLanguage.of("EventGPT", encoder, tokens, "events")


def _describe_eventgpt(folder: Path) -> dict[str, Any]:
    opened = eventgpt.open_eventgpt(folder)
    config, vocabulary = opened.model.config, eventgpt.eventgpt_vocabulary(folder)
    eventgpt.EventPixels(folder, config.vision.image_size)
    _check_ids(folder, vocabulary.size)
    inputs = {"event_images": config.images, "visual_rows": config.event_tokens, "image_size": config.vision.image_size}
    banned = len(eventgpt.banned_ids(folder, vocabulary))
    return _description("EventGPT", eventgpt.MODEL_TYPE, opened, vocabulary, banned, inputs)


# ------------------------------------------------------------------------------------------------------------- Video-LLaVA
def _load_video_llava(folder: Path, how: LoadOptions) -> VisionLanguage:
    opened = video_llava.open_video_llava(folder)
    config = opened.model.config
    frames = config.frames if how.frames is None else how.frames
    video_llava.check_frames(frames, config, how.allow_extrapolation)
    video_llava.check_processing(folder, config)
    vocabulary = video_llava.video_llava_vocabulary(folder, config)
    trained = config.language.max_position_embeddings
    needed = frames * config.vision.tokens + ANSWER_ROWS
    beyond = frames > video_llava.most_frames(config)
    model = (video_llava.open_video_llava(folder, needed) if beyond else opened).loaded(how.dtype, how.device)
    encoder = video_llava.video_llava_encoder(model, vocabulary, bos_id(folder, config.language.vocab_size), frames)
    if how.feature_bytes:
        encoder = encoder.keeping(FeatureCache(how.feature_bytes))
    note = f"{frames} frames lie beyond the context of {trained}: times are meaningful, answers are not"
    tokens = token_space(vocabulary, end_ids(folder, config.language.vocab_size), video_llava.banned_ids(config))
    return VisionLanguage.of("Video-LLaVA", encoder, tokens, "frames", (note,) if beyond else ())


def _describe_video_llava(folder: Path) -> dict[str, Any]:
    opened = video_llava.open_video_llava(folder)
    config = opened.model.config
    video_llava.check_processing(folder, config)
    vocabulary = video_llava.video_llava_vocabulary(folder, config)
    _check_ids(folder, config.language.vocab_size)
    inputs = {
        "frames": config.frames,
        "most_frames": video_llava.most_frames(config),
        "rows_per_frame": config.vision.tokens,
        "image_size": config.vision.image_size,
        "image_tower": "skipped" if any(name.startswith("image_tower.") for name in opened.checkpoint.at) else "absent",
    }
    banned = len(video_llava.banned_ids(config))
    return _description("Video-LLaVA", video_llava.MODEL_TYPE, opened, vocabulary, banned, inputs)


# -------------------------------------------------------------------------------------------------------------------- both
def token_space(vocabulary: Vocabulary, ends: tuple[int, ...], banned: Iterable[int]) -> TokenSpace:
    """What ids mean to a model; what ends an answer is never banned."""
    return TokenSpace(vocabulary, ends[0], ends[1:], tuple(token for token in banned if token not in ends))


def _check_ids(folder: Path, rows: int) -> None:
    """BadCheckpoint for a begin or an end that a model of so many rows cannot say."""
    bos_id(folder, rows)
    end_ids(folder, rows)


def bos_id(folder: Path, rows: int) -> int:
    """The id that begins a prompt, by config.json; of several the first. BadCheckpoint for one beyond the model's `rows`."""
    return _special_ids(folder / "config.json", "bos_token_id", (1,), rows)[0]


def _special_ids(path: Path, name: str, default: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The ids of a config file, or of its `text_config`, with the meaning `name`: as a rule one, in a list where there are
    several."""
    data = fields.read_json(path)
    text = data.get("text_config")
    value = {**data, **(text if isinstance(text, dict) else {})}.get(name)
    if value is None:
        return default
    found = tuple(value) if isinstance(value, list) and value else (value,)
    if not all(type(token) is int and 0 <= token < rows for token in found):
        raise BadCheckpoint(f"{path}: {name} is {value!r}, wanted a token id below {rows}, the rows of the embedding")
    return found


def end_ids(folder: Path, rows: int) -> tuple[int, ...]:
    """The ids that end an answer: generation_config.json's where it has some, as transformers' `generate` has it, or else
    config.json's.

    Where config.json's first one is among them it stays first: tokenizers are compared by it.
    """
    usual, path = _special_ids(folder / "config.json", "eos_token_id", (2,), rows), folder / "generation_config.json"
    found = _special_ids(path, "eos_token_id", usual, rows) if path.is_file() else usual
    first = usual[:1] if usual[0] in found else found[:1]
    return (*first, *(token for token in found if token not in first))


def _description(
    name: str, model_type: str, opened: Opened[Any], vocabulary: Vocabulary, banned: int, inputs: dict[str, Any]
) -> dict[str, Any]:
    opened.check_values()
    checkpoint = opened.checkpoint
    return {
        "architecture": name,
        "model_type": model_type,
        "weights": {
            "files": [path.name for path in checkpoint.paths],
            "bytes": sum(path.stat().st_size for path in checkpoint.paths),
            "tensors": len(checkpoint.at),
            **checkpoint.numbers,
        },
        "sees": inputs,
        "vocabulary": vocabulary.size,
        "text_pieces": vocabulary.text_size,
        "embedding_rows": opened.model.config.language.vocab_size,
        "banned_ids": banned,
        "vocabulary_fingerprint": vocabulary.fingerprint(),
        "lossless": True,
    }


_KNOWN: dict[str, _Architecture] = {
    eventgpt.MODEL_TYPE: (_load_eventgpt, _describe_eventgpt),
    video_llava.MODEL_TYPE: (_load_video_llava, _describe_video_llava),
}
