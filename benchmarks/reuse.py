r"""What sharing features between frames of a live stream saves, and which answers it changes: quality against encoded frames.

python benchmarks/reuse.py --scenes 40    # writes benchmarks/results/reuse.json; benchmarks/docs_figures.py writes the page

Every scene is pushed into a stream of the exact mode and of each threshold; the same questions are asked about the same window.
It counts, and measures no time: any machine will do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.ask import Live
from eventspec.core import Window
from eventspec.experiments.compare import environment
from eventspec.experiments.statistics import ratio_interval
from eventspec.files import write_text
from eventspec.pairs import Pair, load_pair
from eventspec.recordings import Recording
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording

RESULTS = Path(__file__).parent / "results/reuse.json"
BELOW = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Events a pixel; 0 is the exact mode."""
ASKED = 6


def push(live: Live, recording: Recording) -> None:
    """The whole recording, each frame behind the events before it, and what becomes of every frame."""
    assert recording.video is not None and recording.events is not None
    before = recording.span.start_us
    for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
        live.push_events(recording.events.slice(Window(before, at + 1)))
        live.push_frame(np.asarray(frame), at)
        before = at + 1
    until = time.monotonic() + 60
    while (counts := live.counts).encoded + counts.reused < counts.frames or live.window is None:
        if time.monotonic() > until:
            sys.exit("a stream does not come to an end: the machine is too busy")
        time.sleep(0.002)


@contextmanager
def streamed(pair: Pair, recording: Recording, below: float) -> Iterator[Live]:
    """A stream that has seen the recording."""
    length = recording.span.duration_us + 1
    with pair.live("autoregressive", window_us=length, hop_us=length, share=1.0, waiting=1 << 20, reuse_below=below) as live:
        push(live, recording)
        yield live


def answers(pair: Pair, recording: Recording, asked: list[str], below: float) -> tuple[list[list[int]], int, int]:
    """The answers' tokens, and of how many frames how many were encoded."""
    with streamed(pair, recording, below) as live:
        # The window that was cut first may lack the last frames: ask about all of them.
        context = pair_of(live).open(recording)
        found = [context.ask(question, "autoregressive").token_ids for question in asked]
        return found, live.counts.encoded, live.counts.frames


def pair_of(live: Live) -> Pair:
    """The pair of a stream: its target keeps the features that the stream made."""
    assert isinstance(live.pair, Pair)
    return live.pair


def main() -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scenes", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--pair", default="embedded")
    given = options.parse_args()
    rows: dict[float, list[dict[str, Any]]] = {below: [] for below in BELOW}
    with load_pair(given.pair, "one", fit=False) as pair:
        for index in range(given.scenes):
            clip = make_clip(split_seed("test", 7300 + given.seed, index))
            recording, asked = (
                as_recording(clip, f"scene {index}"),
                [qa.question for qa in questions(clip.facts, index)][:ASKED],
            )
            exact: list[list[int]] = []
            for below in BELOW:
                found, encoded, frames = answers(pair, recording, asked, below)
                exact = exact or found
                same = [mine == wanted for mine, wanted in zip(found, exact, strict=True)]
                rows[below].append({"encoded": encoded, "frames": frames, "same": sum(same), "asked": len(same)})
            print(f"{index + 1} of {given.scenes}", file=sys.stderr, flush=True)
    told = {str(below): summary(found) for below, found in rows.items()}
    about = {
        "scenes": given.scenes,
        "questions": given.scenes * ASKED,
        "seed": given.seed,
        "environment": environment(pair, ["real"]),
    }
    write_text(RESULTS, json.dumps({**about, "below": told}, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares over all scenes, with bootstrap intervals over scenes."""
    return {
        f"{part}_share": sum(row[part] for row in rows) / sum(row[whole] for row in rows)
        for part, whole in (("encoded", "frames"), ("same", "asked"))
    } | {
        "same_ci95": ratio_interval([row["same"] for row in rows], [row["asked"] for row in rows], list(range(len(rows)))),
    }


if __name__ == "__main__":
    main()
