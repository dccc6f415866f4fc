"""What a 7B pair takes on a GPU, stage by stage. Weights are random, of the published sizes: they take as long.

Acceptance is not measured: random models agree about nothing. `verify` has forwards over a chain of k new tokens, and `tree`
those over a tree; `beside` is the target's prefill while the event drafter decodes on the same GPU, on a stream and a thread of
its own. Every time is a median of wall time in ms, until the GPU has computed what was called for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from eventspec.core import BadInput, EventSlice, Media, Proposal, Trace
from eventspec.costs.fit import forked
from eventspec.errors import check_known
from eventspec.events.representations import red_blue
from eventspec.events.stream import EventStream
from eventspec.experiments.measures.setup import Found
from eventspec.machine import processor
from eventspec.models.eventgpt import EventGpt, EventGptConfig
from eventspec.models.pixels import frame_pixels, pillow_pixels
from eventspec.models.prompt import EventEncoder, FrameEncoder
from eventspec.models.session import LanguageSession, fresh_session
from eventspec.models.video_llava import VideoLlava, VideoLlavaConfig
from eventspec.nn import ClipConfig, LlamaConfig
from eventspec.video.clip import VideoClip

COUNTS = (1, 2, 4, 8, 16, 32, 64, 100)
TEXT = ([1] * 5, [1] * 12)
"""Tokens before and after the visual rows."""
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class GpuSetup:
    """What is measured: the device, the number format, the layers of both language models, and how often each time is taken."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    layers: int = 32
    repeats: int = 20

    def check(self) -> None:
        """BadInput for a device that is not there, an unknown number format, and counts below 1."""
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise BadInput(f"there is no {self.device} here: run this on a GPU, or give --device cpu --quick")
        check_known("--dtype", [self.dtype], DTYPES)
        if min(self.layers, self.repeats) < 1:
            raise BadInput("--layers and --repeats are at least 1")

    def taken(self, work: Callable[..., object], *of: object) -> float:
        """Median milliseconds of a call, which waits for the GPU itself; the first three do not count."""
        seconds = []
        for _ in range(3 + self.repeats):
            began = time.perf_counter()
            work(*of)
            seconds.append(time.perf_counter() - began)
        return round(1e3 * median(seconds[3:]), 3)


def measure(asked: GpuSetup) -> Iterator[Found]:
    """What was found so far, after every part."""
    asked.check()
    gpu = torch.cuda.get_device_name() if asked.device.startswith("cuda") else None
    found: Found = {"gpu": gpu, "processor": processor(), "torch": torch.__version__, "dtype": asked.dtype}
    found |= {"layers": asked.layers, "repeats": asked.repeats}
    with torch.inference_mode():
        target, drafter = _pair(asked)
        media, sessions = _recording(), dict[str, LanguageSession]()
        encoders: dict[str, FrameEncoder | EventEncoder] = {"drafter": drafter, "target": target}
        for name, encoder in encoders.items():
            prefill, sessions[name], found[f"{name}_rows"] = _opened(encoder, media)
            found[f"{name}_vision_ms"] = asked.taken(encoder.encode, media, Trace(), "target")
            found[f"{name}_prefill_ms"] = asked.taken(prefill)
            found[f"{name}_step_ms"] = asked.taken(sessions[name].score, Proposal.empty())
            yield found
        shapes: dict[str, Callable[[int], Proposal]] = {"verify": lambda nodes: Proposal.chain([1] * nodes), "tree": forked}
        for name, shape in shapes.items():
            drafts = {count: shape(count - 1) if count > 1 else Proposal.empty() for count in COUNTS}
            score = sessions["target"].score
            found[f"{name}_ms"] = {str(count): asked.taken(score, draft) for count, draft in drafts.items()}
            yield found
        found["beside_ms"] = _beside(asked, prefill, _opened(drafter, media)[1])
        yield found


def _random_model(kind: Callable[[], nn.Module], dtype: torch.dtype, device: str) -> Any:
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            made = kind().to(device).requires_grad_(False).eval()  # what is never made on a GPU: tables of rotations
    finally:
        torch.set_default_dtype(torch.float32)
    for weight in made.parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, 0.02)
    return made


def _pair(asked: GpuSetup) -> tuple[FrameEncoder, EventEncoder]:
    """Video-LLaVA on 8 frames of 224 pixels and EventGPT on 5 images of 336, each with a Vicuna of so many layers."""
    device, dtype = asked.device, getattr(torch, asked.dtype)
    sizes = LlamaConfig(32064, 4096, 11008, asked.layers, 32, 32)
    tower: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24 if asked.layers > 8 else 2}
    tower |= {"num_attention_heads": 16, "patch_size": 14}
    if asked.layers == 1:  # the smallest size, which shows that it runs
        sizes, tower = LlamaConfig(320, 64, 128, 1, 4, 4), {**tower, "hidden_size": 64, "intermediate_size": 64}
    target = _random_model(lambda: VideoLlava(VideoLlavaConfig(ClipConfig(**tower, image_size=224), sizes)), dtype, device)
    drafter = _random_model(lambda: EventGpt(EventGptConfig(ClipConfig(**tower, image_size=336), sizes)), dtype, device)

    def frames(seen: Iterable[np.ndarray[Any, np.dtype[np.uint8]]]) -> torch.Tensor:
        found: torch.Tensor = target.encode(frame_pixels(seen, 224).to(device, dtype))
        return found

    def events(seen: EventSlice) -> torch.Tensor:
        pixels = torch.stack([pillow_pixels(image, 336) for image in red_blue(seen, 5)])
        found: torch.Tensor = drafter.encode(pixels.to(device, dtype))[0]
        return found

    ours = FrameEncoder(target.language, lambda question: TEXT, frames, 8, "Video-LLaVA", one_by_one=device == "cpu")
    return ours, EventEncoder(drafter.language, lambda question: TEXT, events, "EventGPT")


def _recording() -> Media:
    """A second of noise from a sensor of 346 x 260: 200,000 events and 8 frames."""
    drawn = np.random.default_rng(0)
    times = np.sort(drawn.integers(0, 1_000_000, 200_000))
    x, y, p = (drawn.integers(0, most, len(times)) for most in (346, 260, 2))
    video = VideoClip(drawn.integers(0, 256, (8, 260, 346, 3), np.uint8), np.arange(8, dtype=np.int64) * 125_000)
    events = EventStream(x.astype(np.uint16), y.astype(np.uint16), times, p.astype(np.uint8), 346, 260)
    return Media(events=events, frames=video)


def _opened(encoder: FrameEncoder | EventEncoder, media: Media) -> tuple[Callable[[], object], LanguageSession, int]:
    """What reads the prompt about a recording, a session that has read all but its last row, and its rows."""
    prompt = encoder.prompt("", encoder.encode(media, Trace(), "target"))
    begin = partial(fresh_session, encoder.language, prompt, len(prompt.rows) + 400)
    session = begin()
    session.read(len(session.pending) - 1)
    return lambda: begin().score(Proposal.empty()), session, len(prompt.rows)


def _beside(asked: GpuSetup, prefill: Callable[[], object], drafting: LanguageSession) -> float:
    """The target's prefill while a drafter decodes on the same GPU."""
    done = threading.Event()

    def draft_on() -> None:
        stream = torch.cuda.Stream() if asked.device.startswith("cuda") else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            while not done.is_set():
                drafting.score(Proposal.empty())

    other = threading.Thread(target=draft_on)
    other.start()
    try:
        return asked.taken(prefill)
    finally:
        done.set()
        other.join()
