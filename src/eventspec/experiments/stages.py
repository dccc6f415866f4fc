"""What a pair's stages and rounds take on this machine: a few answers of every lossless method, for `plan` to go by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from eventspec.core import Budget, Sampling, Trace
from eventspec.costs.fit import measure_level, measure_link, measure_verify, request, session_of
from eventspec.experiments.arms import Arm, Recordings, interleaved
from eventspec.experiments.compare import environment
from eventspec.experiments.figures import Row, column
from eventspec.experiments.names import BASE
from eventspec.experiments.plan import USUAL_LINK, Link, MethodProfile, StageTimes, outlook
from eventspec.experiments.skipping import Skipping
from eventspec.experiments.statistics import mean, ratio_of_sums
from eventspec.pairs import Pair
from eventspec.pairs.names import EVENT_METHOD, SKIP
from eventspec.recordings import Recording
from eventspec.recordings.qa import Opening, Question, read_questions
from eventspec.scenes.writer import QA_NAME, write_scenes

STREET = ("test", 4_177)
"""Split and seed of the street clips that a pair is measured on, which nothing was fitted to."""
CLIPS = 10
"""How many they are: what drafters get right depends on the scene and on the question, so one clip says little of others."""
CURVE = (2, 4, 8, 16, 32)
"""Lengths at which V(k) is measured."""
SOURCE = "{answers} answers measured here, {tokens:.0f} tokens in the mean"


@dataclass(frozen=True)
class Measured:
    """Stage times of a pair and what its methods do, from `answers` questions asked with every one of them."""

    stages: StageTimes
    methods: Mapping[str, MethodProfile]
    errors: Mapping[str, float | None]
    """By how much answers are mispredicted that the profile was not made of: the median share of the measured time."""
    answers: int
    recordings: tuple[str, ...]
    """What the questions were about: acceptance is theirs, and another scene's may be higher or lower."""
    environment: Mapping[str, Any]
    link: Link | None
    """Between the models' devices, where they are two."""
    skipping: Skipping | None = None
    """The lossy skip-encode, where something is known of what it accepts."""

    def outlook(self, tokens: int, assumed: Link | None = None) -> dict[str, Any]:
        """As `plan.outlook`, and what it was made of. `assumed`: another link between two devices than the real one."""
        link = assumed or self.link or Link.assumed(USUAL_LINK)
        found = outlook(self.stages, self.methods, tokens, link)
        for name, row in found["methods"].items():
            row["error"] = self.errors[name]
        if self.skipping is not None:
            found["methods"][SKIP] = {**self.skipping.row(self.stages, tokens, link), "error": None}
        made_of = {"answers": self.answers, "recordings": list(self.recordings), "environment": dict(self.environment)}
        return {**found, **made_of}


@contextmanager
def street_questions(limit: int) -> Iterator[list[Question]]:
    """At most `limit` questions (0: all) about clips of the synthetic street, which the bundled pair was trained for: rendered
    for the occasion, 0.3 s a clip, and removed after it. On recordings of another world drafters are right less often."""
    split, seed = STREET
    with TemporaryDirectory(prefix="eventspec-street-") as place:
        write_scenes(Path(place) / "scenes", min(CLIPS, limit or CLIPS), split, seed)
        yield read_questions(Path(place) / "scenes" / QA_NAME, limit)


def measure(
    pair: Pair,
    questions: list[Question],
    progress: Callable[[int, int], None] = lambda done, total: None,
    opening: Opening = Recording.open,
    accept_share: float | None = None,
) -> Measured:
    """Ask every question with every lossless method and with skip-encode, interleaved, and time V(k) and a step of the event
    drafter. `accept_share`: as `Skipping.of_pair`."""
    # A method that chooses has no rounds of its own: it is as fast as what it chooses.
    usual = [name for name, method in pair.methods.items() if method.target.lossless and method.choice is None]
    sampling = pair.tokens.usual
    greedy = sampling == Sampling(max_new_tokens=sampling.max_new_tokens)  # skip-encode was calibrated on no other answers
    lossy = [SKIP] if SKIP in pair.methods and greedy else []
    arms = [Arm(name, name, pair) for name in (*usual, *lossy)]
    rows: list[dict[str, Row]] = []
    for _, found in interleaved(arms, Recordings(questions, opening), questions, sampling):
        rows.append(found)
        progress(len(rows), len(questions))
    step = pair.workers.start("drafter", lambda: _drafter_step(pair)).result()
    curve = pair.workers.start("target", lambda: measure_verify(session_of(pair.target, 1), CURVE, 6)).result()
    verify = tuple((count, seconds / curve.one) for count, seconds in zip(curve.counts, curve.seconds, strict=True))
    stages = replace(stages_of(rows), drafter_step=step, verify_curve=((1, 1.0), *verify))
    plan = pair.workers.placement
    methods = {name: profile_of(rows, name, plan) for name in usual}
    errors = {name: held_out_error(rows, name) for name in usual}
    recordings = tuple(dict.fromkeys(question.recording.name for question in questions))
    skipping = Skipping.of_pair(pair, rows, stages, accept_share)
    return Measured(stages, methods, errors, len(rows), recordings, environment(pair, ["real"]), link_of(pair), skipping)


def link_of(pair: Pair) -> Link | None:
    """How rows get from the drafter's device to the target's, measured there; None where that is one device."""
    if not pair.workers.apart:
        return None
    devices = pair.workers.devices
    each, rate = pair.workers.start("drafter", lambda: measure_link(devices["drafter"], devices["target"])).result()
    return Link(each, rate, f"measured here, from {devices['drafter']} to {devices['target']}")


def stages_of(rows: Sequence[Mapping[str, Row]]) -> StageTimes:
    """Means over the answers of the baseline, and of the event drafter's lane; drafting steps are not in the rows."""
    base = [found[BASE] for found in rows]
    vision = mean(column(base, "target_vision")) or 0.0
    first, step = mean(column(base, "first_committed")), _round(base, 1.0)
    assert first is not None  # every answer has a first token
    drafted = [found[EVENT_METHOD] for found in rows if EVENT_METHOD in found]
    # What lies between the stages is the prefill's: the baseline's first token is there when both are done.
    return StageTimes(
        vision or None,
        first - vision,
        step,
        mean(column(drafted, "drafter_vision")),
        mean(column(drafted, "drafter_prefill")),
    )


def profile_of(rows: Sequence[Mapping[str, Row]], method: str, device_plan: str = "two") -> MethodProfile:
    """What a method's rounds cost and yield: sums over all answers, the head start apart from what follows it."""
    own, base = [found[method] for found in rows], [found[BASE] for found in rows]
    spoken = [row["speculation"] for row in own]
    lengths = [len(row["token_ids"]) for row in own]
    # The verdict on the head start commits what it accepted and the target's own token, unless the answer ends before.
    firsts = [min(length, 1 + s["head_start_accepted"]) for length, s in zip(lengths, spoken, strict=True)]
    tau = ratio_of_sums([sum(lengths) - sum(firsts)], [sum(s["rounds"] - 1 for s in spoken)])
    begin = (mean(column(own, "first_committed")) or 0.0) - (mean(column(base, "first_committed")) or 0.0)
    source = SOURCE.format(answers=len(own), tokens=sum(lengths) / len(own))
    return MethodProfile(
        head_start=tuple((1 / len(firsts), float(first)) for first in firsts),
        begin=begin,
        tau=tau or 1.0,  # every answer was over with the head start: what would follow is taken to be plain decoding
        round=_round(own, stages_of(rows).step),
        acceptance=ratio_of_sums([s["accepted"] for s in spoken], [s["drafted_levels"] for s in spoken]),
        source=source,
        device_plan=device_plan,
        crossed=(
            mean([row["crossed"]["tensors"] for row in own]) or 0.0,
            mean([row["crossed"]["bytes"] for row in own]) or 0.0,
        ),
    )


def held_out_error(rows: Sequence[Mapping[str, Row]], method: str) -> float | None:
    """The median share by which an answer's time is mispredicted from all answers but that one; None for a single answer."""
    errors = []
    for place, found in enumerate(rows if len(rows) > 1 else ()):
        others, own = [*rows[:place], *rows[place + 1 :]], found[method]
        total = profile_of(others, method).total(stages_of(others), len(own["token_ids"]))
        errors.append(abs(total / own["timing_ms"]["total"] - 1))
    return round(median(errors), 4) if errors else None


def _round(rows: Sequence[Row], otherwise: float) -> float:
    """Milliseconds of a round after the first; `otherwise` where there was none."""
    rounds = sum(row["speculation"]["rounds"] - 1 for row in rows)
    return sum(row["timing_ms"]["decode"] for row in rows) / rounds if rounds else otherwise


def _drafter_step(pair: Pair) -> float | None:
    """Milliseconds in which the event drafter reads a token and drafts one; None without such a drafter."""
    drafter = pair.drafter(EVENT_METHOD) if EVENT_METHOD in pair.methods else None
    if drafter is None:
        return None
    session = drafter.open(request(), None, Trace())
    session.propose(Budget(4))
    return 1e3 * measure_level(session, repeats=6)
