"""The recipe of a pair's text prior: what its target usually says to a question, without a recording. It drafts in method
`prior`, and is the control that every drafter with eyes is held against."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from eventspec.drafters import TextPrior
from eventspec.files import write_text
from eventspec.pairs.pair_file import PairFile, folder_of
from eventspec.train.answers import Preset, TrainingPreset, preset_of, presets_of
from eventspec.train.data import WORKERS
from eventspec.train.loop import Report, Stage, changed_pair
from eventspec.train.material import answers_of_target, every_question, material_of
from eventspec.train.names import Given
from eventspec.train.processes import ALONE, Processes

NAME = "prior"
FIGURES = "prior-report.json"
PRESETS = presets_of(
    {
        "cpu": TrainingPreset(1500, 64, Stage(NAME, 0, 0, 1, steps=1), 1),
        "smoke": TrainingPreset(4, 2, Stage(NAME, 0, 0, 1, steps=1), 1),
    }
)
"""How many recordings are asked about: nothing is trained by steps."""
Texts = Sequence[tuple[str, Sequence[int]]]
"""Questions with their answers in ids."""


def train(
    pair: str,
    size: Preset,
    out: Path,
    report: Report,
    workers: int = WORKERS,
    processes: Processes = ALONE,
    given: Given | None = None,
) -> Path:
    """Count what the pair's target says and write OUT/pair: the pair with the prior, in the place of an earlier one.
    prior-report.json: on questions about other recordings, how often its likeliest token is the target's."""
    file, preset = PairFile.read(folder_of(pair)), preset_of(PRESETS, size)
    learned: Texts
    judged: Texts
    if file.load is not None and given is not None:
        with answers_of_target(file, preset, given, report, processes) as (_, kept):
            alike = kept[0] is kept[1]
            file = file.having_learned(NAME, (example.question.resolved for example in kept[0]))
        learned, judged = ([(example.question.question, example.answer) for example in part] for part in kept)
    else:
        material = material_of(pair, preset, out, report, given, workers, processes)
        parts, alike = (material.learned, material.judged), material.learned_from_judged
        learned, judged = ([(text, branch.answer) for _, _, text, branch in every_question(part)] for part in parts)
    if not processes.first:
        return out / "pair"
    prior = TextPrior.of(learned)
    with changed_pair(file, out) as made:
        made = replace(made, files={**made.files, "prior": "prior.json"})
        prior.save(made.place("prior"))
        made.write()
    figures = {"answers": len(learned), "judged": len(judged), "tokens": right_share(prior, judged)}
    figures["learned_from_judged"] = alike
    write_text(out / FIGURES, json.dumps(figures) + "\n")
    return out / "pair"


def right_share(prior: TextPrior, texts: Iterable[tuple[str, Sequence[int]]]) -> float:
    """The share of all tokens that are the prior's likeliest one after those before them."""
    right = [
        [token for token, _ in prior.following(question, answer[:at], 1)] == [answer[at]]
        for question, answer in texts
        for at in range(len(answer))
    ]
    return sum(right) / max(1, len(right))
