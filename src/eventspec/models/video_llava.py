"""Video-LLaVA: every frame through one CLIP tower, a projector, then a Llama that reads all frames in order; and what it sees
and reads: frames, pixels, the prompt around them, its tokenizer, and the ids that it must never say.

No temporal attention: frames are encoded independently, one by one, so that a cached frame is the encoded one bit for bit.
Source of prompt and pixels: transformers' VideoLlavaProcessor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from eventspec.core import BadCheckpoint, BadInput
from eventspec.files import write_text
from eventspec.models import configuration as fields
from eventspec.models import weights
from eventspec.models.checkpoint import Checkpoint, Opened, without_memory
from eventspec.models.pixels import CLIP_MEAN, CLIP_STD, frame_pixels
from eventspec.models.prompt import FrameEncoder, Frames, Vision, projected
from eventspec.models.shards import VIDEO_LLAVA
from eventspec.nn import ClipConfig, ClipViT, Llama, LlamaConfig, Projector
from eventspec.text import Vocabulary

MODEL_TYPE = VIDEO_LLAVA
DEFAULT_ROWS = 2056
"""transformers' default for `video_seq_length`: 8 frames of 257 rows."""
PLACE = "<video>"
PROCESSING_FILES = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class VideoLlavaConfig:
    """Sizes, and the token ids that matter (transformers' VideoLlavaConfig)."""

    vision: ClipConfig
    language: LlamaConfig
    frames: int = 8
    vision_layer: int = -2
    video_token: int = 32001
    image_token: int = 32000

    @property
    def visual_tokens(self) -> int:
        """Rows of one clip: CLS is kept for videos."""
        return self.frames * self.vision.tokens


class VideoLlava(nn.Module):
    """Tower, projector and language model; the decoding session lives in `models.session`."""

    def __init__(self, config: VideoLlavaConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipViT(config.vision)
        self.projector = Projector(config.vision.hidden_size, config.language.hidden_size)
        self.language = Llama(config.language)

    def encode(self, pixels: Tensor) -> Tensor:
        """Frames float [K, 3, S, S] -> visual rows [K * tokens, D] in frame order."""
        return projected(self.projector, self.tower(pixels, self.config.vision_layer)).flatten(0, 1)


def sources(config: VideoLlavaConfig) -> weights.Sources:
    """Tensor names of the hub's checkpoints."""
    return {
        **weights.clip_sources(config.vision, "tower.", "video_tower.vision_model."),
        **weights.linear_sources("projector.linear_1", "multi_modal_projector.linear_1"),
        **weights.linear_sources("projector.linear_2", "multi_modal_projector.linear_2"),
        **weights.llama_sources(config.language, "language.", "language_model.model.", HEAD),
    }


HEAD = "language_model.lm_head.weight"
_TOWERS = re.compile(r"(video|image)_tower\.(?!vision_model\.)")


def hub_name(name: str) -> str:
    """A tensor's name in the hub's layout, from any of the three that transformers has written.

    4.x: video_tower.vision_model.*, language_model.model.*; in memory in 5.x: model.video_tower.*, model.language_model.*,
    lm_head.weight; written by 5.x: video_tower.* beside language_model.model.*.
    """
    name = re.sub(r"^model\.(?=video_tower\.|image_tower\.|multi_modal_projector\.|language_model\.)", "", name)
    if name == "lm_head.weight":
        return HEAD
    if name.startswith("language_model.") and not name.startswith(("language_model.model.", "language_model.lm_head.")):
        return name.replace("language_model.", "language_model.model.", 1)
    return _TOWERS.sub(r"\1_tower.vision_model.", name, count=1)


def _tolerated(name: str) -> bool:
    """The image tower is never used for video and stays unread; buffers that older versions saved are computed."""
    return name.startswith("image_tower.") or name.endswith((".position_ids", ".rotary_emb.inv_freq"))


def save_video_llava(model: VideoLlava, folder: Path, tokens: dict[str, int]) -> None:
    """Write a folder that transformers' VideoLlavaForConditionalGeneration loads too; `tokens` names the special ids."""
    folder.mkdir(parents=True, exist_ok=True)
    # transformers builds an image tower as well; a copy of the video tower keeps its loading silent and its result defined.
    copies = {"video_tower.": "image_tower."}
    weights.save(model, folder / "model.safetensors", sources(model.config), copies)
    config = model.config
    data = {
        "architectures": ["VideoLlavaForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "dtype": "float16",
        "vision_config": {"model_type": "clip_vision_model", **fields.clip_json(config.vision)},
        "text_config": {"model_type": "llama", **fields.llama_json(config.language), **tokens},
        "image_token_index": config.image_token,
        "video_token_index": config.video_token,
        "vision_feature_layer": config.vision_layer,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "image_seq_length": config.vision.tokens - 1,
        "video_seq_length": config.visual_tokens,
        "tie_word_embeddings": config.language.tie_word_embeddings,
        **tokens,
    }
    write_text(folder / "config.json", fields.pretty(data))


def video_llava_config(data: fields.Fields) -> VideoLlavaConfig:
    """The sizes of a config.json; BadField names what cannot be or is not supported."""
    fields.require(data, "model_type", data.get("model_type") == MODEL_TYPE, repr(MODEL_TYPE))
    vision = fields.clip_config(fields.part(data, "vision_config", fields.clip_json(fields.CLIP_LARGE)))
    text = fields.part(data, "text_config", {})
    if data.get("tie_word_embeddings") is True:
        text["tie_word_embeddings"] = True
    language = fields.llama_config(text)
    only = {"vision_feature_select_strategy": "default", "projector_hidden_act": "gelu", "multimodal_projector_bias": True}
    fields.require_only(data, only, "nothing else is supported")
    ids = {name: data.get(name, default) for name, default in {"video_token_index": 32001, "image_token_index": 32000}.items()}
    for name, value in ids.items():
        fields.require(ids, name, type(value) is int and value >= 0, "a token id")
    layer, layers = data.get("vision_feature_layer", -2), vision.num_hidden_layers
    fits = type(layer) is int and -layers - 1 <= layer <= layers
    fields.require(data, "vision_feature_layer", fits, f"one whole number, {-layers - 1} to {layers}")
    rows = data.get("video_seq_length", DEFAULT_ROWS)
    # The field does not bind: a config of another tower may still carry the default.
    frames, odd = divmod(rows, vision.tokens) if type(rows) is int and rows > 0 else (0, 1)
    if rows == DEFAULT_ROWS and odd:
        frames, odd = 8, 0
    fields.require(data, "video_seq_length", not odd, f"a multiple of the tower's {vision.tokens} rows a frame")
    below = layer if layer < 0 else layer - layers - 1
    return VideoLlavaConfig(vision, language, frames, below, ids["video_token_index"], ids["image_token_index"])


def load_video_llava(folder: Path, dtype: torch.dtype | None = torch.float32, device: str = "cpu") -> VideoLlava:
    """The model of a checkpoint folder; errors as `open_video_llava`. dtype None keeps the file's."""
    return open_video_llava(folder).loaded(dtype, device)


def open_video_llava(folder: Path, context: int | None = None) -> Opened[VideoLlava]:
    """The model without memory, and its checked tensors; BadCheckpoint says what is missing, unknown, not supported or does not
    fit. `context` replaces the config's number of positions (extrapolation)."""
    data = fields.read_json(folder / "config.json")
    with fields.of_folder(folder):
        config = video_llava_config(data)
    if context is not None:
        config = replace(config, language=replace(config.language, max_position_embeddings=context))
    with without_memory():
        model = VideoLlava(config)
    tied = config.language.tie_word_embeddings
    checkpoint = Checkpoint(folder, hub_name)
    text, vision = data.get("text_config", {}), data.get("vision_config", fields.CLIP_DEFAULTS)
    assumed = [*fields.assumed(text, fields.LLAMA_DEFAULTS), *fields.assumed(vision, fields.CLIP_DEFAULTS)]
    checkpoint.check(model, sources(config), lambda name: _tolerated(name) or (tied and name == HEAD), assumed)
    return Opened(model, [(checkpoint, sources(config))])


# ------------------------------------------------------------------------------------------------------- what it sees and reads
def prompt(question: str) -> str:
    """The whole prompt; `<video>` stands for all frames' rows. There is no system prompt in transformers' port."""
    return f"USER: {PLACE}\n{question} ASSISTANT:"


def video_llava_vocabulary(folder: Path, config: VideoLlavaConfig) -> Vocabulary:
    """The checkpoint's tokenizer; BadCheckpoint when it is not the one that config.json's ids come from."""
    vocabulary = Vocabulary.of_folder(folder)
    if (found := vocabulary.id_of(PLACE)) not in (None, config.video_token):
        raise BadCheckpoint(
            f"{folder}: the tokenizer has {PLACE} at {found}, config.json's video_token_index is {config.video_token}: "
            "they do not belong together"
        )
    if vocabulary.size > config.language.vocab_size:
        raise BadCheckpoint(
            f"{folder}: the tokenizer has {vocabulary.size} ids, vocab_size is {config.language.vocab_size}: "
            "they do not belong together"
        )
    return vocabulary


def check_processing(folder: Path, config: VideoLlavaConfig) -> None:
    """BadCheckpoint when the folder asks for pixels other than CLIP's at the tower's size."""
    size = config.vision.image_size
    for path in (folder / name for name in PROCESSING_FILES):
        if not path.is_file():
            continue
        data = fields.read_json(path)
        data = data.get("video_processor") or data.get("image_processor") or data
        only = {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD), "resample": 3}
        edge = data.get("size", {})
        side = edge.get("shortest_edge", size) if isinstance(edge, dict) else edge
        with fields.of_file(path):
            fields.require_only(data, only, "nothing else is supported")
            fields.require(data, "size", side == size, f"a shortest edge of {size}, the tower's image_size")


def banned_ids(config: VideoLlavaConfig) -> tuple[int, ...]:
    """Ids that no method may say: placeholders of pictures."""
    return tuple(sorted(i for i in {config.video_token, config.image_token} if 0 <= i < config.language.vocab_size))


def prompt_ids(vocabulary: Vocabulary, question: str, bos: int) -> tuple[list[int], list[int]]:
    """Token ids before and after the visual rows, BOS first. The prompt is tokenised as one text."""
    for place in (PLACE, "<image>"):
        if place in question:
            raise BadInput(f"the prompt contains {place}, which stands for pictures: leave it out")
    before, after = prompt(question).split(PLACE)
    first = vocabulary.encode(before)
    if (place_id := vocabulary.id_of(PLACE)) is None:
        return [bos, *first], vocabulary.encode(after)
    whole = vocabulary.encode(prompt(question))
    at = whole.index(place_id)
    return [bos, *whole[:at]], whole[at + 1 :]


def most_frames(config: VideoLlavaConfig) -> int:
    """How many frames fit into the context the language model was trained for."""
    return config.language.max_position_embeddings // config.vision.tokens


def check_frames(frames: int, config: VideoLlavaConfig, allow_extrapolation: bool) -> None:
    """BadInput for more frames than the context holds."""
    rows, context = frames * config.vision.tokens, config.language.max_position_embeddings
    if rows >= context and not allow_extrapolation:
        raise BadInput(
            f"{frames} frames are {rows} rows, the model was trained for a context of {context}: choose at most "
            f"{most_frames(config)} frames, or measure time alone: --target FOLDER --allow-extrapolation"
        )


def video_llava_encoder(model: VideoLlava, vocabulary: Vocabulary, bos: int, frames: int) -> FrameEncoder:
    """Frames spread over the window, in the model's prompt."""

    def pixels(frames: Iterable[Frames]) -> Tensor:
        return frame_pixels(frames, model.config.vision.image_size).to(model.projector.linear_1.weight)

    def rows(frames: Iterable[Frames]) -> Tensor:
        return model.encode(pixels(frames))

    text = partial(prompt_ids, vocabulary, bos=bos)
    # On a GPU eight frames take little longer than one, so they are encoded together.
    one_by_one = model.projector.linear_1.weight.device.type == "cpu"
    place, vision = model.config.video_token, Vision(model, pixels)
    return FrameEncoder(model.language, text, rows, frames, "Video-LLaVA", one_by_one, place=place, vision=vision)
