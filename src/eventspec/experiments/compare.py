"""`bench compare`: the same questions in several arms, interleaved, one row a question and arm, and their summary.

Timings come first and for all questions; what else is found out about the answers comes afterwards, so that it warms
or cools no cache for the arm that is timed next.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from eventspec.align.deciding import Decision
from eventspec.core import BadInput, Budget, Drafter, Proposal, Request, Sampling, Scores, Trace, Verdict
from eventspec.costs.fit import session_of
from eventspec.engine.distribution import allowed
from eventspec.engine.method import Method
from eventspec.engine.policy import NO_TAIL
from eventspec.errors import several
from eventspec.experiments.arms import Arm, Recordings, ask, interleaved
from eventspec.experiments.figures import Row, summary
from eventspec.experiments.names import ALL_CORES, BASE, CONTEXTS, EVENTS, SEES_EVENTS, check_arms, with_events
from eventspec.experiments.rows import RowFile, beside, check_place
from eventspec.machine import processor
from eventspec.models.hf_session import HfTarget
from eventspec.models.session import LanguageTarget
from eventspec.models.weights import fingerprint
from eventspec.pairs import Pair, warm_up
from eventspec.pairs.learning import learning_heads
from eventspec.pairs.methods import drafting_by
from eventspec.pairs.names import EVENT_METHOD, LOSSY, SKIP, USUAL_MAPPING, name_and_choice
from eventspec.recordings import Recording
from eventspec.recordings.qa import Opening, Question

Progress = Callable[[int, int], None]


def arms_of(
    pair: Pair, methods: Sequence[str], events: Sequence[str] = EVENTS[:1], contexts: Sequence[str] = CONTEXTS[:1]
) -> list[Arm]:
    """Every method with the first kind of events; those that see events with the other kinds too; the baseline on all cores;
    each in every context. A method that chooses learns in each arm apart. BadInput for what does not exist."""
    check_arms(methods, events, contexts)
    arms = []
    for method in methods:
        pair.method(method)
        arms.append(Arm(method, method, pair, events[0]))
        if method in SEES_EVENTS:
            arms += [Arm(with_events(method, kind), method, pair, kind) for kind in events[1:]]
    if BASE in methods and pair.workers.placement == "two" and not pair.workers.apart:  # where they are, it has its device
        arms.append(Arm(ALL_CORES, BASE, pair.on("one"), events[0]))
    return in_contexts(arms, contexts)


def others_of(pair: Pair, choices: Mapping[str, Sequence[str]], events: str = EVENTS[0], fit: bool = True) -> list[Arm]:
    """Arms beyond the methods, with other parts of the same target: `choices` has names of event drafters (`drafter`), heads
    (`head`), compressions (`compress`), adapters (`adapter`) and rules of skip-encode (`decide`). `fit`: heads draft as is
    worth it on this machine. Where the pair's heads learn, theirs do."""
    drafters, heads, compressions, adapters = (choices.get(name, ()) for name in ("drafter", "head", "compress", "adapter"))
    mapped = [(name, name_and_choice(name, USUAL_MAPPING, pair.parts.drafters)) for name in drafters]
    made = [(EVENT_METHOD, name, pair.with_event_drafter(*chosen)) for name, chosen in mapped]
    headed = [(name, pair.with_head(name)) for name in heads]
    made += [("eagle", name, warm_up(other, ("eagle",)) if fit else other) for name, other in headed]
    made += [(LOSSY, name, pair.with_compression(name)) for name in compressions]
    made += [(drafting_by(pair.parts, name), name, pair.with_adapter(name)) for name in adapters]
    made += [(SKIP, str(Decision.parse(rule)), pair.with_decision(rule)) for rule in choices.get("decide", ())]
    if learning_heads(pair.methods.values()):
        made = [(method, name, other.with_learning([method])) for method, name, other in made]
    return [Arm(f"{method}, {name}", method, other, events) for method, name, other in made]


def in_contexts(arms: Sequence[Arm], contexts: Sequence[str]) -> list[Arm]:
    """Every arm in every context, named by it where it is not cold."""
    named = {context: "" if context == CONTEXTS[0] else f", {context}" for context in contexts}
    return [
        replace(arm, name=f"{arm.name}{named[context]}", pair=arm.pair.forgetful(), context=context)
        for context in contexts
        for arm in arms
    ]


def base_of(found: dict[str, Row]) -> Row | None:
    """The baseline's row of a question, of a cold context where there is one; None where the baseline was not run."""
    rows = [row for row in found.values() if row["drafter"] == BASE]
    return min(rows, key=lambda row: row["context"] != CONTEXTS[0], default=None)


class Interrupted(KeyboardInterrupt):
    """A comparison was stopped with `rows` of `wanted` on the disk; `summary` is that of the questions which every arm has
    answered, None without any."""

    def __init__(self, summary: dict[str, Any] | None, rows: int, wanted: int) -> None:
        super().__init__(f"interrupted after {rows} of {wanted} rows")
        self.summary, self.rows, self.wanted = summary, rows, wanted


@dataclass(frozen=True)
class Comparison:
    """Which questions are asked, and in which arms: every method of a pair with every kind of events in every context, and
    `others`, further arms such as the same target with other drafters."""

    pair: Pair
    questions: Sequence[Question]
    methods: Sequence[str]
    sampling: Sampling | None = None
    """None: as is usual for the pair's target."""
    events: Sequence[str] = EVENTS[:1]
    contexts: Sequence[str] = CONTEXTS[:1]
    others: Sequence[Arm] = ()
    opening: Opening = Recording.open
    look: bool = True
    """Whether to find out afterwards what each drafter would say where the blind prior is wrong, which takes longer than the
    answers; it is kept beside the rows as NAME.vision.jsonl."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the rows depend on, by name."""

    def arms(self) -> list[Arm]:
        """All of them. BadInput for methods, events and contexts that do not exist, and for two arms with one name."""
        own = arms_of(self.pair, self.methods, self.events, self.contexts)
        arms = [*own, *in_contexts(self.others, self.contexts)]
        names = [arm.name for arm in arms]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadInput(f"'{min(twice)}' is there twice: every arm to answer needs a name of its own")
        return arms


def compare(
    asked: Comparison, out: Path, progress: Progress = lambda done, total: None, resume: bool = False
) -> dict[str, Any]:
    """Run every question in every arm, in a random order for each, and write every row as soon as it is measured; returns the
    summary. `resume`: only what `out` lacks is measured. `progress` is called with the steps that are done, and all.

    `first_difference` of a row is null until all are measured. BadInput where `out` holds rows that were measured otherwise, or
    that are not to be gone on with. A KeyboardInterrupt becomes `Interrupted`, with what there is.
    """
    running = _Running(asked, out, resume)
    try:
        running.measure(progress)
        running.look(progress)
    except KeyboardInterrupt:
        summed = running.summary() if running.table else None
        raise Interrupted(summed, len(running.rows.rows), len(running.arms) * len(asked.questions)) from None
    finally:
        running.close()
    running.rows.rewrite(row for found in running.table for row in found.values())
    return running.summary()


class _Running:
    """A comparison under way: its arms, the rows on the disk, and `table`, the rows by arm of every question that all arms have
    answered."""

    def __init__(self, asked: Comparison, out: Path, resume: bool) -> None:
        self.asked, self.arms, self.table = asked, asked.arms(), list[dict[str, Row]]()
        self.recordings, self.sampling = Recordings(asked.questions, asked.opening), asked.sampling or asked.pair.tokens.usual
        check_place(out, resume)
        self.rows, self.settings = RowFile(out, resume), settings_of(asked.pair, self.sampling, asked.about)
        about = {arm.name: {"events": arm.events, "context": arm.context} for arm in self.arms}
        self.rows.check(about, asked.questions, self.settings)
        self.looks = RowFile(beside(out), resume=True)
        _must_have_frames(asked.pair, self.recordings)

    def measure(self, progress: Progress) -> None:
        questions = self.asked.questions
        rows = interleaved(self.arms, self.recordings, questions, self.sampling, self.rows.get, self._keep)
        for number, (_, found) in enumerate(rows, 1):
            self.table.append(found)
            progress(number, len(questions) * (1 + self.asked.look))

    def _keep(self, row: Row) -> None:
        if not self.rows.rows:
            self.looks.discard()  # of rows that are gone
        row.update(first_difference=None, settings=self.settings)
        self.rows.add(row)

    def look(self, progress: Progress) -> None:
        """Where every answer leaves the baseline's, into its row; what its drafter would say where the blind prior is wrong,
        into a file of its own."""
        questions, sampling = self.asked.questions, self.sampling
        for number, (question, found) in enumerate(zip(questions, self.table, strict=True), len(questions) + 1):
            for arm in self.arms:
                row = found[arm.name]
                row["first_difference"] = first_difference(arm, self.recordings, question, sampling, base_of(found), row)
                if self.asked.look and self.looks.get(question, arm) is None:
                    self._look_blind(arm, question, row)
            if self.asked.look:
                progress(number, 2 * len(questions))

    def _look_blind(self, arm: Arm, question: Question, row: Row) -> None:
        vision, note = None, None
        try:
            vision = vision_acceptance(arm, self.recordings, question, self.sampling, row["token_ids"])
        except Exception as error:  # a drafter that fails: the note says so, and everything else stays
            note = f"{arm.name} failed: {type(error).__name__}"
        if vision is not None or note is not None:
            self.looks.add({"question_id": question.id, "method": arm.name, "vision": vision, "note": note})

    def summary(self) -> dict[str, Any]:
        where = {**environment(self.asked.pair, self.asked.events), **self.asked.about}
        rows = [row for found in self.table for row in found.values()]
        looks = [self.looks.rows.get((row["method"], row["question_id"]), {}).get("vision") for row in rows]
        rows = [{**row, "vision": vision} for row, vision in zip(rows, looks, strict=True)]
        return summary(rows, [arm.name for arm in self.arms], where)

    def close(self) -> None:
        self.rows.close()
        self.looks.close()
        for arm in self.arms:
            if arm.pair.workers is not self.asked.pair.workers:
                arm.pair.workers.close()


def vision_acceptance(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, answer: list[int]
) -> list[int] | None:
    """[right, all] over the answer's tokens that the blind prior gets wrong: whether the first choice of a method's drafters
    together, given the target's own tokens before, is the target's token. None for a method that drafts nothing, and for a
    pair without a prior."""
    if not _drafters(arm.pair.method(arm.method)) or "prior" not in arm.pair.methods:
        return None
    request = ask(arm, recordings, question, sampling).request
    seen, blind = (_first_choices(arm.pair, request, method, answer) for method in (arm.method, "prior"))
    visual = [i for i, token in enumerate(answer) if blind[i] != token]
    return [sum(seen[i] == answer[i] for i in visual), len(visual)]


def _drafters(method: Method) -> list[Drafter]:
    """Every drafter at the method's costs, before the prefill's end or after it, once."""
    return list({id(one): one for one in (*method.drafts.ahead, *method.drafts.later(method.current_policy))}.values())


@torch.inference_mode()
def _first_choices(pair: Pair, request: Request, method: str, answer: list[int]) -> list[int | None]:
    """What a method's drafters together would name first at every position after the target's own prefix; a drafter that reads
    the target drafts nothing before the target has spoken."""
    drafters, one = _drafters(pair.method(method)), Budget(max_nodes=1, max_depth=1)
    reading = next((drafter for drafter in drafters if drafter.needs_target), None)
    target, features = None, None
    if reading is not None:
        target = session_of(pair.target, NO_TAIL, reading.taps, request)
        features = target.score(Proposal.chain(answer)).features
    sessions = [(drafter.needs_target, drafter.open(request, target, Trace())) for drafter in drafters]
    choices: list[int | None] = []
    for place, token in enumerate(answer):
        drafts = [session.propose(one) for needs_target, session in sessions if place or not needs_target]
        named = [proposal for proposal in drafts if len(proposal)]
        together = pair.method(method).drafts.merge(named, one) if len(named) > 1 else next(iter(named), Proposal.empty())
        choices.append(int(together.tokens[0]) if len(together) else None)
        seen = None if features is None else features[place : place + 1]
        for _, session in sessions:
            session.observe(Verdict.of(tokens=[token]), Scores(torch.empty(0), seen))
    return choices


@torch.inference_mode()
def first_difference(
    arm: Arm, recordings: Recordings, question: Question, sampling: Sampling, base: Row | None, row: Row
) -> Row | None:
    """Where a row leaves the baseline, and the target's top-2 logit gap there; None where it does not, or without one."""
    if base is None or base["token_ids"] == row["token_ids"]:
        return None
    one, two = base["token_ids"], row["token_ids"]
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    request = ask(arm, recordings, question, sampling).request
    logits = session_of(arm.pair.target, 1, asked=request).score(Proposal.chain(one[:at])).logits[-1]
    top = allowed(logits, request.sampling).topk(2).values
    return {"position": at, "gap": float(top[0] - top[1])}


def settings_of(pair: Pair, sampling: Sampling, about: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for rows to be compared: models, sampling, and the machine."""
    weights = pair.fingerprint()
    if weights is None and isinstance(pair.target, LanguageTarget | HfTarget):
        weights = fingerprint(pair.parts.ends)
    named, usual = ("max_new_tokens", "temperature", "seed"), vars(Sampling())
    others = {name: value for name, value in vars(sampling).items() if value != usual[name] and name not in named}
    others |= {"logit_bias": dict(sampling.logit_bias)} if sampling.logit_bias else {}
    others.pop("constraint", None)  # no JSON
    return {
        "pair": pair.name,
        "weights": weights,
        "device_plan": pair.workers.placement,
        **_devices(pair),
        **{name: getattr(sampling, name) for name in named},
        **({"sampling": others} if others else {}),
        "torch": torch.__version__,
        "processor": processor(),
        **about,
    }


def _devices(pair: Pair) -> dict[str, Any]:
    """Where target and drafter are, where these are two devices."""
    return {"devices": pair.workers.devices} if pair.workers.apart else {}


def _must_have_frames(pair: Pair, recordings: Recordings) -> None:
    """BadInput, before anything is timed, when the target sees frames and some recording has none."""
    if pair.parts.target_needs != "frames":
        return
    blind = [question for question in recordings.asked if not recordings.frames(question)]
    if blind:
        problem = f"{len(blind)} of {several(len(recordings.asked), 'recording')} without RGB frames, first {blind[0]}"
        raise BadInput(f"{problem}: the target of pair {pair.name} sees frames, whatever drafts; leave their questions out")


def environment(pair: Pair, events: Sequence[str] = EVENTS[:1]) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "pair": pair.name,
        "pair_sha256": pair.fingerprint(adapters=False),
        "events": list(events),
        "device_plan": pair.workers.placement,
        **_devices(pair),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }
