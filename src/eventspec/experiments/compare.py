"""`bench compare`: the same questions in several arms, interleaved, one row a question and arm, and their summary.

Timings come first and for all questions; what else is found out about the answers comes afterwards (`afterwards`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from eventspec.core import BadInput, Sampling
from eventspec.experiments.afterwards import first_difference, vision_acceptance
from eventspec.experiments.arms import CONTEXTS, Arm, Opening, Recordings, interleaved
from eventspec.experiments.figures import BASE, Row, summary
from eventspec.experiments.rows import RowFile, beside, check_place
from eventspec.machine import processor
from eventspec.models.fingerprint import fingerprint
from eventspec.models.hf_session import HfTarget
from eventspec.models.session import LanguageTarget
from eventspec.pairs import Pair
from eventspec.pairs.parts import ends_of
from eventspec.recordings import Recording
from eventspec.recordings.qa import Question

EVENTS = ("real", "blank", "shuffled", "scattered")
SEES_EVENTS = ("cross-modal", "aligned", "event-eagle", "skip-encode", "cascade", "hybrid", "auto")
ALL_CORES = f"{BASE}, all cores"


def check_arms(methods: list[str], events: list[str], contexts: Sequence[str]) -> None:
    """BadInput for contexts and kinds of events that do not exist, or that no method sees."""
    for context in contexts:
        if context not in CONTEXTS:
            raise BadInput(f"context '{context}' is unknown: choose {', '.join(CONTEXTS)}")
    for kind in events:
        if kind not in EVENTS:
            raise BadInput(f"events '{kind}' is unknown: choose {', '.join(EVENTS)}")
    controls = [kind for kind in events if kind != EVENTS[0]]
    if controls and not set(methods) & set(SEES_EVENTS):
        problem = (
            f"none of the methods {', '.join(methods)} sees events, so {' and '.join(controls)} events would change nothing"
        )
        raise BadInput(f"{problem}: add the method {' or '.join(SEES_EVENTS)}, or leave --events out")


def arms_of(pair: Pair, methods: list[str], events: list[str], contexts: Sequence[str] = CONTEXTS[:1]) -> list[Arm]:
    """Every method with the first kind of events; those that see events with the other kinds too; the baseline on all cores;
    each in every context. A method that chooses learns in each arm apart. BadInput for what does not exist."""
    check_arms(methods, events, contexts)
    arms = []
    for method in methods:
        pair.method(method)
        arms.append(Arm(method, method, pair, events[0]))
        if method in SEES_EVENTS:
            arms += [Arm(f"{method}, {kind} events", method, pair, kind) for kind in events[1:]]
    if BASE in methods and pair.workers.placement == "two":
        arms.append(Arm(ALL_CORES, BASE, pair.on("one"), events[0]))
    return in_contexts(arms, contexts)


def in_contexts(arms: Sequence[Arm], contexts: Sequence[str]) -> list[Arm]:
    """Every arm in every context, named by it where it is not cold."""
    named = {context: "" if context == CONTEXTS[0] else f", {context}" for context in contexts}
    return [
        replace(arm, name=f"{arm.name}{named[context]}", pair=arm.pair.forgetful(), context=context)
        for context in contexts
        for arm in arms
    ]


def _names(arms: Sequence[Arm]) -> list[str]:
    """Of all arms; BadInput where two have the same."""
    names = [arm.name for arm in arms]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"'{min(twice)}' is there twice: every arm to answer needs a name of its own")
    return names


def base_of(found: dict[str, Row]) -> Row | None:
    """The baseline's row of a question, of a cold context where there is one; None where the baseline was not run."""
    rows = [row for row in found.values() if row["drafter"] == BASE]
    return min(rows, key=lambda row: row["context"] != CONTEXTS[0], default=None)


class Interrupted(KeyboardInterrupt):
    """Somebody stopped a comparison, `rows` of `wanted` are on the disk; `summary` is that of the questions which every arm has
    answered, None without any."""

    def __init__(self, summary: dict[str, Any] | None, rows: int, wanted: int) -> None:
        super().__init__(f"interrupted behind {rows} of {wanted} rows")
        self.summary, self.rows, self.wanted = summary, rows, wanted


def compare(
    pair: Pair,
    questions: list[Question],
    methods: list[str],
    sampling: Sampling,
    events: list[str],
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    opening: Opening = Recording.open,
    others: Sequence[Arm] = (),
    look: bool = True,
    contexts: Sequence[str] = CONTEXTS[:1],
    resume: bool = False,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run every question in every arm, in an order drawn anew for each, and write every row as soon as it is measured; returns
    the summary. `others` are further arms, such as the same target with other drafters. `look`: whether to find out afterwards
    what each drafter would say where the blind prior is wrong, which takes longer than the answers; it is kept beside `out` as
    NAME.vision.jsonl. `resume`: only what `out` lacks is measured. `about`: what else the rows depend on, by name.

    `first_difference` of a row is null until all are measured. BadInput where `out` holds rows that were measured otherwise, or
    that nobody wants to go on with. A KeyboardInterrupt becomes `Interrupted`, with what there is.
    """
    arms = [*arms_of(pair, methods, events, contexts), *in_contexts(others, contexts)]
    names, recordings = _names(arms), Recordings(questions, opening)
    check_place(out, resume)
    rows, settings = RowFile(out, resume), settings_of(pair, sampling, about)
    rows.check({arm.name: {"events": arm.events, "context": arm.context} for arm in arms}, questions, settings)
    looks = RowFile(beside(out), resume=True)
    _must_have_frames(pair, recordings)
    table, steps = list[dict[str, Row]](), len(questions) * (1 + look)

    def keep(row: Row) -> None:
        if not len(rows):
            looks.discard()  # of rows that are gone
        row.update(first_difference=None, settings=settings)
        rows.add(row)

    def summed() -> dict[str, Any]:
        return summary(_with_looks(table, looks), names, {**environment(pair, events), **about})

    try:
        for _, found in interleaved(arms, recordings, questions, sampling, lambda q, arm: rows.get(arm.name, q.id), keep):
            table.append(found)
            progress(len(table), steps)
        for number, (question, found) in enumerate(zip(questions, table, strict=True), 1):
            for arm in arms:
                _look(arm, recordings, question, sampling, found, looks if look else None)
            progress(len(questions) + number, max(steps, len(questions) + number))
    except KeyboardInterrupt:
        raise Interrupted(summed() if table else None, len(rows), len(arms) * len(questions)) from None
    finally:
        rows.close()
        looks.close()
        for arm in arms:
            if arm.pair.workers is not pair.workers:
                arm.pair.workers.close()
    rows.rewrite(row for found in table for row in found.values())
    return summed()


def _look(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, found: dict[str, Row], looks: RowFile | None
) -> None:
    """What is found out about an arm's answer afterwards: where it leaves the baseline's, into its row, and into `looks` what
    its drafter would say where the blind prior is wrong."""
    row = found[arm.name]
    row["first_difference"] = first_difference(arm, recordings, question, sampling, base_of(found), row)
    if looks is None or looks.get(arm.name, question.id) is not None:
        return
    note = None
    try:
        vision = vision_acceptance(arm, recordings, question, sampling, row["token_ids"])
    except Exception as error:  # a drafter that fails: its looks say so, and everything else stays
        vision, note = None, f"{arm.name} failed: {type(error).__name__}"
    if vision is not None or note is not None:
        looks.add({"question_id": question.id, "method": arm.name, "vision": vision, "note": note})


def _with_looks(table: list[dict[str, Row]], looks: RowFile) -> list[Row]:
    """All rows, with [right, all] of their drafters' first choices where the prior is wrong as `vision`."""
    rows = [row for found in table for row in found.values()]
    return [{**row, "vision": (looks.get(row["method"], row["question_id"]) or {}).get("vision")} for row in rows]


def settings_of(pair: Pair, sampling: Sampling, about: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for rows to be compared: models, sampling, and the machine."""
    weights = pair.fingerprint()
    if weights is None and isinstance(pair.target, LanguageTarget | HfTarget):
        weights = fingerprint(ends_of(pair.target))
    return {
        "pair": pair.name,
        "weights": weights,
        "device_plan": pair.workers.placement,
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "torch": torch.__version__,
        "processor": processor(),
        **about,
    }


def _must_have_frames(pair: Pair, recordings: Recordings) -> None:
    """BadInput, before anything is timed, when the target sees frames and some recording has none."""
    if pair.parts.target_needs != "frames":
        return
    blind = [path for path in recordings.paths if not len(recordings.real(path).video or ())]
    if blind:
        problem = f"{len(blind)} of {len(recordings.paths)} recordings have no RGB frames, first {blind[0]}"
        raise BadInput(f"{problem}: the target of pair {pair.name} sees frames, whatever drafts; leave their questions out")


def environment(pair: Pair, events: list[str]) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "pair": pair.name,
        "pair_sha256": pair.fingerprint(adapters=False),
        "events": events,
        "device_plan": pair.workers.placement,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }
