"""What recipes start from: a pair's models with their prompts, and what its target said of recordings: rendered clips for a
pair of ours, a user's own recordings for a pair of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Media
from eventspec.models.eventgpt import EventGpt, load_eventgpt
from eventspec.models.folder import load_folder
from eventspec.models.loading import VisionLanguage, first_of
from eventspec.models.prompt import EventEncoder, FrameEncoder, TextIds
from eventspec.models.video_llava import VideoLlava, load_video_llava
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.names import BASELINE
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.pairs.trained import whole
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import KINDS
from eventspec.scenes.language import questions as scene_questions
from eventspec.scenes.writer import as_recording
from eventspec.text import TokenSpace
from eventspec.train.answers import TrainingPreset, answered
from eventspec.train.data import WORKERS, Branch, PixelSource, Questions, shuffled
from eventspec.train.frozen import AnswerTraining
from eventspec.train.loop import Calibration, Report, Stage, note_run, rounded, run_stage, same_run
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes
from eventspec.train.recorded import FOLDER, Recorded
from eventspec.train.workspace import Answers, Example, apart, loading_of, target_answers, who_answers

ASKED = 4
"""Questions about a user's recordings for every clip that a preset has."""

Asked = Callable[[int], tuple[Media, list[str]]]
"""A recording's number -> what it holds, and the questions that its answers are to, in their order."""


@dataclass(frozen=True)
class Told:
    """Recordings by number as the towers see them, what the target answered to questions about each, and how to ask again.
    `recording`: which one a number is of, from 0 on, where several are windows of one; `kinds`: of questions by their texts,
    where they have some."""

    source: PixelSource
    answers: dict[int, list[Branch]]
    asked: Asked
    recording: Callable[[int], int] = int
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """A pair's models, fp32 where a pair of ours has them: what heads share with the target, the target as a model of ours
    (else what kind it is, in words), and the event model, if there is one."""

    file: PairFile
    ends: LanguageEnds
    own_target: VideoLlava | str
    drafter: EventGpt | None

    @property
    def target(self) -> VideoLlava:
        """BadInput where it is another's."""
        if isinstance(self.own_target, str):
            raise BadInput(f"{self.own_target}: parts that stand between layers are trained for a Video-LLaVA folder")
        return self.own_target

    @property
    def events(self) -> EventGpt:
        """BadInput where the pair has none."""
        if self.drafter is None:
            raise BadInput(f"pair {self.file.name} has no event model: `eventspec train drafter` makes one")
        return self.drafter


Begin = Callable[[Models], Mapping[str, object] | None]
"""Checks the models; what a run of the recipe may not change when it goes on, beside its preset and what it learns from: it is
noted in its folder (`note_run`). None: nothing is."""


@dataclass(frozen=True)
class Material:
    """A pair's models, the ids `before` their visual rows, and what the target said of the recordings to learn from and of
    others."""

    models: Models
    before: list[int]
    learned: Told
    judged: Told
    drafter_before: list[int] = field(default_factory=list)

    @property
    def file(self) -> PairFile:
        return self.models.file

    @property
    def target(self) -> VideoLlava:
        return self.models.target

    @property
    def learned_from_judged(self) -> bool:
        """Whether what is measured on is what is learned from: there is one recording only."""
        return self.learned is self.judged

    def devices(self, processes: Processes = ALONE) -> tuple[torch.device, torch.device]:
        """Where the target and the event model learn: where a pair of checkpoints says that they are, if it does; of several
        processes each has one device for both."""
        known = self.file.load or {}
        if processes.count > 1 or not {"device", "drafter_device"} & known.keys():
            return processes.device, processes.device
        target = first_of(known.get("device", "cpu"))
        return torch.device(target), torch.device(known.get("drafter_device", target))

    def fitting(self, stage: Stage, processes: Processes = ALONE) -> Stage:
        """A stage whose batches a user's recordings suffice for; rendered clips always do."""
        return stage if self.file.load is None else stage.fitting(len(self.learned.answers), processes)

    def teach(
        self,
        training: AnswerTraining,
        stage: Stage,
        seed: int,
        out: Path,
        report: Report,
        processes: Processes = ALONE,
        every: int = 0,
    ) -> dict[str, Any]:
        """Train a stage that fits. How far what learned agrees with the target, `before` and at the end (`calibration`), as
        OUT/STAGE-calibration.jsonl has it, there `every` so many steps too; nothing but in the first of several processes."""
        judged, places = self.judged, sorted(self.learned.answers)
        log = out / f"{stage.name}-calibration.jsonl"
        calibration = Calibration(lambda: rounded(training.agreement(judged.source, judged.answers)), log, every)
        first = calibration.note_first() if processes.first else {}
        batches = shuffled(places, stage.batch, seed, self.learned.source.folder, processes)
        noting = calibration.noting(report) if every else report
        run_stage(stage, training, batches, training.losses, out, noting, processes=processes)
        if not processes.first:
            return {}
        rows = {"before": first, "calibration": calibration.note({"step": -1})}
        found = {name: {part: row[part] for part in row if part != "step"} for name, row in rows.items()}
        return {**found, "learned_from_judged": self.learned_from_judged}

    @property
    def events(self) -> EventGpt:
        return self.models.events


def material_of(
    pair: str,
    preset: TrainingPreset,
    out: Path,
    report: Report,
    given: Given | None = None,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    begin: Begin = lambda models: None,
) -> Material:
    """The material of a pair: by questions about recordings where some are `given`, else clips that are rendered into `out`.
    What is there is not made again; of several processes the first renders, all answer. `begin` is told the models before hours
    are spent on that, in the first process before the others. BadInput for checkpoints without questions, and for questions to
    a pair of ours."""
    file = PairFile.read(folder_of(pair))
    if file.load is None and given is None:
        target, drafter = load_video_llava(file.place("target")), load_eventgpt(file.place("drafter"))
        models = Models(file, target.language, target, drafter)
        with processes.first_ahead():
            if (what := begin(models)) is not None:
                note_run(out, {**what, "preset": preset.name})
            clips = {
                split: answered(file.folder, out, split, count, report, workers)
                for split, count in (("train", preset.answered), ("calibration", preset.held_out))
            }
        learned, judged = (Told(*found, asked=_asked_of_street(split, found[0]), kinds=KINDS) for split, found in clips.items())
        before = Questions.of_pair(file.folder).prefix()
        return Material(models, before, learned, judged, before)
    if given is None:
        raise BadInput(f"pair {file.name} is of checkpoints: --questions names a qa.jsonl about recordings to learn from")
    if file.load is None:
        raise BadInput(f"pair {file.name} learns from rendered clips: leave --questions out")
    return material_of_questions(file, preset, out, report, given, processes, begin)


def _asked_of_street(split: str, clips: PixelSource) -> Asked:
    def asked(number: int) -> tuple[Media, list[str]]:
        clip = make_clip(split_seed(split, 0, number))
        texts = [qa.question for qa in scene_questions(clip.facts, number)]
        return media_of(as_recording(clip, f"clip {number}")), texts

    return asked


def material_of_questions(
    file: PairFile,
    preset: TrainingPreset,
    out: Path,
    report: Report,
    given: Given,
    processes: Processes = ALONE,
    begin: Begin = lambda models: None,
) -> Material:
    """As `material_of`, of a pair of checkpoints, with the drafter that `file` names."""
    drafting = _event_model(file)
    events = None if drafting is None else drafting.encoder
    assert events is None or isinstance(events, EventEncoder)  # EventGPT's are
    drafter = None if events is None else whole(events, EventGpt)

    def models_of(pair: Pair) -> Models:
        try:
            target: VideoLlava | str = whole(pair.parts.frame_encoder, VideoLlava)
        except BadInput as error:  # a recipe that needs it says so
            target = str(error)
        return Models(file, pair.parts.ends, target, drafter)

    noted = dict[str, object]()

    def checked(pair: Pair, asked: Mapping[str, object]) -> None:
        with processes.first_ahead():
            if (own := begin(models_of(pair))) is not None:
                noted.update({**own, "preset": preset.name, **asked})
                same_run(out, noted)

    with answers_of_target(file, preset, given, report, processes, checked) as (pair, kept):
        known = file.having_learned(preset.stage.name, (example.question.resolved for example in kept[0]))
        models, tokens, text = replace(models_of(pair), file=known), pair.tokens, pair.parts.text_ids
        frames = None if isinstance(models.own_target, str) else pair.parts.frame_encoder
    if noted:  # not before: a question that was refused may be mended
        with processes.first_ahead():
            note_run(out, noted)
    spaces = () if drafting is None else (tokens, drafting.tokens)
    learned, judged = (_told(part, given.work, (frames, events), text, spaces) for part in kept)
    if kept[0] is kept[1]:
        judged = learned
    question = kept[0][0].question.question
    before, theirs = [] if text is None else text(question)[0], [] if events is None else events.text(question)[0]
    return Material(models, before, learned, judged, theirs)


@contextmanager
def answers_of_target(
    file: PairFile,
    preset: TrainingPreset,
    given: Given,
    report: Report,
    processes: Processes = ALONE,
    begin: Callable[[Pair, Mapping[str, object]], None] = lambda pair, what: None,
) -> Iterator[tuple[Pair, tuple[list[Example], list[Example]]]]:
    """A pair of checkpoints with its target alone, whatever that is, and what it said to the questions that are given, as
    `apart`; `begin` is told the pair, and `Answers.settings`, before hours are spent on that."""
    asked = given.asked(ASKED * (preset.answered + preset.held_out))
    with load_pair(file.folder, fit=False, method=BASELINE) as pair:
        who = who_answers(file.place("target"), loading_of(file))
        answers = Answers(given.work, who, given.longest, processes.rank)
        begin(pair, answers.settings(asked))
        yield pair, apart(target_answers(pair, given.questions, asked, answers, report, processes), asked)


def _event_model(file: PairFile) -> VisionLanguage | None:
    """The event model of a pair of checkpoints, if it has one."""
    if "drafter" not in file.files:
        return None
    return load_folder(file.place("drafter"), loading_of(file).drafting)


def _told(
    examples: Sequence[Example],
    work: Path,
    encoders: tuple[FrameEncoder | None, EventEncoder | None],
    text_ids: TextIds | None,
    spaces: tuple[TokenSpace, TokenSpace] | tuple[()],
) -> Told:
    frames, events = encoders
    source = Recorded(work / FOLDER, [example.question for example in examples], frames, events)
    answers, texts = dict[int, list[Branch]](), dict[int, list[str]]()
    again = _respelled(spaces) if spaces else None
    rows = 0 if events is None else events.language.config.vocab_size
    for example in examples:
        if events is not None and again is None and max(example.answer) >= rows:
            continue  # it holds a row of the target that the event model does not have
        number, text = source.number[example.question.seen], example.question.question
        own, read = None, None
        if events is not None:
            answer = list(example.answer) if again is None else again(example.answer)
            # Of other ids the likeliest ones are not known: what was said is certain.
            tops = _known(example, rows) if again is None else _certain(answer)
            own = Branch(events.text(text)[1], answer, *tops)
            read = None if again is None else same_beginnings(spaces, example.answer, answer)
        asked = [] if text_ids is None else text_ids(text)[1]  # of a target that nothing of ours reads
        made = Branch(asked, list(example.answer), example.top_ids, example.top_logs, own, read)
        answers.setdefault(number, []).append(made)
        texts.setdefault(number, []).append(text)
    of = [question.recording.resolve() for question in source.asked]
    place = {recording: number for number, recording in enumerate(dict.fromkeys(of))}
    kinds = {example.question.question: kind for example in examples if (kind := example.question.kind) is not None}
    return Told(source, answers, lambda number: (source.media(number), texts[number]), lambda number: place[of[number]], kinds)


def _known(example: Example, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The likeliest tokens of a target that has more rows than tokens: those without one count nothing."""
    assert example.top_ids is not None and example.top_logs is not None  # a workspace has them
    there = example.top_ids < rows
    return np.where(there, example.top_ids, 0), np.where(there, example.top_logs, -np.inf).astype(np.float32)


def _certain(answer: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array(answer, np.int64)[:, None], np.zeros((len(answer), 1), np.float32)


def _respelled(spaces: tuple[TokenSpace, TokenSpace]) -> Callable[[Sequence[int]], list[int]] | None:
    """A target's answer in the event model's ids; None where both have the same."""
    ours, theirs = spaces
    if theirs.means(ours):
        return None

    def respelled(answer: Sequence[int]) -> list[int]:
        ends = answer[-1] in (ours.eos_id, *ours.extra_eos_ids)
        text = theirs.vocabulary.respell(ours.vocabulary.spell(answer[:-1] if ends else answer))
        return [*text, theirs.eos_id] if ends else text

    return respelled


def same_beginnings(
    spaces: tuple[TokenSpace, TokenSpace] | tuple[()], answer: Sequence[int], own: Sequence[int]
) -> list[int] | None:
    """As `Branch.read`, of an answer in the ids of the target and in those of the event model; where several of its beginnings
    spell the same (an end of text spells nothing), the fewest; after all of its own the event model says nothing more: -1."""
    if not spaces:
        return None
    ours, theirs = (space.vocabulary for space in spaces)
    ends, lengths = dict[int, int](), accumulate((len(theirs.spell([token])) for token in own[:-1]), initial=0)
    for count, length in enumerate(lengths):
        ends.setdefault(length, count)
    before = accumulate((len(ours.spell([token])) for token in answer[:-1]), initial=0)
    return [ends.get(length, -1) for length in before]


def every_question(given: Told) -> Iterator[tuple[int, Media, str, Branch]]:
    """All questions about recordings, those of one recording together: its number, what it holds, the text, and the answer."""
    for number, known in sorted(given.answers.items()):
        media, texts = given.asked(number)
        for text, branch in zip(texts, known, strict=True):
            yield number, media, text, branch
