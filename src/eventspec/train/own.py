"""Heads for any target: a checkpoint folder, questions about recordings, the target's own answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Sampling, Trace
from eventspec.drafters.heads import TargetSizes
from eventspec.engine.policy import NO_TAIL
from eventspec.files import write_text
from eventspec.models.fingerprint import fingerprint
from eventspec.models.loading import LoadOptions
from eventspec.models.prompt import FrameEncoder
from eventspec.models.session import LanguageTarget
from eventspec.pairs import Pair, load_folders
from eventspec.recordings import Recording
from eventspec.recordings.qa import Question, read_questions
from eventspec.train.data import shuffled
from eventspec.train.distillation import layers_read
from eventspec.train.heads import PRESETS, checked, learn, new_heads, save_all
from eventspec.train.loop import Report, last_row, note_run, same_run
from eventspec.train.recorded import Answers, Example, RecordedBatches, target_answers

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
    preset, recipes = PRESETS[preset_name], checked(names)
    asked = read_questions(questions, preset.answered)
    pair = load_folders(target, method="autoregressive", how=how)
    ends, text_ids = pair.parts.ends, pair.parts.text_ids
    for name in names:
        if recipes[name].own_targets_only and text_ids is None:
            raise BadInput(f"head '{name}' is for targets of our own that see frames: leave it out for {target}")
    frame = frame_rows(pair, asked[0])
    # Whatever cannot be trained is refused here: the answers may take hours.
    tried = new_heads(names, TargetSizes(ends.config, (0, 1), frame)).values()
    probe = RecordedBatches(pair.parts.target, ends, [Example(asked[0].recording, asked[0].question, (0, 1, 0))], text_ids)
    taps = layers_read(tried, ends.config.num_hidden_layers)
    with torch.no_grad():
        next(probe.batches(np.array([0]), taps, np.random.default_rng(0)))
    rows = json.dumps([[str(question.recording), question.question] for question in asked])
    digest = hashlib.sha256(rows.encode()).hexdigest()[:16]
    whose = fingerprint(ends)
    what = {"target": whose, "max_new_tokens": longest, "preset": preset_name, "heads": names, "questions": digest}
    same_run(out, what)
    out.mkdir(parents=True, exist_ok=True)
    answers = target_answers(pair, questions, asked, Answers(out / "answers.jsonl", whose, longest), report)
    note_run(out, what)  # not before: a question that was refused may be mended
    learned, judged = apart(answers)
    used = tuple(sorted({token for example in learned for token in example.answer}))
    heads = new_heads(names, TargetSizes(ends.config, used, frame))
    sources = [RecordedBatches(pair.parts.target, ends, part, text_ids) for part in (learned, judged)]
    stage = replace(preset.stage, batch=min(preset.stage.batch, len(learned)))
    batches = shuffled(range(len(learned)), stage.batch, 400)
    rates = learn(stage, heads, sources[0], batches, (sources[1], list(range(len(judged)))), out, report)
    save_all(heads, rates, out / "heads", ends)
    about = {
        "calibration": last_row(out / "calibration.jsonl"),
        "answers": len(answers),
        "too_short": len(asked) - len(answers),
        "judged": len(judged),
        "learned_from_judged": learned is judged,
        "torch": torch.__version__,
    }
    write_text(out / "heads/heads.json", json.dumps(about) + "\n")
    return out / "heads"


def apart(answers: list[Example]) -> tuple[list[Example], list[Example]]:
    """Those to learn from, and those of other recordings to measure on; the same where there is one recording only."""
    recordings = list(dict.fromkeys(example.recording for example in answers))
    kept = set(recordings[:: max(2, min(JUDGED, len(recordings)))]) if len(recordings) > 1 else set()
    judged = [example for example in answers if example.recording in kept]
    if not judged:
        return answers, answers
    return [example for example in answers if example.recording not in kept], judged


def frame_rows(pair: Pair, question: Question) -> int:
    """Visual rows of a frame, for a target of our own that sees frames; else 0."""
    target = pair.parts.target
    if not isinstance(target, LanguageTarget) or not isinstance(target.encoder, FrameEncoder):
        return 0
    media = media_of(Recording.open(question.recording))
    with torch.no_grad():
        begin, end = target.encode(media, Trace()).open(question.question, Sampling(), NO_TAIL, Trace()).prompt().visual
    return (end - begin) // target.encoder.frames
