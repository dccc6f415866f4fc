"""Folders that transformers opens, as targets: its model, processor and chat template, driven through `inputs_embeds`.

Only here is transformers imported, and only when such a folder is opened. Nothing is known about single architectures
(`hf_prompt`): whether a model reads rows and trees rightly is measured on every load; what fails is refused or limited, with
the reason. torchvision is not used: pictures go through the processor's Pillow backend, one image a frame.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadCheckpoint, BadInput, EventspecError, Proposal, Verdict
from eventspec.errors import several
from eventspec.machine import SPREAD
from eventspec.models.checkpoint import Checkpoint, Stored, check_finite, without_memory
from eventspec.models.configuration import read_json
from eventspec.models.hf_placement import check_spread, placement
from eventspec.models.hf_prompt import HfPrompt, Prompter
from eventspec.models.hf_session import HfLanguage, HfSession, HfTarget, fresh_session
from eventspec.models.loading import LoadOptions, VisionLanguage
from eventspec.text import TokenSpace, Vocabulary

FRAMES = 8
"""Frames where no number is given and the context holds them twice."""
_PROBE_SIDE = 64
_PLACEHOLDER = re.compile(r"(image|video|audio|vision).*token_(id|index)$")
_REPLACED = re.compile(r"image_token_(id|index)$")
"""Of these the ones in whose place the rows of our frames stand. The others stand around them or for what is no input here:
they may be said."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest difference of two forwards that is rounding, as a share of the logits' spread."""
_COUNT = re.compile(r"(layers?|depths?|blocks|experts|num_labels)$")
_LAYERS, _LABELS, _SPARE = 128, 1 << 16, 1 << 24
"""Layers, labels and weights that may be made for nothing."""
_PARENTS = (-1, -1, 0, 1, 3)
_ACCEPTED = (1, 3, 4)


@dataclass(frozen=True)
class _Opened:
    """What transformers makes of a folder, and what its config says of it."""

    folder: Path
    model: Any
    processor: Any
    vocabulary: Vocabulary
    ends: tuple[int, ...]
    placeholders: tuple[int, ...]
    banned: tuple[int, ...]
    sliding: bool
    unused: list[str]

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that the language model reads."""
        found: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return found


def knows(model_type: object) -> bool:
    """Whether transformers, which must be installed, has a class for questions about pictures with this model_type."""
    names = _library("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return isinstance(model_type, str) and model_type in names


def load_hf(folder: Path, how: LoadOptions) -> VisionLanguage:
    """The model of a folder as a target; BadCheckpoint or BadInput, one line, for what is missing or cannot be done."""
    opened = _open(folder, how)
    target, _, notes = _measured(opened, how)
    read = {*opened.model.get_decoder().parameters(), opened.model.get_output_embeddings().weight}
    tokens = TokenSpace(opened.vocabulary, opened.ends[0], opened.ends[1:], opened.banned)
    size = sum(weight.nbytes for weight in read)
    return VisionLanguage(type(opened.model).__name__, target, tokens, "frames", opened.dtype, size, notes=notes)


def describe_hf(folder: Path) -> dict[str, Any]:
    """What a folder is and can do as a target. The weights are loaded, as stored: what it can do is measured."""
    opened = _open(folder, LoadOptions(dtype=None))
    target, limits, notes = _measured(opened, LoadOptions(dtype=None))
    config, language = opened.model.config, target.language
    rolled = "sliding window: full rows kept, chains only" if opened.sliding else "rolls back to any accepted path"
    return {
        "architecture": type(opened.model).__name__,
        "model_type": config.model_type,
        "weights": {
            "files": sorted(path.name for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind)),
            "parameters": opened.model.num_parameters(),
            "dtypes": str(opened.dtype).removeprefix("torch."),
        },
        "sees": {"media": "frames as images", **limits},
        "context": language.context or None,
        "cache": rolled,
        "drafts": "trees" if language.trees else "chains only",
        "vocabulary": opened.vocabulary.size,
        "embedding_rows": language.vocabulary,
        "placeholders": list(opened.placeholders),
        "banned_ids": len(opened.banned),
        "vocabulary_fingerprint": opened.vocabulary.fingerprint(),
        "lossless": True,
        "notes": list(notes),
    }


# ------------------------------------------------------------------------------------------------------- opening the folder
Answer = TypeVar("Answer")
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def _library(name: str) -> Any:
    """A module of transformers, imported only now. Its types are left alone: they differ between versions."""
    return importlib.import_module(name)


def _open(folder: Path, how: LoadOptions) -> _Opened:
    """Config, weights, processor and the ids in them; whatever transformers says against the folder becomes one line."""
    transformers = _library("transformers")
    path = folder / "config.json"
    stored: dict[str, Stored] = {}
    with suppress(BadCheckpoint):  # transformers says what is wrong with the files
        stored = Checkpoint(folder).at
    _check_counts(path, len(stored))
    config = _asked(path, lambda: transformers.AutoConfig.from_pretrained(folder, **_LOCAL))
    sliding = _sliding(path, config)
    processor = _processor(folder, config)
    vocabulary = Vocabulary(processor.tokenizer.backend_tokenizer)
    settings = {"dtype": "auto" if how.dtype is None else how.dtype, **placement(folder, how, stored)}
    opener = transformers.AutoModelForImageTextToText
    _check_sizes(path, config, opener, sum(math.prod(one.shape) for one in stored.values()))
    model, report = _asked(
        folder, lambda: opener.from_pretrained(folder, config=config, output_loading_info=True, **settings, **_LOCAL)
    )
    # transformers fills what is missing with random numbers and goes on.
    for what in ("missing_keys", "mismatched_keys"):
        if wrong := sorted(str(name) for name in report.get(what) or ()):
            found = f"{what.replace('_', ' ')} in the weights: {wrong[0]} ({len(wrong)} in all)"
            raise BadCheckpoint(f"{folder}: {found}: fetch them again")
    if "device_map" not in settings:
        model.to(how.device)
    check_spread(folder, model, how)
    check_finite(folder, model.requires_grad_(False).eval().named_parameters())
    ends = _ends(folder, model, processor)
    rows = len(model.get_output_embeddings().weight)
    known = {name: id for name, id in config.to_dict().items() if _PLACEHOLDER.match(name) and type(id) is int}
    replaced = {id for name, id in known.items() if _REPLACED.match(name) and 0 <= id < rows}
    banned = tuple(sorted(replaced - set(ends)))
    unused = sorted(report.get("unexpected_keys") or ())
    return _Opened(folder, model, processor, vocabulary, ends, tuple(sorted(set(known.values()))), banned, sliding, unused)


def _check_counts(path: Path, tensors: int) -> None:
    """BadCheckpoint for more layers, experts or labels than the files can have: transformers makes lists of them at once."""
    parts = [read_json(path)]
    while parts:
        for name, value in parts.pop().items():
            if isinstance(value, dict):
                parts.append(value)
            most = _LABELS if name == "num_labels" else max(_LAYERS, tensors)
            for count in value if isinstance(value, list) else [value]:
                if _COUNT.search(name) and type(count) is int and count > most:
                    raise BadCheckpoint(
                        f"{path}: {name} is {count}, the files have {tensors} tensors: they do not belong together"
                    )


def _check_sizes(path: Path, config: Any, opener: Any, found: int) -> None:
    """BadCheckpoint for a model far larger than the `found` weights: transformers would make room for all of it.
    What is a little larger lacks a tensor, and transformers says which."""
    with without_memory():
        wanted = sum(weight.numel() for weight in _asked(path, lambda: opener.from_config(config)).parameters())
    packed = 16 if getattr(config, "quantization_config", None) else 1  # numbers in one stored number, at most
    if found and wanted > 2 * packed * found + _SPARE:
        raise BadCheckpoint(
            f"{path}: it asks for {wanted:.3g} weights, the files have {found:.3g}: they do not belong together, fetch it again"
        )


def _asked(place: Path, ask: Callable[[], Answer]) -> Answer:
    """What transformers answers, without its warnings and bars; BadCheckpoint with the first line of its complaint."""
    try:
        with _quiet():
            return ask()
    except EventspecError:
        raise
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), "")
        raise BadCheckpoint(f"{place}: transformers cannot open it ({type(error).__name__}: {said[:200]})") from None


@contextmanager
def _quiet() -> Iterator[None]:
    logging = _library("transformers.utils.logging")
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _sliding(path: Path, config: Any) -> bool:
    """Whether some layers have a sliding window; BadCheckpoint for a cache that cannot forget what the rule refuses."""
    cache_utils = _library("transformers.cache_utils")
    layers = _asked(path, lambda: cache_utils.DynamicCache(config=config)).layers
    known = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
    chunked = getattr(config.get_text_config(decoder=True), "attention_chunk_size", None)
    other = [type(layer).__name__ for layer in layers if type(layer) not in known] or ["chunked attention"] * bool(chunked)
    if other:
        raise BadCheckpoint(f"{path}: its cache ({other[0]}) cannot be rolled back to what was accepted: it cannot be a target")
    return any(layer.is_sliding for layer in layers)


def _processor(folder: Path, config: Any) -> Any:
    """The folder's own processor on Pillow. Its video half, which needs torchvision, is left out; frames are images."""
    transformers = _library("transformers")
    # From its own module: under its public name 5.17 wants torchvision.
    pictures = _library("transformers.models.auto.image_processing_auto").AutoImageProcessor
    kind: Any = _library("transformers.models.auto.processing_auto").PROCESSOR_MAPPING.get(type(config), None)
    if kind is None or not {"tokenizer", "image_processor"} <= set(kind.get_attributes()):
        raise BadCheckpoint(
            f"{folder / 'config.json'}: transformers has no processor of text and images for {config.model_type}"
        )

    class Pictures(kind):  # type: ignore[misc]
        """The same processor; it would look for the class of its video half, and fail without torchvision."""

        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name == "video_processor" else super().check_argument_for_proper_class(name, argument)

    made = {
        "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(folder, config=config, **_LOCAL),
        "image_processor": lambda: pictures.from_pretrained(folder, backend="pil", **_LOCAL),
    }
    for needed in (("tokenizer.json", "tokenizer.model"), ("preprocessor_config.json", "processor_config.json")):
        if not any((folder / name).is_file() for name in needed):
            raise BadCheckpoint(
                f"{folder / needed[0]} is missing, and so is {needed[1]}: the folder is not a complete checkpoint"
            )
    parts = [_asked(folder, made[name]) if name in made else None for name in kind.get_attributes()]
    settings, _ = _asked(folder, lambda: kind.get_processor_dict(folder, local_files_only=True))
    processor = _asked(folder, lambda: Pictures.from_args_and_dict(parts, settings))
    if not hasattr(processor.tokenizer, "backend_tokenizer"):
        raise BadCheckpoint(f"{folder}: its tokenizer has no fast form (tokenizer.json): convert it first")
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    if not processor.chat_template:
        raise BadCheckpoint(f"{folder}: no chat template (chat_template.jinja): add the one the model was trained with")
    return processor


def _ends(folder: Path, model: Any, processor: Any) -> tuple[int, ...]:
    """Ids that end an answer, as transformers' `generate` takes them."""
    found = model.generation_config.eos_token_id
    found = processor.tokenizer.eos_token_id if found is None else found
    ids = tuple(found) if isinstance(found, list | tuple) else (found,)
    rows = len(model.get_input_embeddings().weight)
    if not ids or not all(type(id) is int and 0 <= id < rows for id in ids):
        wanted = f"wanted a token id below {rows}, the rows of the embedding"
        raise BadCheckpoint(f"{folder}: eos_token_id is {found!r} in generation_config.json and tokenizer, {wanted}")
    return ids


# ------------------------------------------------------------------------------------------------- what the model really does
def _measured(opened: _Opened, how: LoadOptions) -> tuple[HfTarget, dict[str, Any], tuple[str, ...]]:
    """The target with the limits that a small random picture shows, what it sees, and what the trace says of it."""
    name, model = type(opened.model).__name__, opened.model
    rows = len(model.get_input_embeddings().weight)
    text_config = model.config.get_text_config(decoder=True)
    context = 0 if how.allow_extrapolation else getattr(text_config, "max_position_embeddings", None) or 0
    # Without a config the cache keeps all rows of every layer: a sliding window is then the model's mask alone.
    language = HfLanguage(model, _library("transformers").DynamicCache, rows, context, trees=not opened.sliding)
    picture = np.random.default_rng(0).integers(0, 256, (1, _PROBE_SIDE, _PROBE_SIDE, 3), np.uint8)
    prompter = Prompter(opened.folder, model, opened.processor, opened.placeholders, opened.dtype, _quiet)

    def probe() -> tuple[HfPrompt, bool, bool]:
        nonlocal picture
        try:
            inputs = prompter.inputs("What is this?", picture)
        except BadInput:  # perhaps its chat template has another number of pictures
            if how.frames in (None, 1):
                raise
            picture = picture.repeat(how.frames, 0)
            inputs = prompter.inputs("What is this?", picture)
        own = model(**inputs, use_cache=False).logits[0, -1]
        if not own.max().isfinite():
            kind = str(opened.dtype).removeprefix("torch.")
            raise BadCheckpoint(f"{opened.folder}: {name}'s logits are not finite in {kind}: try dtype bfloat16 or float32")
        prompt = prompter.prompt(inputs)
        if not decodes(language, prompt, own.to(prompt.rows.device)):
            raise BadCheckpoint(
                f"{opened.folder}: {name} answers otherwise when its prompt comes as rows or its cache is cut back: "
                "it cannot be a target"
            )
        return prompt, language.trees and reads_trees(language, prompt), prompter.embeds_text_alone(picture)

    with torch.inference_mode():
        prompt, trees, reuses = _asked(opened.folder, probe)
    language, prompter = replace(language, trees=trees), replace(prompter, reuses=reuses)
    fitting = max(1, context // 2 // max(1, prompt.visual)) if context else FRAMES
    frames = min(FRAMES, fitting) if how.frames is None else how.frames
    limits = {
        "frames": frames,
        f"rows_per_{_PROBE_SIDE}x{_PROBE_SIDE}_frame": prompt.visual // len(picture),
        "position_rows": len(prompt.positions),
    }
    notes = []
    layers = Counter(str(next(layer.parameters()).device) for layer in model.get_decoder().layers)
    if len(layers) > 1 or how.device == SPREAD:
        places = ", ".join(f"{place} ({several(count, 'layer')})" for place, count in sorted(layers.items()))
        notes.append(f"the target is spread over {places}")
    if opened.sliding:
        notes.append("the target has a sliding window: drafts are cut to chains")
    elif not language.trees:
        notes.append("the target does not keep the branches of a tree apart: drafts are cut to chains")
    if not language.context:
        notes.append("the context is not enforced: beyond it times are meaningful, answers are not")
    if opened.unused:
        notes.append(f"transformers uses no tensor {opened.unused[0]} ({len(opened.unused)} such in all)")
    return HfTarget(language, prompter, frames, prompt), limits, tuple(notes)


def decodes(language: HfLanguage, prompt: HfPrompt, own: Tensor) -> bool:
    """Whether a prefill by rows in two parts ends with the logits float [V] of the model's own forward, and a refused chain
    leaves no trace in the cache."""
    session, tokens = _read_but_last(language, prompt), _tokens(language)
    if not _close(session.score(Proposal.empty()).logits[0], own):
        return False
    session.score(Proposal.chain(tokens[:3]))
    session.commit(Verdict.of(tokens=tokens[3:4]))
    return _close(session.score(Proposal.empty()).logits[0], _alone(language, prompt, tokens[3:4]))


def reads_trees(language: HfLanguage, prompt: HfPrompt) -> bool:
    """Whether every node of a tree gets the logits of its path alone, and an accepted branch leaves only itself in the
    cache."""
    session, tokens = _read_but_last(language, prompt), _tokens(language)
    scores = session.score(Proposal(np.array(tokens), np.array(_PARENTS)))
    for node in range(len(tokens)):
        path, at = list[int](), node
        while at >= 0:
            path.insert(0, tokens[at])
            at = _PARENTS[at]
        if not _close(scores.logits[node + 1], _alone(language, prompt, path)):
            return False
    said = [*(tokens[node] for node in _ACCEPTED), tokens[0]]
    session.commit(Verdict.of(tokens=said, path=_ACCEPTED))
    return _close(session.score(Proposal.empty()).logits[0], _alone(language, prompt, said))


def _read_but_last(language: HfLanguage, prompt: HfPrompt) -> HfSession:
    session = fresh_session(language, prompt)
    if len(prompt) > 1:
        session.read(len(prompt) - 1)
    return session


def _tokens(language: HfLanguage) -> list[int]:
    found: list[int] = np.random.default_rng(0).choice(language.vocabulary, len(_PARENTS), replace=False).tolist()
    return found


def _alone(language: HfLanguage, prompt: HfPrompt, tokens: Sequence[int]) -> Tensor:
    """Logits float [V] after the prompt and these tokens, without a mask of ours."""
    return _read_but_last(language, prompt).score(Proposal.chain(tokens)).logits[-1]


def _close(one: Tensor, other: Tensor) -> bool:
    spread = other.max() - other.min()
    return bool(((one - other).abs().max() <= TOLERANCE[other.dtype] * spread).item())
