"""EventGPT: event images through one CLIP tower, a projector and an adaptor, pooled over space and time, then a Llama; and what
it sees and reads: images, pixels, the prompt around them, its tokenizer.

Source: XduSyL/EventGPT @4680549; facts in its released code: last tower layer, CLS kept, no final norm, temporal rows before
spatial ones. `compat` repeats that code where it errs: an image ends at the last row and column that had an event, windows of
100 ms and more and of fewer events than images are refused, and the prompt is cut at 2048 rows.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eventspec.core import BadCheckpoint, BadInput, EventSlice
from eventspec.events.representations import red_blue
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, Opened, without_memory
from eventspec.models.pixels import CLIP_MEAN, CLIP_STD, Picture, pillow_pixels
from eventspec.models.prompt import EventEncoder, Vision, projected
from eventspec.models.shards import EVENTGPT
from eventspec.nn import ClipConfig, ClipViT, Llama, LlamaConfig, Projector
from eventspec.nn.linear import Linear
from eventspec.text import Vocabulary

MODEL_TYPE = EVENTGPT
RELEASED_WIDTH = 1024
"""Width of the tower where config.json has no `mm_hidden_size`."""
KNOWN_TOWERS = {
    "clip-vit-large-patch14-336": replace(fields.CLIP_LARGE, image_size=336),
    "clip-vit-large-patch14": fields.CLIP_LARGE,
}
"""Towers whose sizes are known by name: with their weights in the checkpoint, their folder is not needed."""
PLACE = "<event>"
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
COMPAT_ROWS = 2048
COMPAT_SPAN_US = 100_000


@dataclass(frozen=True)
class EventGptConfig:
    """Sizes; `images` is the number of equal-count slices of a window; without `adapted` there is no adaptor."""

    vision: ClipConfig
    language: LlamaConfig
    images: int = 5
    adapted: bool = True

    @property
    def event_tokens(self) -> int:
        """Rows of one window: one per image and one per tower row."""
        return self.images + self.vision.tokens


class EventGpt(nn.Module):
    """Tower, projector, adaptor, spatio-temporal pooling and language model."""

    def __init__(self, config: EventGptConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipViT(config.vision)
        self.projector = Projector(config.vision.hidden_size, config.language.hidden_size)
        width = config.language.hidden_size
        self.adaptor: Linear | nn.Identity = Linear(width, width) if config.adapted else nn.Identity()
        self.language = Llama(config.language)

    def encode(self, pixels: Tensor) -> Tensor:
        """Event images float [B * images, 3, S, S] -> event rows [B, event_tokens, D], temporal means first."""
        return projected(lambda features: self.pooled(self.adaptor(self.projector(features))), self.tower(pixels))

    def encode_for_drafts(self, pixels: Tensor) -> Tensor:
        """As `encode`, but for rounding: what follows the projector's activation is linear, so the means are taken before it,
        and a fifth of the rows goes through it."""

        def project(features: Tensor) -> Tensor:
            rows: Tensor = self.adaptor(self.projector.linear_2(self.pooled(self.projector.inner(features))))
            return rows

        return projected(project, self.tower(pixels))

    def pooled(self, features: Tensor) -> Tensor:
        """Features float [B * images, tokens, D] -> event rows [B, event_tokens, D]; means in the features' dtype."""
        features = features.unflatten(0, (-1, self.config.images))
        return torch.cat((features.mean(2), features.mean(1)), 1)


def sources(config: EventGptConfig) -> weights.Sources:
    """Tensor names of the released checkpoints."""
    adaptor = weights.linear_sources("adaptor", "model.feature_adaptor") if config.adapted else {}
    return {
        **weights.clip_sources(config.vision, "tower.", TOWER),
        **weights.linear_sources("projector.linear_1", "model.visual_projector.0"),
        **weights.linear_sources("projector.linear_2", "model.visual_projector.2"),
        **adaptor,
        **weights.llama_sources(config.language, "language.", "model.", HEAD),
    }


TOWER = "model.visual_tower.visual_tower.vision_model."
HEAD = "lm_head.weight"


def released_name(name: str) -> str:
    """A tensor's name as transformers 4.x wrote it; 5.x has no `vision_model.` in the tower."""
    short = TOWER.removesuffix("vision_model.")
    if name.startswith(short) and not name.startswith(TOWER):
        return TOWER + name.removeprefix(short)
    return name


def _tolerated(name: str) -> bool:
    """Computed buffers of older versions, and parts of the training code that inference never calls."""
    unused = ("model.query_embedder", "model.attention_layers.")
    return name.endswith((".position_ids", ".rotary_emb.inv_freq")) or name.startswith(unused)


def save_eventgpt(model: EventGpt, folder: Path, tokens: dict[str, int]) -> None:
    """Write a folder in EventGPT's layout: config.json, model.safetensors, and the tower's sizes in clip/config.json."""
    (folder / "clip").mkdir(parents=True, exist_ok=True)
    config = model.config
    weights.save(model, folder / "model.safetensors", sources(config))
    data = {
        "architectures": ["EventChatModel"],
        "model_type": MODEL_TYPE,
        "dtype": "float16",
        **fields.llama_json(config.language),
        "mm_visual_tower": "clip",
        "mm_hidden_size": config.vision.hidden_size,
        **({"event_feature_adaptor": True} if config.adapted else {}),
        "event_images": config.images,
        **tokens,
    }
    write_text(folder / "config.json", fields.pretty(data))
    clip = {"model_type": "clip_vision_model", **fields.clip_json(config.vision)}
    write_text(folder / "clip/config.json", fields.pretty(clip))


def save_with_weights(model: EventGpt, source: Path, folder: Path) -> None:
    """Write the checkpoint of a folder again with other weights: its config, tokenizer and tower's settings are the same."""
    data = fields.read_json(source / "config.json")
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(model, folder / "model.safetensors", sources(model.config))
    for path in source.iterdir():
        if path.is_file() and path.suffix in (".json", ".model", ".txt", ".jinja") and not path.name.endswith(".index.json"):
            shutil.copy(path, folder / path.name)
    if (tower := clip_folder(source, data)) is not None:
        (folder / "clip").mkdir(exist_ok=True)
        for name in ("config.json", "preprocessor_config.json"):
            if (tower / name).is_file():
                shutil.copy(tower / name, folder / "clip" / name)
        write_text(folder / "config.json", fields.pretty({**data, "mm_visual_tower": "clip"}))


# ----------------------------------------------------------------------------------------------------------------- loading
def load_eventgpt(
    folder: Path, dtype: torch.dtype | None = torch.float32, device: str = "cpu", rows: int | None = None
) -> EventGpt:
    """The model of a checkpoint folder; BadCheckpoint says what is missing, unknown, not supported or does not fit.

    dtype None keeps the file's. `rows` is the size of the tokenizer: like upstream, embedding and head are cut to it or get
    further rows (upstream's are random, ours are zero: never let them be said).
    """
    model = open_eventgpt(folder).loaded(dtype, device)
    if rows is not None and rows != model.config.language.vocab_size:
        _resize(model, rows)
    return model


def open_eventgpt(folder: Path) -> Opened[EventGpt]:
    """The model of a checkpoint folder without memory, and its checked tensors; errors as `load_eventgpt`."""
    data = fields.read_json(folder / "config.json")
    with fields.of_folder(folder):
        config = eventgpt_config(data, _tower_sizes(folder, data))
    with without_memory():
        model = EventGpt(config)
    checkpoint, wanted = Checkpoint(folder, released_name), sources(config)
    parts = [(checkpoint, wanted)]
    if not any(name.startswith(TOWER) for name in checkpoint.at):
        if (place := clip_folder(folder, data)) is None:
            raise BadCheckpoint(f"{folder} holds no tower: put the CLIP folder {data['mm_visual_tower']!r} in it or beside it")
        tower, ours = Checkpoint(place, _clip_name), weights.clip_sources(config.vision, "tower.", "vision_model.")
        whole = ("text_model.", "visual_projection.", "text_projection.", "logit_scale")  # a whole CLIP, not only its tower
        tower.check(model, ours, lambda name: _tolerated(name) or name.startswith(whole))
        wanted = {name: source for name, source in wanted.items() if name not in ours}
        parts = [(checkpoint, wanted), (tower, ours)]
    tied, assumed = config.language.tie_word_embeddings, fields.assumed(data, fields.LLAMA_DEFAULTS)
    checkpoint.check(model, wanted, lambda name: _tolerated(name) or (tied and name == HEAD), assumed)
    return Opened(model, parts)


def eventgpt_config(data: fields.Fields, vision: ClipConfig) -> EventGptConfig:
    """The sizes of a config.json around a tower; BadField names what cannot be or is not supported."""
    fields.require(data, "model_type", data.get("model_type") == MODEL_TYPE, repr(MODEL_TYPE))
    absent = "use_event_qformer" not in data  # its mere presence builds one
    fields.require(data, "use_event_qformer", absent, "no such field: the query former's code was never published")
    own = {"mm_hidden_size": RELEASED_WIDTH, **data}
    fields.require(own, "mm_hidden_size", own["mm_hidden_size"] == vision.hidden_size, f"the tower's {vision.hidden_size}")
    images = fields.whole({"event_images": 5, **data}, "event_images")
    # The adaptor is there when the field is, even as false: that is how the released code asks.
    return EventGptConfig(vision, fields.llama_config(data), images, "event_feature_adaptor" in data)


def clip_folder(folder: Path, data: fields.Fields) -> Path | None:
    """The folder that `mm_visual_tower` names: as it says, or of that name in the checkpoint's folder or beside it."""
    value = str(data.get("mm_visual_tower", ""))
    name = Path(value).name
    for place in (folder / value, folder.parent / value, folder / name, folder.parent / name):
        if name and (place / "config.json").is_file():
            return place
    return None


def _tower_sizes(folder: Path, data: fields.Fields) -> ClipConfig:
    tower = data.get("mm_visual_tower")
    fields.require(data, "mm_visual_tower", isinstance(tower, str) and tower != "", "the name of a CLIP folder")
    place, name = clip_folder(folder, data), Path(str(tower)).name
    if place is None and name in KNOWN_TOWERS:
        return KNOWN_TOWERS[name]
    if place is None:
        path = folder / name / "config.json"
        raise BadCheckpoint(f"{path} is missing: mm_visual_tower is {tower!r}, put that CLIP folder in {folder} or beside it")
    clip = fields.read_json(place / "config.json")
    with fields.of_folder(place):
        return fields.clip_config(fields.part(clip, "vision_config", clip))


def _clip_name(name: str) -> str:
    """A tower's tensor in a CLIP folder, with or without `vision_model.`."""
    tower = ("embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm.")
    return f"vision_model.{name}" if name.startswith(tower) else name


def _resize(model: EventGpt, rows: int) -> None:
    """Embedding and head with as many rows as the tokenizer has ids."""
    language = model.language
    tied, old = language.config.tie_word_embeddings, language.config.vocab_size
    for layer in (language.embed,) if tied else (language.embed, language.head):
        weight = layer.weight
        weight = weight[:rows] if rows < old else F.pad(weight, (0, 0, 0, rows - old))
        layer.weight = nn.Parameter(weight, requires_grad=False)
    if tied:
        language.head.weight = language.embed.weight
    language.config = replace(language.config, vocab_size=rows)
    model.config = replace(model.config, language=language.config)


# ------------------------------------------------------------------------------------------------------- what it sees and reads
def prompt(question: str) -> str:
    """The whole prompt (conversation eventgpt_v1); `<event>` stands for the event rows. No space at the end."""
    return f"{SYSTEM} USER: <ev_start>{PLACE}<ev_end>\n{question} ASSISTANT:"


def eventgpt_vocabulary(folder: Path) -> Vocabulary:
    """The checkpoint's tokenizer with the special event tokens that its config.json switches on, in upstream's order."""
    data = fields.read_json(folder / "config.json")
    tokens = ["<ev_patch>"] if data.get("mm_use_im_patch_token", True) else []
    if data.get("mm_use_im_start_end", False):
        tokens += ["<ev_start>", "<ev_end>"]
    return Vocabulary.of_folder(folder, first="tokenizer.model").with_special(tokens)


def banned_ids(folder: Path, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that no method may say: the placeholder of event rows, and those that have no row in the checkpoint."""
    rows = {**fields.LLAMA_DEFAULTS, **fields.read_json(folder / "config.json")}["vocab_size"]
    return tuple(i for i in range(vocabulary.size) if i >= rows or i == vocabulary.id_of("<ev_patch>"))


def prompt_ids(vocabulary: Vocabulary, question: str, bos: int) -> tuple[list[int], list[int]]:
    """Token ids before and after the event rows. Both parts are tokenised as texts of their own; BOS opens the first."""
    if PLACE in question:
        raise BadInput(f"the prompt contains {PLACE}, which stands for the recording: leave it out")
    before, after = prompt(question).split(PLACE)
    return [bos, *vocabulary.encode(before)], vocabulary.encode(after)


class EventPixels:
    """CLIP's processing of event images, with the settings of the tower's preprocessor_config.json."""

    def __init__(self, folder: Path, size: int) -> None:
        data = fields.read_json(folder / "config.json")
        place = clip_folder(folder, data)
        path = (place or folder) / "preprocessor_config.json"
        found = fields.read_json(path) if place is not None and path.is_file() else {}
        self.size, self.mean, self.std = size, found.get("image_mean", CLIP_MEAN), found.get("image_std", CLIP_STD)
        sides = {"size": ({"shortest_edge": size}, size), "crop_size": ({"height": size, "width": size}, size)}
        with fields.of_file(path):
            for name, fitting in sides.items():
                fields.require(found, name, found.get(name, size) in fitting, f"the tower's {size}")
            for name in ("image_mean", "image_std"):
                right = isinstance(found.get(name, []), list) and len(found.get(name, "rgb")) == 3
                fields.require(found, name, right, "three numbers")
            for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
                fields.require(found, name, found.get(name, True) is True, "true: nothing else is supported")
            fields.require(found, "resample", found.get("resample", 3) == 3, "3, bicubic")

    def __call__(self, images: list[Picture]) -> Tensor:
        """uint8 [H, W, 3] each -> float32 [images, 3, S, S], rounded to bfloat16 as upstream always does."""
        return torch.stack([self.exact(image) for image in images]).bfloat16().float()

    def exact(self, image: Picture) -> Tensor:
        """uint8 [H, W, 3] -> float32 [3, S, S] before the rounding."""
        return pillow_pixels(image, self.size, self.mean, self.std)


def event_images(events: EventSlice, images: int, compat: bool) -> list[Picture]:
    """White, blue (OFF) and red (ON) pictures uint8 [H, W, 3] of equal-count slices; H, W the sensor's unless `compat`."""
    if not compat:
        return list(red_blue(events, images))
    if len(events.t) < images:
        raise BadInput(f"{len(events.t)} events in the window: upstream needs {images}; leave out --compat or widen it")
    span = int(events.t.max()) - int(events.t.min())
    if span >= COMPAT_SPAN_US:
        raise BadInput(f"the events span {span} us: upstream takes less than {COMPAT_SPAN_US}; narrow the window")
    return red_blue(events, images, compat=True)


def eventgpt_encoder(
    model: EventGpt, vocabulary: Vocabulary, pixels: EventPixels, bos: int, compat: bool = False
) -> EventEncoder:
    """Event images, encoded and pooled, in the model's prompt."""

    def seen(events: EventSlice) -> Tensor:
        return pixels(event_images(events, model.config.images, compat)).to(model.projector.linear_1.weight)

    def rows(events: EventSlice) -> Tensor:
        visual: Tensor = model.encode(seen(events))[0]
        return visual

    text, most = partial(prompt_ids, vocabulary, bos=bos), COMPAT_ROWS if compat else None
    return EventEncoder(model.language, text, rows, "EventGPT", most, Vision(model, seen))
