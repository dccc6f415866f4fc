"""How far our models are from the tensors that the published code computed: a folder of goldens in, differences out.

The folder's layout: checkpoint/, meta.json with its `cases`, and for every case the recording (`events_CASE.npy` or
`video_CASE.npz`) and the tensors in npz files. Nothing is masked here but embedding rows that no checkpoint holds: upstream
says media placeholders too.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.core import BadCheckpoint, BadInput, EventSlice, Media, Request, Sampling, Trace
from eventspec.engine import Asking, Decoding, run
from eventspec.events.formats import open_events
from eventspec.events.stream import LARGEST_SIDE
from eventspec.lanes.workers import Workers
from eventspec.models import configuration as fields
from eventspec.models import eventgpt, video_llava
from eventspec.models.folder import bos_id
from eventspec.models.pixels import frame_pixels
from eventspec.models.prompt import Prompt, TextEncoder, splice
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama
from eventspec.text import StopDetector, Vocabulary

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Values = dict[str, Tensor | Array]
IMAGE_PLACE = -200
"""The id that upstream's EventGPT writes where the event rows go."""


@dataclass
class Parity:
    """Largest difference of every tensor, by `CASE/NAME`; whether all greedy answers are the same."""

    tensors: dict[str, dict[str, float | bool]] = field(default_factory=dict)
    greedy_identical: bool = True
    not_compared: list[str] = field(default_factory=list)

    def add(self, case: str, golden: Arrays, ours: Values) -> None:
        """Compare what both have; golden tensors that we have nothing for are listed, not passed over."""
        for name, wanted in golden.items():
            if name not in ours:
                self.not_compared.append(f"{case}/{name}")
                continue
            value = ours[name]
            got = value.float().numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
            if got.shape != wanted.shape:
                raise BadCheckpoint(
                    f"{case}/{name}: ours is {list(got.shape)}, the golden {list(wanted.shape)}: not this model"
                )
            apart = float(np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
            self.tensors[f"{case}/{name}"] = {"max_abs": apart, "exact": apart == 0.0}


def parity(folder: Path) -> Parity:
    """Run every case of a golden folder; BadInput or BadCheckpoint when it is none, or its checkpoint cannot be read."""
    if not (folder / "meta.json").is_file() or not (folder / "checkpoint").is_dir():
        raise BadInput(f"{folder} is no folder of goldens: it needs meta.json and checkpoint/")
    cases = fields.read_json(folder / "meta.json").get("cases")
    if not isinstance(cases, dict) or not cases or not all(isinstance(case, dict) for case in cases.values()):
        raise BadInput(f"{folder / 'meta.json'}: `cases` is no table of cases")
    kind = fields.read_json(folder / "checkpoint/config.json").get("model_type")
    found = Parity()
    with torch.inference_mode():
        (_eventgpt if kind == eventgpt.MODEL_TYPE else _video_llava)(folder, cases, found)
    return found


# ---------------------------------------------------------------------------------------------------------------- EventGPT
def _eventgpt(folder: Path, cases: dict[str, Any], found: Parity) -> None:
    checkpoint = folder / "checkpoint"
    vocabulary = eventgpt.eventgpt_vocabulary(checkpoint)
    trained = min(vocabulary.size, eventgpt.open_eventgpt(checkpoint).model.config.language.vocab_size)
    bos = bos_id(checkpoint, vocabulary.size)
    for dtype, suffix in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        model = eventgpt.load_eventgpt(checkpoint, dtype, rows=vocabulary.size)
        pixels = eventgpt.EventPixels(checkpoint, model.config.vision.image_size)
        for case, facts in cases.items():
            path = folder / f"golden_{case}_{suffix}.npz"
            if suffix != "float32" and not path.is_file():
                continue
            events = _events(folder / f"events_{case}.npy")
            images = eventgpt.event_images(events, model.config.images, compat=True)
            seen = pixels(images)
            if suffix == "float32":
                drawn: Values = {f"image_{place}": image for place, image in enumerate(images)}
                drawn["pixel_values_bf16_bits"] = seen.bfloat16().view(torch.int16).numpy().view(np.uint16)
                drawn["pixel_values_f32_image0"] = pixels.exact(images[0])[:, ::8, ::8]
                found.add(case, _arrays(folder / f"images_{case}.npz"), drawn)
            ids = eventgpt.prompt_ids(vocabulary, _query(facts, "query"), bos)
            golden = _cut(_arrays(path, "generated_ids"), trained)
            values = _event_values(model, seen, ids, golden, trained)
            found.add(case if suffix == "float32" else f"{case}/{suffix}", golden, values)
            if suffix == "float32":  # in bfloat16 near ties are decided by the order of sums
                found.greedy_identical &= "generated_ids" in values


def _events(path: Path) -> EventSlice:
    """The events of a case in the file's order, on a sensor that just holds them: upstream knows no sensor size."""
    stream = open_events(path, (LARGEST_SIDE, LARGEST_SIDE), "keep").events
    if stream is None:
        raise BadInput(f"{path}: holds no events")
    return replace(stream, width=int(np.max(stream.x, initial=0)) + 1, height=int(np.max(stream.y, initial=0)) + 1)


def _event_values(
    model: eventgpt.EventGpt, seen: Tensor, ids: tuple[list[int], list[int]], golden: Arrays, trained: int
) -> Values:
    """Everything that a golden file may hold; `generated_ids` there begins with a BOS that was not generated."""
    before, after = ids
    hidden = torch.cat([model.tower(image[None].to(model.projector.linear_1.weight)) for image in seen])
    projected = model.projector(hidden)
    adapted = model.adaptor(projected)
    aggregated = model.pooled(adapted)[0]
    prompt = splice(model.language, (before, after), aggregated).rows[: eventgpt.COMPAT_ROWS]
    whole = _prompt_values(model.language, prompt)
    whole["logits"] = whole["logits"][:, :trained]
    return {
        "input_ids": np.array([[*before, IMAGE_PLACE, *after]]),
        "clip_last_hidden": hidden,
        "projected": projected[:1],
        "adapted": adapted[:1],
        "aggregated": aggregated,
        "inputs_embeds": prompt[None],
        **whole,
        "logits_last": whole["logits"][-1],
        **_answer_values(model.language, prompt, golden["generated_ids"], trained, given=1),
    }


# ------------------------------------------------------------------------------------------------------------- Video-LLaVA
def _video_llava(folder: Path, cases: dict[str, Any], found: Parity) -> None:
    checkpoint = folder / "checkpoint"
    model = video_llava.load_video_llava(checkpoint)
    vocabulary = video_llava.video_llava_vocabulary(checkpoint, model.config)
    bos = bos_id(checkpoint, model.config.language.vocab_size)
    for case, facts in cases.items():
        frames = _arrays(folder / f"video_{case}.npz", "frames")["frames"]
        question = _query(facts, "query") if "query" in facts else _question(_query(facts, "prompt"), vocabulary)
        golden = _arrays(folder / f"golden_{case}.npz", "generated_ids")
        values = _video_values(model, frames, video_llava.prompt_ids(vocabulary, question, bos), golden)
        found.add(case, golden, values)
        found.greedy_identical &= "generated_ids" in values


def _question(prompt: str, vocabulary: Vocabulary) -> str:
    """The question in a whole prompt."""
    before, after = video_llava.prompt("\0").split("\0")
    if not prompt.startswith(before) or not prompt.endswith(after):
        raise BadInput(f"meta.json: prompt {prompt!r} is not of the form {before + '...' + after!r}")
    return prompt[len(before) : len(prompt) - len(after)]


def _video_values(model: video_llava.VideoLlava, frames: Array, ids: tuple[list[int], list[int]], golden: Arrays) -> Values:
    before, after = ids
    pixels = frame_pixels(frames, model.config.vision.image_size)
    hidden = torch.cat([model.tower(frame[None], model.config.vision_layer) for frame in pixels])
    features = model.projector(hidden)
    ends = [0, len(frames) - 1]
    prompt = splice(model.language, (before, after), features.flatten(0, 1)).rows
    whole = _prompt_values(model.language, prompt)
    tail = len(golden.get("logits_tail", prompt))
    video = [model.config.video_token] * (len(frames) * model.config.vision.tokens)
    return {
        "input_ids": np.array([[*before, *video, *after]]),
        "attention_mask": np.ones((1, len(prompt)), np.int64),
        "pixel_values_videos_f16_frame0_and_last": pixels[ends].half(),
        "tower_hidden_minus2": hidden[ends],
        "video_features": features[ends],
        "video_features_mean": features.mean(1),
        "logits_tail": whole["logits"][-tail:],
        "hidden_final_tail": whole["final_norm_hidden"][-tail:],
        "hidden_before_last_layer_tail": whole["hidden_before_last_layer"][-tail:],
        **_answer_values(model.language, prompt, golden["generated_ids"], model.language.config.vocab_size),
    }


# -------------------------------------------------------------------------------------------------------------------- both
def _prompt_values(language: Llama, prompt: Tensor) -> dict[str, Tensor]:
    """One forward over a whole prompt [T, D]: logits, states before and after the last layer, the first layer's cache."""
    cache = language.new_cache(len(prompt))
    hidden, tapped = language.step(prompt, cache, taps=(language.config.num_hidden_layers - 1,))
    return {
        "logits": language.logits(hidden),
        "final_norm_hidden": language.normed(hidden),
        "hidden_before_last_layer": tapped[0],
        "last_pre_layer_hidden": tapped[0][-32:],
        "key_layer0": cache.keys[0][:, len(prompt) - 8 :],
        "value_layer0": cache.values[0][:, len(prompt) - 8 :],
    }


def _answer_values(language: Llama, prompt: Tensor, golden: Array, trained: int, given: int = 0) -> Values:
    """The logits after prompt rows [T, D] and after each golden token but the last, read one by one, and their top-2 gaps; the
    ids where the engine's greedy answer is the golden one: elsewhere their differences mean nothing. `given`: golden ids before
    the answer."""
    wanted = golden[given:].tolist()
    target = LanguageTarget(TextEncoder(language, lambda question: Prompt(prompt, (0, 0))))
    banned = tuple(range(trained, language.config.vocab_size))
    request, workers = Request(Media(), "", Sampling(max_new_tokens=len(wanted), banned_ids=banned)), Workers("one")
    answer = run(Decoding(Asking(target, request, StopDetector(())), workers, Trace()), workers).token_ids
    cache = language.new_cache(len(prompt) + len(wanted))
    rows, found = prompt, []
    for token in wanted:
        hidden, _ = language.step(rows, cache)
        found.append(language.logits(hidden[-1:])[0, :trained])
        cache.keep(len(rows), [])
        rows = language.embed(torch.tensor([token]))
    best = torch.stack(found).float().topk(2).values
    values: Values = {"generated_scores": torch.stack(found), "generated_margin": best[:, 0] - best[:, 1]}
    return {**values, "generated_ids": golden} if answer == wanted else values


def _cut(golden: Arrays, trained: int) -> Arrays:
    """Without the columns of rows that upstream drew at random."""
    wide = ("logits", "logits_last", "generated_scores")
    return {name: array[..., :trained] if name in wide else array for name, array in golden.items()}


def _arrays(path: Path, *needed: str) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read as npz ({error}): copy the goldens again") from None
    if missing := [name for name in needed if name not in found]:
        raise BadInput(f"{path} has no array {missing[0]}: copy the goldens again")
    return found


def _query(facts: dict[str, Any], name: str) -> str:
    if not isinstance(facts.get(name), str):
        raise BadInput(f"meta.json: a case has no {name}: copy the goldens again")
    return str(facts[name])
