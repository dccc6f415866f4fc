"""Heads for any target: a checkpoint folder, questions about recordings, the target's own answers, and its pass over them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from eventspec.ask.generation import media_of
from eventspec.core import BadInput, Context, Proposal, Sampling, Target, Trace
from eventspec.drafters.heads import TargetSizes
from eventspec.drafters.heads.views import TargetBatch, loss_mask_of
from eventspec.engine.policy import NO_TAIL
from eventspec.files import write_text
from eventspec.models.loading import LoadOptions
from eventspec.models.prompt import FrameEncoder, TextIds
from eventspec.models.session import LanguageTarget
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs import Pair, load_folders, load_pair
from eventspec.pairs.names import BASELINE
from eventspec.pairs.pair_file import PairFile
from eventspec.recordings.qa import Ends, Question
from eventspec.train.answers import Preset, preset_of
from eventspec.train.data import Index, shuffled
from eventspec.train.distillation import layers_read
from eventspec.train.heads import PRESETS, checked, export, gates_of, learn, new_heads, save_all
from eventspec.train.loop import Report, last_row, note_run, same_run
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes
from eventspec.train.workspace import Answers, Example, apart, loading_of, target_answers, who_answers

SHORTEST = 3
"""Tokens of an answer that heads learn from: they learn where it goes on twice."""
KEPT = 1 << 29
"""Bytes of batches that are kept, so that the target need not read them again."""


def train(
    whose: Path | PairFile,
    given: Given,
    size: Preset,
    names: list[str],
    out: Path,
    report: Report,
    how: LoadOptions | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Train heads for the target in a checkpoint folder, opened as `how` says, and write OUT/heads/NAME; or for that of a
    pair of checkpoints, and write OUT/pair. It answers the questions itself; heads learn from its pass over recordings and
    answers. Picks up where a run was interrupted, with any number of processes, which share the recordings out. BadInput and
    BadCheckpoint, one line each."""
    preset, recipes, file = preset_of(PRESETS, size), checked(names), whose if isinstance(whose, PairFile) else None
    asked = given.asked(preset.answered)
    pair = _opened(whose, how)
    ends, text_ids = pair.parts.ends, pair.parts.text_ids
    for name in names:
        if recipes[name].own_targets_only and text_ids is None:
            raise BadInput(f"head '{name}' is for targets of our own that see frames: leave it out for {pair.name}")
    frame = frame_rows(pair, asked[0])
    # Whatever cannot be trained is refused here: the answers may take hours.
    tried = new_heads(names, TargetSizes(ends.config, (0, 1), frame)).values()
    probe = RecordedBatches(pair.parts.target, ends, [Example(asked[0], (0, 1, 0))], text_ids)
    taps = layers_read(tried, ends.config.num_hidden_layers)
    with torch.no_grad():
        next(probe.batches(np.array([0]), taps, np.random.default_rng(0)))
    place, opened = (whose, how or LoadOptions()) if isinstance(whose, Path) else (whose.place("target"), loading_of(whose))
    known = Answers(given.work, who_answers(place, opened), given.longest, processes.rank)
    what = {"preset": preset.name, "heads": names, **known.settings(asked)}
    with processes.first_ahead():
        same_run(out, what)
    said = target_answers(pair, given.questions, asked, known, report, processes)
    learned, judged = apart(said, asked, SHORTEST)
    if not learned:
        raise BadInput(f"the target's {len(said)} answers are shorter than {SHORTEST} tokens: a head learns from longer ones")
    with processes.first_ahead():
        note_run(out, what)  # not before: a question that was refused may be mended
    used = tuple(sorted({token for example in learned for token in example.answer}))
    heads = new_heads(names, TargetSizes(ends.config, used, frame))
    torch.manual_seed(1 + processes.rank)
    sources = [RecordedBatches(pair.parts.target, ends, part, text_ids) for part in (learned, judged)]
    stage = preset.stage.fitting(len(learned), processes)
    batches = shuffled(range(len(learned)), stage.batch, 400, processes=processes)
    rates = learn(stage, heads, sources[0], batches, (sources[1], list(range(len(judged)))), out, report, processes)
    answers = len(learned) + (0 if learned is judged else len(judged))
    about: dict[str, Any] = {"answers": answers, "too_short": len(asked) - answers, "judged": len(judged)}
    about |= {"learned_from_judged": learned is judged, **gates_of(out)}
    if file is None:
        save_all(heads, rates, out / "heads", ends)
        figures = {"calibration": last_row(out / "calibration.jsonl"), **about, "torch": torch.__version__}
        write_text(out / "heads/heads.json", json.dumps(figures) + "\n")
        return out / "heads"
    file = file.having_learned(preset.stage.name, (example.question.resolved for example in learned))
    return export(file, heads, rates, ends, out, about) if processes.first else out / "pair"


def _opened(whose: Path | PairFile, how: LoadOptions | None) -> Pair:
    """With its target alone."""
    if isinstance(whose, Path):
        return load_folders(whose, method=BASELINE, how=how)
    whose.check_models()
    return load_pair(whose.folder, fit=False, method=BASELINE)


def frame_rows(pair: Pair, question: Question) -> int:
    """Visual rows of a frame, for a target of our own that sees frames; else 0."""
    target = pair.parts.target
    if not isinstance(target, LanguageTarget) or not isinstance(target.encoder, FrameEncoder):
        return 0
    media = media_of(question.open())
    with torch.no_grad():
        begin, end = target.encode(media, Trace()).open(question.question, Sampling(), NO_TAIL, Trace()).prompt().visual
    return (end - begin) // target.encoder.frames


class RecordedBatches:
    """As `distillation.BatchSource`, of numbered examples, read through the target's session as it is when the target answers;
    those whose visual rows lie in the same place share a batch. `text_ids`: the text of its prompts, where that is known."""

    def __init__(
        self, target: Target, ends: LanguageEnds, examples: Sequence[Example], text_ids: TextIds | None = None
    ) -> None:
        self.verifier, self.ends, self.examples, self.text_ids = target, ends, examples, text_ids
        self._context: tuple[tuple[Path, Ends | None], Context] | None = None  # of what was seen latest
        self._kept: dict[tuple[int, tuple[int, ...]], TargetBatch] = {}
        self._room = KEPT

    @property
    def target(self) -> LanguageEnds:
        return self.ends

    def batches(self, numbers: Index, layers: tuple[int, ...], rng: np.random.Generator) -> Iterator[TargetBatch]:
        with torch.autocast(self.ends.embed.weight.device.type, enabled=False):  # the target computes as when it answers
            alike: dict[tuple[int, int], list[TargetBatch]] = {}
            for number in map(int, numbers):
                found = self._kept.get((number, layers))
                if found is None:
                    found = self._batch(self.examples[number], layers)
                    if found.nbytes <= self._room:
                        self._room -= found.nbytes
                        self._kept[number, layers] = found
                alike.setdefault((found.visual, found.prefix), []).append(found)
            for several in alike.values():
                yield side_by_side(several)

    def _batch(self, example: Example, layers: tuple[int, ...]) -> TargetBatch:
        taps, answer = (*layers, -1), example.answer
        context, question = self._opened(example.question), example.question.question
        session = context.open(question, Sampling(max_new_tokens=len(answer)), 1, Trace(), taps)
        scores = session.score(Proposal.chain(answer[:-1]))
        prompt = session.prompt()
        assert prompt.features is not None
        assert scores.features is not None
        device, (visual, prefix), asked = prompt.rows.device, prompt.visual, len(prompt.rows)
        said = torch.tensor(answer, device=device)
        rows = torch.cat((prompt.rows, self.ends.embed(said[:-1]).to(prompt.rows.dtype))).float()
        features = torch.cat((prompt.features, scores.features[1:])).float().chunk(len(taps), 1)
        length, later = len(rows), len(rows) - prefix
        labels = torch.full((later,), -100, device=device)
        labels[asked - 1 - prefix :] = said
        logits = torch.zeros(later, scores.logits.shape[-1], device=device)
        logits[asked - 1 - prefix :] = scores.logits.float()
        following = torch.cat((rows[1:], self.ends.embed(said[-1:]).float()))
        mask = torch.ones(later, length, dtype=torch.bool, device=device).tril_(prefix)[None, None]
        order = torch.arange(length, device=device)[None]
        ids = self._ids(question, asked, visual, prefix, said)
        named = {tap: part[None] for tap, part in zip(taps, features, strict=True)}
        own, known = (rows[None], ids[None], following[None], named, logits[None]), loss_mask_of(labels[None])
        return TargetBatch(*own, order, mask, order[:, :later], labels[None], visual, prefix, known)

    def _opened(self, question: Question) -> Context:
        """The recording as the target sees it; the latest one is kept."""
        if self._context is None or self._context[0] != question.seen:
            self._context = question.seen, self.verifier.encode(media_of(question.open()), Trace())
        return self._context[1]

    def _ids(self, question: str, asked: int, visual: int, prefix: int, answer: torch.Tensor) -> torch.Tensor:
        """int64 of all rows, -1 for those that stand for no known token."""
        found = torch.full((asked + len(answer) - 1,), -1, device=answer.device)
        if self.text_ids is not None:
            before, after = self.text_ids(question)
            found[: len(before)] = torch.tensor(before)
            found[prefix:asked] = torch.tensor(after)
        found[asked:] = answer[:-1]
        return found


FILLED = {"rows": 0, "ids": 0, "following": 0, "logits": 0, "positions": 0, "offsets": 0, "labels": -100, "loss_mask": 0}
"""What stands in the rows that a shorter batch gets."""


def side_by_side(batches: Sequence[TargetBatch]) -> TargetBatch:
    """Batches of one recording each, whose visual rows lie in the same place, as one: the shorter ones get rows that nothing is
    learned from."""
    first, most = batches[0], max(batch.rows.shape[1] for batch in batches)
    if len(batches) == 1:
        return first

    def column(parts: Iterable[torch.Tensor], filled: float = 0.0) -> torch.Tensor:
        return pad_sequence([part[0] for part in parts], batch_first=True, padding_value=filled)

    missing = [most - batch.rows.shape[1] for batch in batches]
    mask = torch.cat([pad(batch.mask, (0, by, 0, by)) for batch, by in zip(batches, missing, strict=True)])
    for row, by in enumerate(missing):
        # A row that is added looks at the prefix: attention of one that looks at nothing is NaN.
        mask[row, :, mask.shape[2] - by :, : first.prefix + 1] = True
    taps = {tap: column(batch.taps[tap] for batch in batches) for tap in first.taps}
    columns: dict[str, Any] = {
        name: column((getattr(batch, name) for batch in batches), filled) for name, filled in FILLED.items()
    }
    return replace(first, taps=taps, mask=mask, **columns)
