"""What Video-LLaVA sees and reads: frames, pixels, the prompt around them, its tokenizer, and the ids that it must never say.

Source: transformers' VideoLlavaProcessor. Frames are encoded one by one, so that a cached frame is the encoded one bit for bit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from eventspec.core import BadCheckpoint, BadInput
from eventspec.models import configuration as fields
from eventspec.models.features import FeatureCache
from eventspec.models.pixels import CLIP_MEAN, CLIP_STD, frame_pixels
from eventspec.models.prompt import FrameEncoder, Frames
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig
from eventspec.text import Vocabulary

PLACE = "<video>"
PROCESSING_FILES = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")


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


def banned_ids(vocabulary: Vocabulary, config: VideoLlavaConfig) -> tuple[int, ...]:
    """Ids that no method may say: media placeholders, tokens added after the text pieces, rows without a token."""
    media = {token for token in (config.video_token, config.image_token) if 0 <= token < config.language.vocab_size}
    return tuple(sorted(media | set(range(vocabulary.text_size, config.language.vocab_size))))


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
    """BadInput for a number of frames that is none, or that the context does not hold."""
    if frames < 1:
        raise BadInput(f"frames is {frames}: choose at least 1")
    rows, context = frames * config.vision.tokens, config.language.max_position_embeddings
    if rows >= context and not allow_extrapolation:
        raise BadInput(
            f"{frames} frames are {rows} rows, the model was trained for a context of {context}: choose at most "
            f"{most_frames(config)} frames, or measure time alone with --allow-extrapolation"
        )


def video_llava_encoder(
    model: VideoLlava, vocabulary: Vocabulary, bos: int, frames: int, cache: FeatureCache | None = None
) -> FrameEncoder:
    """Frames spread over the window, in the model's prompt; rows of a frame that `cache` has are not computed again."""

    def rows(frame: Frames) -> Tensor:
        pixels = frame_pixels(frame, model.config.vision.image_size)
        return model.encode(pixels.to(model.projector.linear_1.weight))

    text = partial(prompt_ids, vocabulary, bos=bos)
    # On a GPU eight frames take little longer than one, so they are encoded together; a frame that a cache has is not.
    one_by_one = model.projector.linear_1.weight.device.type == "cpu" or cache is not None
    return FrameEncoder(model.language, text, rows, frames, "Video-LLaVA", one_by_one, cache)
