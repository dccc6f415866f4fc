"""What recipes learn from: rendered clips, and the target's own greedy answers about them, with its top logits. What is on disk
stays.

All questions about a clip are decoded together: they are branches after one visual prefix, kept apart by the attention mask.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eventspec.align.substitute import LONGEST
from eventspec.files import write_whole
from eventspec.models.embedded import EOS, pixels_from_frames
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.models.weights import fingerprint
from eventspec.nn import Llama
from eventspec.scenes.language import questions as ask
from eventspec.train.data import Branch, Clips, Questions, rendered, started_deaf
from eventspec.train.loop import Report, Stage

TOP = 8


@dataclass(frozen=True)
class TrainingPreset:
    """Clips that the target answers, in training and held out; the stage; questions packed behind a recording; its name."""

    answered: int
    held_out: int
    stage: Stage
    packed: int
    name: str = ""


Presets = Mapping[str, TrainingPreset]
Preset = str | TrainingPreset
"""By its name, or one that no recipe lists."""


def presets_of(presets: Presets) -> Presets:
    """Presets that know their names."""
    return {name: replace(preset, name=name) for name, preset in presets.items()}


def preset_of(presets: Presets, preset: Preset) -> TrainingPreset:
    """The preset that is meant."""
    return presets[preset] if isinstance(preset, str) else preset


@dataclass
class _Growing:
    """One answer in the making: tokens to be read next, the cache rows of those that were, and what was said."""

    question: list[int]
    unread: list[int]
    rows: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logs: list[list[float]] = field(default_factory=list)

    def branch(self) -> Branch:
        return Branch(self.question, self.answer, np.array(self.top_ids, np.int16), np.array(self.top_logs, np.float16))


def target_answers(model: VideoLlava, questions: Questions, frames: np.ndarray[Any, Any], texts: list[str]) -> list[Branch]:
    """Greedy answers to every question about one clip's frames uint8 [8, H, W, 3]; a branch carries the top-8
    log-probabilities."""
    asked = [questions.question(text) for text in texts]
    with torch.inference_mode():
        return greedy_answers(model.language, questions.prefix(), model.encode(pixels_from_frames(frames)), asked)


@torch.inference_mode()
def greedy_answers(language: Llama, before: list[int], visual: torch.Tensor, asked: list[list[int]]) -> list[Branch]:
    """What a language model answers after the text ids `before` and visual rows [T, D], to each of the questions in ids; as
    `target_answers`."""
    device = language.embed.weight.device
    prefix = torch.cat((language.embed(torch.tensor(before, device=device)), visual))
    cache = language.new_cache(len(prefix) + sum(map(len, asked)) + len(asked) * LONGEST)
    language.step(prefix, cache)
    cache.keep(len(prefix), [])
    alive = growing = [_Growing(ids, ids) for ids in asked]
    while alive and len(alive[0].answer) < LONGEST:
        tokens = [token for g in alive for token in g.unread]
        positions = torch.empty(len(tokens), dtype=torch.int64)
        mask = torch.zeros(len(tokens), cache.length + len(tokens), dtype=torch.bool)
        mask[:, : len(prefix)] = True
        row, ends = 0, list[int]()
        for g in alive:
            for _ in g.unread:
                positions[row] = len(prefix) + len(g.rows)
                g.rows.append(cache.length + row)
                mask[row, torch.tensor(g.rows)] = True
                row += 1
            ends.append(row - 1)
        rows = language.embed(torch.tensor(tokens, device=device))
        hidden, _ = language.step(rows, cache, positions.to(device), mask.to(device))
        cache.keep(len(tokens), [])
        logs, ids = language.logits(hidden[torch.tensor(ends)]).log_softmax(-1).topk(TOP)
        for g, top, log in zip(alive, ids.tolist(), logs.tolist(), strict=True):
            g.unread = top[:1]
            g.answer.append(top[0])
            g.top_ids.append(top)
            g.top_logs.append(log)
        alive = [g for g in alive if g.answer[-1] != EOS]
    return [g.branch() for g in growing]


def _answer_part(job: tuple[Callable[[], VideoLlava], Path, Path, list[int], Path]) -> None:
    """Answers for some clips to one npz, in a process of its own."""
    load, tokenizer, folder, numbers, path = job
    model, questions, clips = load().eval(), Questions(Tokenizer.from_file(str(tokenizer))), Clips(folder)
    found = list[tuple[int, Branch]]()
    for number in numbers:
        frames = clips.column("frames", np.array([number])).numpy()[0]
        texts = [qa.question for qa in ask(clips.facts(number), number)]
        found += [(number, branch) for branch in target_answers(model, questions, frames, texts)]
    branches = [branch for _, branch in found]
    flat = {
        "clip": np.array([number for number, _ in found]),
        "question": np.concatenate([np.array(branch.question) for branch in branches]),
        "question_length": np.array([len(branch.question) for branch in branches]),
        "answer": np.concatenate([np.array(branch.answer) for branch in branches]),
        "answer_length": np.array([len(branch.answer) for branch in branches]),
        "ids": np.concatenate([branch.teacher_ids for branch in branches if branch.teacher_ids is not None]),
        "logs": np.concatenate([branch.teacher_logs for branch in branches if branch.teacher_logs is not None]),
    }

    def write(part: Path) -> None:
        with part.open("wb") as file:  # by its name numpy would add a suffix
            np.savez(file, allow_pickle=False, **flat)

    write_whole(path, write)


def answers_of(
    load: Callable[[], VideoLlava], tokenizer: Path, clips: Path, folder: Path, numbers: list[int], workers: int
) -> dict[int, list[Branch]]:
    """The answers of the target that `load` gives on the clips `numbers`, in parts of 100 in `folder` that survive an
    interruption; every worker loads its own target."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [numbers[at : at + 100] for at in range(0, len(numbers), 100)]
    jobs = [(load, tokenizer, clips, part, folder / f"{part[0]:06d}-{part[-1]:06d}.npz") for part in parts]
    missing = [job for job in jobs if not job[-1].exists()]
    if len(missing) == 1:  # nothing to share out, and a process takes seconds to begin
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in each of several processes
        try:
            _answer_part(missing[0])
        finally:
            torch.set_num_threads(threads)
    elif missing:
        make = multiprocessing.get_context("spawn").Pool
        with started_deaf(lambda: make(min(workers, len(missing)), torch.set_num_threads, (1,))) as pool:
            pool.map(_answer_part, missing, chunksize=1)
    return read_answers([path for *_, path in jobs])


def answered(
    pair: Path, out: Path, split: str, count: int, report: Report, workers: int
) -> tuple[Clips, dict[int, list[Branch]]]:
    """The clips of `out`/`split`, and the answers of the pair's target to every question about the first `count` of them."""
    clips = rendered(f"render {split}", out / split, split, count, report, workers)
    load = partial(load_video_llava, pair / "target")
    answers = out / "answers" / fingerprint(load().language) / split  # another target gives other answers
    return clips, answers_of(load, pair / "tokenizer.json", clips.folder, answers, list(range(count)), workers)


def read_answers(paths: list[Path]) -> dict[int, list[Branch]]:
    """Branches by clip number."""
    answers: dict[int, list[Branch]] = {}
    for path in paths:
        with np.load(path) as data:
            columns = {name: data[name] for name in data.files}
        asked = np.split(columns["question"], np.cumsum(columns["question_length"])[:-1])
        ends = np.cumsum(columns["answer_length"])[:-1]
        parts = (np.split(columns[name], ends) for name in ("answer", "ids", "logs"))
        for clip, question, answer, ids, logs in zip(columns["clip"], asked, *parts, strict=True):
            answers.setdefault(int(clip), []).append(Branch(question.tolist(), answer.tolist(), ids, logs))
    return answers
