"""The recipe of paired states: what an event model and a target compute of the same recordings and at the same tokens, layer by
layer, for `bench gaps` and whatever else compares them. Nothing is learned here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.align.adapters import AdapterConfig, laid_out
from eventspec.core import BadInput
from eventspec.models.weights import fingerprint
from eventspec.nn import Llama
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.recordings.qa import Ends, Question, another
from eventspec.train.adapting import same_text
from eventspec.train.answers import TrainingPreset
from eventspec.train.data import Branch, PixelSource
from eventspec.train.frozen import FrozenDrafter, FrozenTarget, as_read
from eventspec.train.loop import Report, Stage, note_run
from eventspec.train.material import Material, Models, material_of
from eventspec.train.models import tapped_branches
from eventspec.train.names import Given
from eventspec.train.recorded import Recorded
from eventspec.train.states import Arrays, Entry, Shards

CLIPS = 40
"""Rendered clips for a pair of ours, unless another number is asked for."""
PACKED = 6
"""Questions about a recording that are read at once."""
ANOTHER = "the control is the events of another recording, or of a window of this one apart from it: ask about one"
SHARD = 8
"""Recordings of a shard: what an interruption loses at most."""
MOST_BYTES = 16 << 30
"""Of states on disk; recordings beyond are left out, and counted."""


@dataclass(frozen=True)
class Subject:
    """One recording of a source by its number, with what the target answered to the questions about it."""

    source: PixelSource
    number: int
    branches: list[Branch]
    name: str
    window: Ends | None
    held_out: bool


def check(pair: str, asked: Sequence[Question], limit: int) -> None:
    """BadInput for a pair without an event model, and for questions, or clips, about a single recording, or a single moment of
    it: the control is another one's events. Known before a model is loaded."""
    file = PairFile.read(folder_of(pair))
    if "drafter" not in file.files:
        raise BadInput(f"pair {file.name} has no event model: `eventspec train drafter` makes one")
    if limit == 1 or len({one.seen for one in asked}) == 1:
        raise BadInput("one recording is too few: two are needed, the control is another one's events")
    seen = list(dict.fromkeys(one.seen for one in asked))
    if alone := [one for one in asked if another(one.seen, seen) is None]:
        raise BadInput(f"{alone[0]} shares a moment with every other window: {ANOTHER}")


def extract(pair: str, given: Given | None, limit: int, out: Path, work: Path, stored: str, report: Report) -> dict[str, Any]:
    """Write the states of a pair into `out`, see `states`; what its index says of them. By questions about recordings where
    some are `given`, else about rendered clips that no training of ours learns from, `limit` of them (0: CLIPS), which go into
    `work`. Picks up where a run was interrupted. BadInput and BadCheckpoint, one line each."""
    clips = TrainingPreset(0, limit or CLIPS, Stage("states", 0, 0, 1), PACKED)
    digest = None if given is None else hashlib.sha256(given.questions.read_bytes()).hexdigest()[:16]

    def begin(models: Models) -> None:
        longest = None if given is None else given.longest
        between = {"target": fingerprint(models.target), "drafter": fingerprint(models.events)}
        note_run(out, {**between, "questions": digest, "max_new_tokens": longest, "limit": limit, "stored": stored})

    material = material_of(pair, clips, work, report, given, begin=begin)
    subjects, shards = subjects_of(material), Shards(out, stored)
    if len(subjects) < 2:
        raise BadInput("the target's answers about all recordings but one are too short: there is no other one's events")
    reading = Reading(material, subjects)
    for at in range(len(shards.recordings), len(subjects), SHARD):
        if shards.count and shards.bytes * (shards.count + 1) / shards.count > MOST_BYTES:
            break
        report("states", at / len(subjects), {})
        found = [reading.states(place) for place in range(at, min(at + SHARD, len(subjects)))]
        recordings = [_counted(subject, states) for subject, states in zip(subjects[at:], found, strict=False)]
        arrays = {name: np.concatenate([states[name] for states in found]) for name in found[0]}
        shards.add(recordings, arrays)
    report("states", 1.0, {})
    file, models = material.file, {"target": material.target, "drafter": material.events}
    counts = {"visual": sum(one.visual for one in shards.recordings), "text": sum(one.text for one in shards.recordings)}
    about: dict[str, Any] = {
        "pair": file.name,
        "pair_folder": str(file.folder.resolve()),
        "fingerprints": {role: fingerprint(model) for role, model in models.items()},
        "rows": counts,
        "left_out": len(subjects) - len(shards.recordings),
    }
    known = shards.write_index(about)
    held_out = sum(one.held_out for one in shards.recordings)
    return {"folder": str(out), "n_recordings": len(shards.recordings), "held_out": held_out, **known}


def subjects_of(material: Material) -> list[Subject]:
    """All recordings of a material, those to learn from first; none twice."""
    found = dict[tuple[str, Ends | None], Subject]()
    for part, held_out in ((material.learned, False), (material.judged, True)):
        for number, branches in sorted(part.answers.items()):
            name, window = f"clip {number}", None
            if isinstance(part.source, Recorded):
                name, window = str(part.source.asked[number].recording), part.source.asked[number].window
            found.setdefault((name, window), Subject(part.source, number, branches, name, window, held_out))
    return list(found.values())


def beside(seen: Sequence[tuple[str, Ends | None]]) -> list[int]:
    """For each of several recordings, or windows, the next one of `another`; BadInput where there is none."""
    found = list[int]()
    for place, own in enumerate(seen):
        at = another(own, [*seen[place + 1 :], *seen[:place]])
        if at is None:
            raise BadInput(f"{own[0]}{'' if own[1] is None else f', window {list(own[1])}'}: {ANOTHER}")
        found.append((place + 1 + at) % len(seen))
    return found


class Reading:
    """Both models of a material, reading recordings in their order. What the event model computes with another clip's events,
    the control, is with those of the next one, as `another` has it; BadInput where there is none."""

    def __init__(self, material: Material, subjects: Sequence[Subject]) -> None:
        self.target = FrozenTarget(material.target, material.before)
        self.drafter = FrozenDrafter(material.events, material.drafter_before)
        self.subjects = subjects
        width = material.target.config.language.hidden_size
        self.layers = AdapterConfig.of("fused", self.drafter.model.config, width).layers
        self._seen: dict[int, tuple[list[Tensor], Tensor]] = {}
        self._beside = beside([(one.name, one.window) for one in subjects])

    @torch.no_grad()
    def states(self, place: int) -> Arrays:
        """The arrays of one recording, as `states.Arrays`."""
        subject, model = self.subjects[place], self.target.model
        other = self._beside[place]
        self._seen = {number: self._seen[number] if number in self._seen else self._events(number) for number in (place, other)}
        tower, own = self._seen[place]
        weight = model.projector.linear_1.weight
        seen = model.tower(subject.source.frames(np.array([subject.number])).to(weight), model.config.vision_layer)
        rows, config = model.projector(seen), self.drafter.model.config
        names = [*(f"tower_{layer}" for layer in self.layers[:-1]), "tower"]
        found = {f"{name}.drafter": layer[0] for name, layer in zip(names, tower, strict=True)}
        found |= {"rows.drafter": own[0]}
        found |= {f"{name}.target": laid_out(one[None], config)[0] for name, one in (("tower", seen), ("rows", rows))}
        visual = {"target": rows.flatten(0, 1)[None], "drafter": own, "control": self._seen[other][1]}
        parts = [self._text(subject.branches[at : at + PACKED], visual) for at in range(0, len(subject.branches), PACKED)]
        found |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: array.float().cpu().numpy() for name, array in found.items()}

    def _events(self, place: int) -> tuple[list[Tensor], Tensor]:
        """Layers of the event tower, pooled, [1, T, C] each, and the event model's visual rows, [1, T, D]."""
        subject, model = self.subjects[place], self.drafter.model
        pixels = subject.source.pictures(np.array([subject.number])).to(model.projector.linear_1.weight)
        tower = model.tower.outputs(pixels, self.layers)
        return [model.pooled(layer) for layer in tower], model.pooled(model.adaptor(model.projector(tower[-1])))

    def _text(self, branches: list[Branch], visual: dict[str, Tensor]) -> dict[str, Tensor]:
        """States at the tokens of answers, [R, D] each, where both models have read the same text."""
        places, known = (found[0] for found in same_text([branches]))
        found = _read(
            self.target.model.language, self.target.before, visual["target"], branches, torch.arange(len(known))[known]
        )
        made = {"penultimate.target": found["penultimate"], "last.target": found["last"]}
        own = as_read([branches])[0]
        for role in ("drafter", "control"):
            found = _read(self.drafter.model.language, self.drafter.before, visual[role], own, places[known])
            made |= {f"{name}.{role}": rows for name, rows in found.items()}
        del made["read.control"]  # the same text
        return made


def _read(language: Llama, before: list[int], visual: Tensor, branches: list[Branch], places: Tensor) -> dict[str, Tensor]:
    """What a language model computes at some rows of packed branches, [R, D] each: after the layer before the last one, what
    its head reads, and the rows that were read there."""
    last = language.config.num_hidden_layers
    hidden, (before_last,), packed = tapped_branches(language, before, visual, [branches], (last - 1,))
    read = language.embed(packed.ids.to(hidden.device))
    found = {"penultimate": before_last, "last": language.normed(hidden), "read": read}
    return {name: rows[0, places.to(rows.device)] for name, rows in found.items()}


def _counted(subject: Subject, states: Arrays) -> Entry:
    visual, text = len(states["rows.target"]), len(states["last.target"])
    return Entry(subject.name, subject.window, subject.held_out, visual, text)
