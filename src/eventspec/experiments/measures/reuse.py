"""What sharing features between frames of a live stream saves, and which answers it changes.

The rule of `LivePolicy.reuse_below` is applied to the frames of every scene: one that shares another's features is replaced by
it, and the same questions are asked. The control shares as many frames, evenly chosen, whatever the events say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from eventspec.ask import generate
from eventspec.core import Window
from eventspec.experiments.compare import environment
from eventspec.experiments.measures.setup import Finding, Found, Setup, scene
from eventspec.experiments.statistics import never_seen, ratio_interval
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording
from eventspec.video.clip import VideoClip

BELOW = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Events a pixel."""
ASKED = 6


def measure(setup: Setup) -> Iterator[Finding]:
    """Answers that stay what they were, of every scene and limit. No time is measured: any machine will do."""
    scenes, below = setup.size(40, 1), setup.size(BELOW, BELOW[-1:])
    rows: dict[float, list[dict[str, int]]] = {limit: [] for limit in below}
    with load_pair(setup.pair, "one", fit=False) as pair:
        for index in range(scenes):
            recording, questions = scene(7300, index)
            asked = [qa.question for qa in questions][: setup.size(ASKED, 1)]
            for limit, row in _rows(pair, recording, asked, below).items():
                rows[limit].append(row)
            setup.progress((index + 1) / scenes)
        part = {str(limit): _summary(found) for limit, found in rows.items()}
        yield (), {"scenes": scenes, "questions": scenes * ASKED, "seed": 0, "environment": environment(pair), "below": part}


def encoded_by_events(recording: Recording, below: float) -> list[int]:
    """The frames that are encoded: the first, and each with so many events a pixel since the one encoded last."""
    assert recording.video is not None and recording.events is not None
    pixels, times = recording.events.width * recording.events.height, recording.video.times_us.tolist()
    found = [0]
    for place in range(1, len(times)):
        if len(recording.events.slice(Window(times[found[-1]], times[place]))) / pixels >= below:
            found.append(place)
    return found


def sharing(recording: Recording, encoded: list[int]) -> Recording:
    """The recording, every frame that is not encoded replaced by the one encoded last."""
    assert recording.video is not None
    places = [max(place for place in encoded if place <= number) for number in range(len(recording.video))]
    return replace(recording, video=VideoClip(np.asarray(recording.video.frames)[places], recording.video.times_us))


def _rows(pair: Pair, recording: Recording, asked: list[str], limits: Sequence[float]) -> dict[float, dict[str, int]]:
    """For each limit, how many frames are encoded, and how many answers stay; with as many frames, evenly chosen, too."""

    @cache
    def answers(encoded: tuple[int, ...]) -> list[list[int]]:
        shared = sharing(recording, list(encoded))
        return [generate(pair, shared, question, "prior").token_ids for question in asked]

    frames, rows = len(recording.video or ()), dict[float, dict[str, int]]()
    for below in limits:
        encoded = encoded_by_events(recording, below)
        evenly = np.unique(np.linspace(0, frames, len(encoded), endpoint=False).astype(int)).tolist()
        rows[below] = {"encoded": len(encoded), "frames": frames, "asked": len(asked)}
        for name, chosen in (("same", encoded), ("evenly", evenly)):
            pairs = zip(answers(tuple(chosen)), answers(tuple(range(frames))), strict=True)
            rows[below][name] = sum(own == whole for own, whole in pairs)
    return rows


def _summary(rows: list[dict[str, int]]) -> Found:
    """Shares over all scenes, with 95 % bootstrap intervals over scenes; where nothing changed, from the exact bound on scenes
    in which something does."""
    sums = {name: [row[name] for row in rows] for name in rows[0]}
    found: Found = {"encoded_share": sum(sums["encoded"]) / sum(sums["frames"])}
    for name in ("same", "evenly"):
        found[f"{name}_share"] = sum(sums[name]) / sum(sums["asked"])
        interval = ratio_interval(sums[name], sums["asked"], range(len(rows)))
        found[f"{name}_ci95"] = [never_seen(len(rows)), 1.0] if sums[name] == sums["asked"] else interval or [None, None]
    return found
