"""The recipe of the embedded pair: tokenizer, target (tower, few frames, eight frames), drafter (ground truth, then the
target's answers), and the drafter once more with a finer tokenizer of its own."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from eventspec.core import BadInput
from eventspec.drafters.prior import TextPrior
from eventspec.files import write_text
from eventspec.models.embedded import EOS, FINE_VOCABULARY, IMAGE, SIZES, SPECIAL_TOKENS, TOKENS, VIDEO, VOCABULARY, Size
from eventspec.models.eventgpt import EventGpt, load_eventgpt, save_eventgpt
from eventspec.models.video_llava import VideoLlava, load_video_llava, save_video_llava
from eventspec.models.weights import fingerprint
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.scenes import SOURCE
from eventspec.scenes.language import every_wording
from eventspec.text import Vocabulary
from eventspec.train.answers import answers_of
from eventspec.train.data import (
    SHARD,
    WORKERS,
    Branch,
    Clips,
    Index,
    Questions,
    rendered,
    shuffled,
    started_deaf,
    train_tokenizer,
)
from eventspec.train.loop import Losses, Report, Stage, StageState, TrainingFailed, last_row, note_run, run_stage
from eventspec.train.models import DrafterTraining, TargetTraining
from eventspec.train.names import check_begins
from eventspec.train.processes import ALONE


@dataclass(frozen=True)
class PairPreset:
    """How long and how much: the size, clips, the stages by name, clips that the target answers."""

    size: str
    clips: int
    stages: dict[str, Stage]
    answers: int


STAGES = {  # learning rate, batch as a multiple, and the tower's share of the rate
    "tower": (1.5e-3, 8, 1.0),
    "four": (1.2e-3, 1, 0.2),
    "eight": (7e-4, 1, 0.3),
    "truth": (1.2e-3, 2, 1.0),
    "distil": (6e-4, 2, 0.5),
    "fine": (1.2e-3, 2, 0.2),
}


def _preset(size: str, clips: int, minutes: tuple[float, ...], batch: int, answers: int, steps: int = 0) -> PairPreset:
    rows = zip(STAGES.items(), minutes, strict=True)
    stages = {
        name: Stage(name, 60 * spent, rate, times * batch, tower=tower, steps=steps)
        for (name, (rate, times, tower)), spent in rows
    }
    return PairPreset(size, clips, stages, answers)


PRESETS = {
    "cpu": _preset("nano", 12_000, (10, 45, 50, 95, 20, 30), 8, 3000),
    "cpu-tune": _preset("nano", 12_000, (0, 0, 30, 30, 15, 15), 8, 2400),
    "gpu": _preset("base", 50_000, (3, 4, 8, 4, 4, 3), 128, 20000),
    "cpu-base": _preset("base", 12_000, (40, 160, 160, 150, 60, 60), 8, 3000),
    "smoke": _preset("nano", 8, (0, 0, 0, 0, 0, 0), 1, 2, steps=2),
}
EMBEDDING, HEAD = "model.language.embed.weight", "model.language.head.weight"
FINE = "drafter_fine"
"""Folder of the drafter with the finer tokenizer, in training and in the pair."""


def tokenizer_of(out: Path, clips: Clips, vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer trained once on the first shard: the pair's own, or the finer one of the second drafter, which saw answers
    only (smaller BPE of the same text would be the first ids of the larger: no other vocabulary at all)."""
    path = out / ("tokenizer.json" if vocabulary == VOCABULARY else f"tokenizer_{vocabulary}.json")
    if not path.exists():
        asked = [qa for i in range(min(SHARD, len(clips))) for qa in every_wording(clips.facts(i))]
        texts = [f"USER: \n{qa.question} ASSISTANT: {qa.answer}" for qa in asked]
        if vocabulary != VOCABULARY:
            texts = [f" {qa.answer}" for qa in asked]
        train_tokenizer(texts, vocabulary).save(str(path))
    return Tokenizer.from_file(str(path))


def train_target(preset: PairPreset, out: Path, clips: Clips, report: Report, begin: Path | None = None) -> VideoLlava:
    """Tower, then jointly on two to six frames, then on eight; from the weights of the pair `begin`, or from random ones."""
    questions = Questions(tokenizer_of(out, clips))
    training = TargetTraining(SIZES[preset.size], questions, clips).to(ALONE.device)
    if begin is not None:
        _take_over(training, load_video_llava(begin / "target"), begin, questions.tokenizer)
    stages: dict[str, Losses[Index]] = {
        "tower": training.tower_losses,
        "four": partial(training.joint_losses, counts=(2, 4, 6)),
        "eight": partial(training.joint_losses, counts=(8,)),
    }
    for number, (name, losses) in enumerate(stages.items()):
        stage = preset.stages[name]
        if stage.seconds or stage.steps:
            batches = shuffled(range(len(clips)), stage.batch, 100 + number)
            run_stage(stage, training, batches, losses, out / "target", report)
    return training.model


def train_drafter(
    preset: PairPreset,
    out: Path,
    clips: Clips,
    report: Report,
    answers: dict[int, list[Branch]] | None,
    begin: Path | None = None,
) -> EventGpt:
    """On the right answers, from the weights of the pair `begin` or from random ones; then, where `answers` is given, on the
    target's own."""
    questions = Questions(tokenizer_of(out, clips))
    training = DrafterTraining(SIZES[preset.size], questions, clips).to(ALONE.device)
    if begin is not None:
        _take_over(training, load_eventgpt(begin / "drafter"), begin, questions.tokenizer)
    StageState(out / "drafter", "truth").load(training, None)
    stage = preset.stages["truth"]
    if answers is not None:
        stage, training.answers = preset.stages["distil"], answers
    batches = shuffled(sorted(training.answers) or range(len(clips)), stage.batch, 200)
    run_stage(stage, training, batches, training.losses, out / "drafter", report)
    return training.model


def _take_over(
    training: TargetTraining | DrafterTraining, model: VideoLlava | EventGpt, pair: Path, tokenizer: Tokenizer
) -> None:
    """Weights of a model of `pair`, which `check_beginning` let pass; pieces that both tokenizers have keep their rows. The
    grounding heads start from scratch: a pair has none."""
    fresh = training.state_dict()
    found = {f"model.{name}": tensor.float() for name, tensor in model.state_dict().items()}
    own = Tokenizer.from_file(str(pair / "tokenizer.json"))
    training.load_state_dict({**fresh, **respelled(found, own, tokenizer, fresh)})


def check_beginning(size: Size, pair: Path) -> None:
    """BadCheckpoint for a pair to begin with that is damaged, BadInput for one of another size: before clips are rendered."""
    Vocabulary.load(pair / "tokenizer.json")
    check_size(VideoLlava(size.target), load_video_llava(pair / "target"), pair)
    check_size(EventGpt(size.drafter), load_eventgpt(pair / "drafter"), pair)


def check_size(wanted: nn.Module, found: nn.Module, pair: Path) -> None:
    """BadInput where a model of `pair` is not of the `wanted` one's size; it may know more or fewer tokens."""
    weights = found.state_dict()
    for name, tensor in wanted.state_dict().items():
        begin = 1 if f"model.{name}" in (EMBEDDING, HEAD) else 0
        if name not in weights or weights[name].shape[begin:] != tensor.shape[begin:]:
            raise BadInput(f"{pair}: its weights are not of this preset's size ({name}): choose another preset or pair")


def train_fine(preset: PairPreset, out: Path, clips: Clips, report: Report, answers: dict[int, list[Branch]]) -> EventGpt:
    """The distilled drafter with a finer tokenizer, on the target's answers in its pieces. It starts from the drafter's
    weights. The teacher's logits are of no use here: they are about other pieces."""
    coarse, fine = Questions(tokenizer_of(out, clips)), Questions(tokenizer_of(out, clips, FINE_VOCABULARY))
    first = DrafterTraining(SIZES[preset.size], coarse, clips).to(ALONE.device)
    StageState(out / "drafter", "distil").require(first)
    training = DrafterTraining(SIZES[preset.size].finer(), fine, clips).to(ALONE.device)
    training.load_state_dict(respelled(first.state_dict(), coarse.tokenizer, fine.tokenizer, training.state_dict()))
    training.answers = {clip: [_respell(branch, coarse, fine) for branch in known] for clip, known in answers.items()}
    stage = preset.stages["fine"]
    run_stage(stage, training, shuffled(sorted(training.answers), stage.batch, 300), training.losses, out / FINE, report)
    return training.model


def respelled(
    state: dict[str, torch.Tensor], coarse: Tokenizer, fine: Tokenizer, fresh: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """`state` with the embedding rows in the order of the finer tokenizer; pieces it alone has keep the row of `fresh`."""
    rows = fresh[EMBEDDING].clone()
    for piece, token in fine.get_vocab().items():
        if (known := coarse.token_to_id(piece)) is not None:
            rows[token] = state[EMBEDDING][known]
    return {**state, EMBEDDING: rows, HEAD: rows}  # the head is tied


def _respell(branch: Branch, coarse: Questions, fine: Questions) -> Branch:
    ends = branch.answer[-1] == EOS
    text = coarse.tokenizer.decode(branch.answer[:-1] if ends else branch.answer)
    return Branch(fine.encode(coarse.tokenizer.decode(branch.question)), [*fine.encode(text), *([EOS] if ends else [])])


def _trained_target(preset: PairPreset, out: Path) -> VideoLlava:
    """In a process that answers."""
    clips = Clips(out / "clips")
    training = TargetTraining(SIZES[preset.size], Questions(tokenizer_of(out, clips)), clips)
    StageState(out / "target", "eight").require(training)
    return training.model


def export(preset: PairPreset, out: Path, clips: Clips, models: tuple[VideoLlava, EventGpt, EventGpt]) -> Path:
    """Write the pair's folder: pair.toml, tokenizer, prior, target, drafters (the finer one last), provenance."""
    (target, drafter, fine), tokenizer, folder = models, tokenizer_of(out, clips), out / "pair"
    questions = Questions(tokenizer)
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    save_video_llava(target, made / "target", {**TOKENS, "image_token_id": IMAGE, "video_token_id": VIDEO})
    save_eventgpt(drafter, made / "drafter", TOKENS)
    save_eventgpt(fine, made / FINE, TOKENS)
    tokenizer_of(out, clips, FINE_VOCABULARY).save(str(made / FINE / "tokenizer.json"))
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024, **names}
    for place in (made, made / "target"):
        tokenizer.save(str(place / "tokenizer.json"))
    write_text(made / "target/tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    known = (qa for i in range(len(clips)) for qa in every_wording(clips.facts(i)))
    TextPrior.of((qa.question, [*questions.encode(f" {qa.answer}"), EOS]) for qa in known).save(made / "prior.json")
    write_text(made / "provenance.json", json.dumps(provenance(preset, out, clips), indent=2) + "\n")
    PairFile(made, preset.size, trained_on=SOURCE).listing("drafters", "fine", FINE).write()
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    return folder


def provenance(preset: PairPreset, out: Path, clips: Clips) -> dict[str, Any]:
    """What a model card needs: sizes, data, seeds, seconds and steps of every stage."""
    stages = {}
    for part in ("target", "drafter", FINE):
        for path in sorted((out / part).glob("*.jsonl")):
            stages[f"{part}/{path.stem}"] = last_row(path) if path.stat().st_size else {}
    return {"size": preset.size, "train_clips": len(clips), "split": "train", "stages": stages, "torch": torch.__version__}


def train(preset_name: str, out: Path, report: Report, workers: int = WORKERS, begin_with: str | None = None) -> Path:
    """The whole recipe: render, train the target beside the drafter (on a GPU one after the other), let the target answer,
    distil, export to OUT/pair. `begin_with`: the pair whose weights are trained further, so that a changed street costs a
    fraction of the time. Every step picks up where an interrupted one stopped."""
    preset = PRESETS[preset_name]
    begin = None if begin_with is None else folder_of(begin_with)
    check_begins(preset_name, begin_with)
    if begin is not None:
        check_beginning(SIZES[preset.size], begin)
    out.mkdir(parents=True, exist_ok=True)
    note_run(out, {"recipe": "embedded", "preset": preset_name, "begin_with": begin_with})
    clips = rendered("render", out / "clips", "train", preset.clips, report, workers)
    tokenizer_of(out, clips)
    beside = None
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        beside = multiprocessing.get_context("spawn").Process(target=_truth, args=(preset, out, begin))
        started_deaf(beside.start)
    try:
        target = train_target(preset, out, clips, report, begin)
        if beside is not None:
            beside.join()
    except KeyboardInterrupt:
        if beside is not None:
            beside.terminate()  # it keeps its state and ends, see `_truth`
        raise
    if beside is None:
        train_drafter(preset, out, clips, report, None, begin)
    elif beside.exitcode:
        raise TrainingFailed(f"training the drafter ended with exit code {beside.exitcode}: run again with --resume")
    load, numbers = partial(_trained_target, preset, out), list(range(min(preset.answers, len(clips))))
    folder = out / "answers" / fingerprint(target)  # another target gives other answers
    answers = answers_of(load, out / "tokenizer.json", clips.folder, folder, numbers, workers)
    drafter = train_drafter(preset, out, clips, report, answers)
    fine = train_fine(preset, out, clips, report, answers)
    return export(preset, out, clips, (target, drafter, fine))


def _truth(preset: PairPreset, out: Path, begin: Path | None) -> None:
    """In a process of its own, which its parent interrupts by SIGTERM."""
    torch.set_num_threads(1)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        train_drafter(preset, out, Clips(out / "clips"), lambda name, progress, figures: None, None, begin)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
