"""What a 7B pair takes on a GPU, stage by stage, as JSON. Weights are random, of the published sizes: they take as long.

python benchmarks/gpu.py [--device cuda] [--dtype bfloat16] [--layers 32] [--repeats 20] [--out FILE]

Acceptance is not measured: random models agree about nothing. `verify` has forwards over a chain of k new tokens, and `tree`
those over a tree; `beside` is the target's prefill while the event drafter decodes on the same GPU, on a stream and a thread of
its own. Every time is a median of wall time, from before it is asked for until the GPU has computed it.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from eventspec.core import EventSlice, Media, Proposal, Trace
from eventspec.events.representations import red_blue
from eventspec.events.stream import EventStream
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
"""Tokens before and behind the visual rows."""


def random_model(kind: Callable[[], nn.Module], dtype: torch.dtype, device: str) -> Any:
    torch.set_default_dtype(dtype)
    with torch.device(device):
        made = kind().to(device).requires_grad_(False).eval()  # what is never made on a GPU: tables of rotations
    torch.set_default_dtype(torch.float32)
    for weight in made.parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, 0.02)
    return made


def pair(layers: int, dtype: torch.dtype, device: str) -> tuple[FrameEncoder, EventEncoder]:
    """Video-LLaVA on 8 frames of 224 pixels and EventGPT on 5 images of 336, each with a Vicuna of `layers` layers."""
    sizes = LlamaConfig(32064, 4096, 11008, layers, 32, 32)
    tower = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24 if layers > 8 else 2}
    tower |= {"num_attention_heads": 16, "patch_size": 14}
    target = random_model(lambda: VideoLlava(VideoLlavaConfig(ClipConfig(**tower, image_size=224), sizes)), dtype, device)
    drafter = random_model(lambda: EventGpt(EventGptConfig(ClipConfig(**tower, image_size=336), sizes)), dtype, device)

    def frames(seen: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
        found: torch.Tensor = target.encode(frame_pixels(seen, 224).to(device, dtype))
        return found

    def events(seen: EventSlice) -> torch.Tensor:
        pixels = torch.stack([pillow_pixels(image, 336) for image in red_blue(seen, 5)])
        found: torch.Tensor = drafter.encode(pixels.to(device, dtype))[0]
        return found

    ours = FrameEncoder(target.language, lambda question: TEXT, frames, 8, "Video-LLaVA", one_by_one=device == "cpu")
    return ours, EventEncoder(drafter.language, lambda question: TEXT, events, "EventGPT")


def recording() -> Media:
    """A second of noise from a sensor of 346 x 260: 200,000 events and 8 frames."""
    drawn = np.random.default_rng(0)
    times = np.sort(drawn.integers(0, 1_000_000, 200_000))
    columns = (drawn.integers(0, 346, len(times)), drawn.integers(0, 260, len(times)), drawn.integers(0, 2, len(times)))
    x, y, p = (column.astype(kind) for column, kind in zip(columns, (np.uint16, np.uint16, np.uint8), strict=True))
    video = VideoClip(drawn.integers(0, 256, (8, 260, 346, 3), np.uint8), np.arange(8, dtype=np.int64) * 125_000)
    return Media(events=EventStream(x, y, times.astype(np.int64), p, 346, 260), frames=video)


def forked(nodes: int) -> Proposal:
    """A tree of two branches, one of them a leaf."""
    parents = np.arange(-1, nodes - 1)
    parents[1:2] = -1
    return Proposal(np.ones(nodes, np.int64), parents)


def behind(encoder: FrameEncoder | EventEncoder, media: Media) -> tuple[Callable[[], LanguageSession], LanguageSession, int]:
    """What begins to read the prompt about a recording, a session that has read all but its last row, and its rows."""
    prompt = encoder.prompt("", encoder.encode(media, Trace(), "target"))
    begin = partial(fresh_session, encoder.language, prompt, len(prompt.rows) + 400)
    session = begin()
    session.read(len(session.pending) - 1)
    return begin, session, len(prompt.rows)


def prefilled(begin: Callable[[], LanguageSession]) -> None:
    begin().score(Proposal.empty())


def beside(begin: Callable[[], LanguageSession], drafting: LanguageSession, device: str, repeats: int) -> float:
    """The target's prefill while a drafter decodes on the same GPU."""
    done = threading.Event()

    def draft_on() -> None:
        stream = torch.cuda.Stream() if device.startswith("cuda") else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            while not done.is_set():
                drafting.score(Proposal.empty())

    other, seconds = threading.Thread(target=draft_on), []
    other.start()
    for _ in range(repeats):
        began = time.perf_counter()
        prefilled(begin)
        seconds.append(time.perf_counter() - began)
    done.set()
    other.join()
    return round(1e3 * median(seconds), 3)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    asked.add_argument("--layers", type=int, default=32)
    asked.add_argument("--repeats", type=int, default=20)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()

    def taken(work: Callable[..., object], *of: object) -> float:
        """What encodes or scores waits for the GPU itself."""
        seconds = []
        for _ in range(3 + given.repeats):
            began = time.perf_counter()
            work(*of)
            seconds.append(time.perf_counter() - began)
        return round(1e3 * median(seconds[3:]), 3)

    with torch.inference_mode():
        target, drafter = pair(given.layers, getattr(torch, given.dtype), given.device)
        media, found = recording(), dict[str, Any]()
        for name, encoder in (("drafter", drafter), ("target", target)):
            begin, session, rows = behind(encoder, media)
            found[f"{name}_rows"] = rows
            found[f"{name}_vision_ms"] = taken(encoder.encode, media, Trace(), "target")
            found[f"{name}_prefill_ms"] = taken(partial(prefilled, begin))
            found[f"{name}_step_ms"] = taken(session.score, Proposal.empty())
        for name, shape in (("verify", lambda nodes: Proposal.chain([1] * nodes)), ("tree", forked)):
            drafts = {count: shape(count - 1) if count > 1 else Proposal.empty() for count in COUNTS}
            found[f"{name}_ms"] = {count: taken(session.score, draft) for count, draft in drafts.items()}
        found["beside_ms"] = beside(begin, behind(drafter, media)[1], given.device, given.repeats)
    gpu = torch.cuda.get_device_name() if given.device.startswith("cuda") else None
    where = {"gpu": gpu, "processor": processor(), "torch": torch.__version__, "dtype": given.dtype, "layers": given.layers}
    told = json.dumps({**where, "repeats": given.repeats, **found}, indent=1)
    print(told)
    if given.out is not None:
        given.out.write_text(told + "\n")


if __name__ == "__main__":
    main()
