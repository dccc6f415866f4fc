"""Heads that learn while they answer, on a stream of questions: beside the same heads that do not, and beside the control that
is shown wrong verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from eventspec.drafters.heads.learning import LearningDraft, LearningDrafter, Taught
from eventspec.experiments.arms import Arm, Recordings, interleaved
from eventspec.experiments.compare import environment
from eventspec.experiments.figures import Row
from eventspec.experiments.measures.heads import fewer_rounds, fitted
from eventspec.experiments.measures.setup import Finding, Found, Setup, one_thread, street
from eventspec.experiments.names import BASE
from eventspec.experiments.statistics import ratio_interval, ratio_of_sums
from eventspec.pairs import Pair, load_pair
from eventspec.pairs.learning import learning, learning_heads

HEADS = ("eagle", "eagle1")
SEED = 9400


class WrongVerdicts(LearningDrafter):
    """The control: what the target said, in any order, of the answer before."""

    before: Taught | None = None

    def rows_of(self, session: LearningDraft) -> Taught:
        found = super().rows_of(session)
        said, self.before = self.before or found, found
        drawn = torch.randint(len(said[0]), (len(found[0]),), generator=self._drawing)
        return (*found[:2], *(part[drawn] for part in said[2:]))


def measure(setup: Setup) -> Iterator[Finding]:
    """tau in both halves of a stream, of every head off, learning, and with wrong verdicts; what a job takes, and keeps."""
    sizes = {"scenes": setup.size(100, 2), "seed": SEED}
    heads, halves = setup.size(HEADS, HEADS[:1]), dict[str, tuple[list[Row], list[Row]]]()
    with one_thread(), street(setup, "learning", **sizes, limit=setup.size(200, 4)) as (questions, _):
        pair = fitted(setup, load_pair(setup.pair, "one", fit=False))
        arms, asked = [Arm(BASE, BASE, pair), *_arms(setup, pair, heads)], len(questions)
        rows = interleaved(arms, Recordings(questions), questions, pair.tokens.usual)
        for number, (_, found) in enumerate(rows):
            for name, row in found.items():
                halves.setdefault(name, ([], []))[2 * number >= asked].append(row)
            setup.progress((number + 1) / asked)
    base = [row["token_ids"] for part in halves.pop(BASE) for row in part]
    table = {name: _figures(own, halves[name.partition(",")[0]], base) for name, own in halves.items()}
    for arm in arms[1:]:
        for head in learning_heads([arm.pair.method("eagle")]):
            about = {"updates": head.updates, "refused": head.refused, "job_ms": 1e3 * head.seconds / max(1, head.updates)}
            table[arm.name] |= {**about, "kept_kb": sum(part.nbytes for part in head.taught) / 1e3}
    recordings = len({question.recording for question in questions})
    yield ("learning",), {"n": asked, "recordings": recordings, **sizes, "environment": environment(pair), "methods": table}


def _arms(setup: Setup, pair: Pair, heads: Sequence[str]) -> Iterator[Arm]:
    for head in heads:
        own = fitted(setup, pair.with_head(head), ("eagle",))
        yield Arm(head, "eagle", own)
        yield Arm(f"{head}, learning", "eagle", own.with_learning())
        yield Arm(f"{head}, wrong verdicts", "eagle", replace(own, methods=learning(own.methods, make=WrongVerdicts)))


def _figures(own: tuple[list[Row], list[Row]], off: tuple[list[Row], list[Row]], base: list[list[int]]) -> Found:
    """Of one arm, by half: tau, and how many rounds the head takes that does not learn, for one of its own."""
    found: Found = {"identical": sum(row["token_ids"] == said for row, said in zip([*own[0], *own[1]], base, strict=True))}
    for half, rows, others in zip(("first", "second"), own, off, strict=True):
        given = [len(row["token_ids"]) for row in rows], [row["speculation"]["rounds"] for row in rows]
        interval = ratio_interval(*given, [row["recording"] for row in rows])
        against = fewer_rounds(others, rows)
        found |= {f"tau_{half}": ratio_of_sums(*given), f"tau_{half}_ci95": interval}
        found |= {f"fewer_{half}": against["fewer_rounds"], f"fewer_{half}_ci95": against["ci95"]}
    return found
