"""Heads for a target of one's own: any checkpoint folder, questions about any recordings, the target's own answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.core import BadInput
from eventspec.drafters.heads import TargetSizes
from eventspec.files import write_text
from eventspec.models.fingerprint import fingerprint
from eventspec.models.loading import LoadOptions
from eventspec.pairs import load_folders
from eventspec.recordings.qa import read_questions
from eventspec.train.heads import PRESETS, checked, learn, new_heads, save_all
from eventspec.train.loop import Report, same_run
from eventspec.train.recorded import Example, RecordedBatches, target_answers

JUDGED = 8
"""One recording in so many is kept back to measure heads on, at least one where there are two."""


def train(
    target: Path,
    questions: Path,
    preset_name: str,
    names: list[str],
    out: Path,
    report: Report,
    how: LoadOptions | None = None,
    longest: int = 96,
) -> Path:
    """Train heads for the target in a checkpoint folder and write OUT/heads/NAME. It answers the questions of a qa.jsonl
    itself, with up to `longest` tokens (OUT/answers.jsonl); heads learn from its pass over recordings and answers. Picks up
    where a run was interrupted. BadInput and BadCheckpoint, one line each."""
    recipes, asked = checked(names), read_questions(questions)
    pair = load_folders(target, method="autoregressive", how=how)
    ends = pair.parts.ends
    unknown = [name for name in names if recipes[name].own_targets_only and pair.parts.text_ids is None]
    if unknown:
        raise BadInput(f"head '{unknown[0]}' is for targets of our own: leave it out, transformers opened this target")
    out.mkdir(parents=True, exist_ok=True)
    same_run(out, {"target": fingerprint(ends), "heads": names, "questions": len(asked), "longest": longest})
    answers = target_answers(pair, asked, out / "answers.jsonl", longest, report)
    learned, judged = apart(answers)
    used = tuple(sorted({token for example in answers for token in example.answer}))
    heads = new_heads(names, TargetSizes(ends.config, used), ends)
    for head in heads.values():
        head.to(ends.embed.weight.device)
    sources = [RecordedBatches(pair.parts.target, ends, part, pair.parts.text_ids) for part in (learned, judged)]
    stage = PRESETS[preset_name].stage
    stage = replace(stage, batch=min(stage.batch, len(learned)))
    batches = shuffled(len(learned), stage.batch)
    rates = learn(stage, heads, sources[0], batches, (sources[1], list(range(len(judged)))), out, report)
    save_all(heads, rates, out / "heads", ends)
    calibration = json.loads((out / "calibration.jsonl").read_text().splitlines()[-1])
    about = {"calibration": calibration, "answers": len(answers), "judged": len(judged), "torch": torch.__version__}
    write_text(out / "heads/heads.json", json.dumps(about) + "\n")
    return out / "heads"


def apart(answers: list[Example]) -> tuple[list[Example], list[Example]]:
    """Those to learn from, and those of other recordings to measure on; the same where there is one recording only."""
    recordings = list(dict.fromkeys(example.recording for example in answers))
    kept = set(recordings[:: max(2, min(JUDGED, len(recordings)))]) if len(recordings) > 1 else set()
    judged = [example for example in answers if example.recording in kept]
    return [example for example in answers if example.recording not in kept], judged or answers


def shuffled(count: int, batch: int) -> Iterator[np.ndarray[Any, Any]]:
    """Numbers below `count` in batches, all of them in an order drawn anew every time, without end."""
    rng = np.random.default_rng(400)
    while True:
        order = rng.permutation(count)
        for at in range(0, count - batch + 1, batch):
            yield order[at : at + batch]
