"""Writes street clips as native recordings with questions and answers. The same arguments give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eventspec.errors import BadSetting
from eventspec.files import check_empty
from eventspec.recordings.native import write_native, written_whole
from eventspec.recordings.recording import Recording
from eventspec.scenes import SOURCE
from eventspec.scenes.clip import SceneClip, check_split, make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.video.clip import VideoClip

QA_NAME = "qa.jsonl"


def write_scenes(out: Path, clips: int, split: str, seed: int, progress: Callable[[int], object] | None = None) -> None:
    """Write `clips` clips of a split into the folder `out`: clip_000000/, clip_000001/, ... and qa.jsonl.

    `progress` is called with the number of finished clips. Everything is written beside `out` and renamed at the end.
    """
    out = Path(out)
    check_split(split)
    if clips < 1:
        raise BadSetting("clips", f"is {clips}: it must be at least 1")
    check_empty(out)
    with written_whole(out) as partial, (partial / QA_NAME).open("w", encoding="utf-8", newline="\n") as lines:
        for index in range(clips):
            clip = make_clip(split_seed(split, seed, index))
            name = f"clip_{index:06d}"
            write_native(partial / name, as_recording(clip, name), f"{SOURCE}, {split} clip seed {clip.seed}")
            lines.writelines(json.dumps(row) + "\n" for row in _rows(clip, name))
            if progress is not None:
                progress(index + 1)


def as_recording(clip: SceneClip, name: str) -> Recording:
    """The clip's events and frames on one clock that starts at 0 and lasts one second."""
    return Recording(name, clip.events, VideoClip(clip.frames, clip.frame_times_us), source=SOURCE)


def _rows(clip: SceneClip, name: str) -> Iterator[dict[str, Any]]:
    """The lines of qa.jsonl about one clip; the clip's seed also draws the wordings."""
    facts = clip.facts.as_json()
    for qa in questions(clip.facts, clip.seed):
        yield {"recording": name, "kind": qa.kind, "question": qa.question, "answer": qa.answer, "facts": facts}
