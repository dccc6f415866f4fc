r"""What sharing features between frames of a live stream saves, and which answers it changes: quality against encoded frames.

python benchmarks/reuse.py --scenes 40    # writes benchmarks/results/reuse.json; benchmarks/docs_figures.py writes the page

The rule of `LivePolicy.reuse_below` is applied to the frames of every scene: one that shares another's features is replaced by
it, and the same questions are asked. The control shares as many frames, evenly chosen, whatever the events say. It counts
answers that stay what they were, and measures no time: any machine will do.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.ask import generate
from eventspec.core import Window
from eventspec.experiments.compare import environment
from eventspec.experiments.statistics import ratio_interval
from eventspec.files import write_text
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording
from eventspec.video.clip import VideoClip

RESULTS = Path(__file__).parent / "results/reuse.json"
BELOW = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Events a pixel."""
ASKED = 6


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
    frames = np.asarray(recording.video.frames)[places]
    return replace(recording, video=VideoClip(frames, recording.video.times_us))


class Scene:
    """A recording with questions, and the target's answers by which of its frames are encoded."""

    def __init__(self, pair: Pair, recording: Recording, asked: list[str]) -> None:
        self.pair, self.recording, self.asked = pair, recording, asked
        self.wanted, self._same = self._answers(recording), dict[tuple[int, ...], int]()

    def _answers(self, recording: Recording) -> list[list[int]]:
        return [generate(self.pair, recording, question, "prior").token_ids for question in self.asked]

    def same(self, encoded: list[int]) -> int:
        """How many answers stay what they were."""
        if (key := tuple(encoded)) not in self._same:
            found = self._answers(sharing(self.recording, encoded))
            self._same[key] = sum(mine == own for mine, own in zip(found, self.wanted, strict=True))
        return self._same[key]


def main() -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scenes", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--pair", default="embedded")
    given = options.parse_args()
    rows: dict[float, list[dict[str, int]]] = {below: [] for below in BELOW}
    with load_pair(given.pair, "one", fit=False) as pair:
        for index in range(given.scenes):
            clip = make_clip(split_seed("test", 7300 + given.seed, index))
            recording = as_recording(clip, f"scene {index}")
            asked = [qa.question for qa in questions(clip.facts, index)][:ASKED]
            scene, frames = Scene(pair, recording, asked), len(recording.video or ())
            for below in BELOW:
                encoded = encoded_by_events(recording, below)
                evenly = np.unique(np.linspace(0, frames, len(encoded), endpoint=False).astype(int)).tolist()
                counts = {"encoded": len(encoded), "frames": frames, "asked": len(asked)}
                rows[below].append({**counts, "same": scene.same(encoded), "evenly": scene.same(evenly)})
            print(f"{index + 1} of {given.scenes}", file=sys.stderr, flush=True)
    told = {str(below): summary(found) for below, found in rows.items()}
    about = {"scenes": given.scenes, "questions": given.scenes * ASKED, "seed": given.seed}
    write_text(RESULTS, json.dumps({**about, "environment": environment(pair, ["real"]), "below": told}, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def summary(rows: list[dict[str, int]]) -> dict[str, Any]:
    """Shares over all scenes, with 95 % bootstrap intervals over scenes; where nothing changed, from the exact bound on scenes
    in which something does."""
    parts = {part: [row[part] for row in rows] for part in rows[0]}
    told: dict[str, Any] = {"encoded_share": sum(parts["encoded"]) / sum(parts["frames"])}
    for part in ("same", "evenly"):
        told[f"{part}_share"] = sum(parts[part]) / sum(parts["asked"])
        whole = parts[part] == parts["asked"]
        found = ratio_interval(parts[part], parts["asked"], range(len(rows)))
        told[f"{part}_ci95"] = [0.05 ** (1 / len(rows)), 1.0] if whole else found
    return told


if __name__ == "__main__":
    main()
