"""`bench compare`: the same questions with several methods, interleaved, one row a sample and method, and their summary."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eventspec.core import BadInput, Budget, Proposal, Request, Sampling, Scores, Trace, Verdict
from eventspec.events.disturb import blank
from eventspec.experiments.statistics import mean, ratio_interval, ratio_of_sums
from eventspec.pairs import Answering, Pair, answering
from eventspec.recordings import Recording

SHORT_TOKENS = 25
TIE_GAP = 1e-4
"""Top-2 logit gap below which a difference is a tie of float summation order (fp32)."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One line of a qa.jsonl."""

    id: str
    recording: Path
    question: str
    answer: str


def read_questions(path: Path, limit: int | None) -> list[Question]:
    """Questions of a qa.jsonl, recordings relative to its folder; BadInput names file and line of what is wrong."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist: make one with `eventspec scenes make`")
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(Question(f"{number:06d}", path.parent / row["recording"], row["question"], row["answer"]))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise BadInput(f"{path}, line {number}: not a question row ({error}); wanted recording, question, answer") from None
        if limit and len(found) == limit:
            break
    if not found:
        raise BadInput(f"{path} holds no questions")
    return found


class Recordings:
    """Opened recordings by path, and what the control `events` makes of them."""

    def __init__(self, questions: list[Question], events: str) -> None:
        if events not in ("real", "blank", "shuffled"):
            raise BadInput(f"events '{events}' is unknown: choose real, blank or shuffled")
        self.events = events
        self.paths = list(dict.fromkeys(q.recording for q in questions))
        if events == "shuffled" and len(self.paths) < 2:
            raise BadInput("shuffled events need at least two recordings")
        self._opened: dict[Path, Recording] = {}

    def real(self, path: Path) -> Recording:
        """The recording as it is, opened once."""
        if path not in self._opened:
            self._opened[path] = Recording.open(path)
        return self._opened[path]

    def get(self, path: Path) -> Recording:
        """The recording with its own events, none, or the next recording's."""
        own = self.real(path)
        if self.events == "real" or own.events is None:
            return own
        if self.events == "blank":
            return replace(own, events=blank(own.events))
        other = self.real(self.paths[(self.paths.index(path) + 1) % len(self.paths)])
        # Another recording's events on this one's clock: both windows begin at their own start.
        events = None if other.events is None else other.events.shifted(own.span.start_us - other.span.start_us)
        return replace(own, events=events)


def compare(
    pair: Pair,
    questions: list[Question],
    methods: list[str],
    sampling: Sampling,
    events: str,
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Run every question with every method, in rotating order, and write one row each; returns the summary."""
    for method in methods:
        pair.drafter(method)
    recordings = Recordings(questions, events)
    everywhere = pair.on("one") if pair.lanes.plan == "two" else None
    for method in methods:  # warm: caches, threads and kernels of every path
        _ask(pair, recordings, questions[0], method, sampling).result()
    rows: list[Row] = []
    whole: list[float] = []
    part = out.with_name(f".{out.name}.part")
    with part.open("w") as file:
        for number, question in enumerate(questions):
            turn = number % len(methods)
            found = {m: _row(pair, recordings, question, m, sampling) for m in methods[turn:] + methods[:turn]}
            if everywhere is not None:
                asking = _ask(everywhere, recordings, question, "autoregressive", sampling)
                asking.result()
                whole.append(1e3 * asking.trace.marks["end"])
            for method in methods:
                row = found[method]
                row["first_difference"] = _difference(pair, recordings, question, sampling, found.get("autoregressive"), row)
                rows.append(row)
                file.write(json.dumps(row) + "\n")
            progress(number + 1, len(questions))
    part.rename(out)
    if everywhere is not None:
        everywhere.lanes.close()
    return summary(rows, methods, whole, environment(pair, events))


def _ask(pair: Pair, recordings: Recordings, question: Question, method: str, sampling: Sampling) -> Answering:
    recording = recordings.get(question.recording)
    return answering(pair, recording, question.question, method, None, sampling, events_may_lack=True)


def _row(pair: Pair, recordings: Recordings, question: Question, method: str, sampling: Sampling) -> Row:
    asking = _ask(pair, recordings, question, method, sampling)
    result = asking.result()
    row: Row = {**result.as_json(), "question_id": question.id, "recording": question.recording.name}
    row.update(question=question.question, answer=question.answer)
    row["vision"] = vision_acceptance(pair, asking.request, method, result.token_ids)
    return row


def vision_acceptance(pair: Pair, request: Request, method: str, answer: list[int]) -> list[int] | None:
    """[accepted, all] over the answer's tokens that the blind prior gets wrong: whether the drafter's first choice, given the
    target's own tokens before, is the target's token. None for a method that drafts nothing."""
    if method == "autoregressive":
        return None
    seen, blind = _first_choices(pair, request, method, answer), _first_choices(pair, request, "prior", answer)
    visual = [i for i, token in enumerate(answer) if blind[i] != token]
    return [sum(seen[i] == answer[i] for i in visual), len(visual)]


@torch.inference_mode()
def _first_choices(pair: Pair, request: Request, method: str, answer: list[int]) -> list[int | None]:
    """What a method's drafter would draft at every position behind the target's own prefix."""
    session = pair.drafter(method).open(request, None, Trace())
    choices: list[int | None] = []
    nothing, unused = np.empty(0, np.int64), Scores(torch.empty(0))
    for token in answer:
        proposal = session.propose(Budget(nodes=1, levels=1))
        choices.append(int(proposal.tokens[0]) if len(proposal) else None)
        session.observe(Verdict(nothing, np.array([token], np.int64)), unused)
    return choices


@torch.inference_mode()
def _difference(
    pair: Pair, recordings: Recordings, question: Question, sampling: Sampling, base: Row | None, row: Row
) -> Row | None:
    """Where a row leaves the baseline, and the target's top-2 logit gap there."""
    if base is None or base["token_ids"] == row["token_ids"]:
        return None
    one, two = base["token_ids"], row["token_ids"]
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    request = _ask(pair, recordings, question, "autoregressive", sampling).request
    logits = pair.target.prefill(request, 1, Trace()).score(Proposal.chain(one[:at])).logits[-1]
    top = logits.topk(2).values
    return {"position": at, "gap": float(top[0] - top[1])}


# ----------------------------------------------------------------------------------------------------------------- summary
def summary(rows: list[Row], methods: list[str], whole: list[float], where: dict[str, Any]) -> dict[str, Any]:
    """The figures of every method against `autoregressive` (None where that was not run)."""
    table = {m: [r for r in rows if r["method"] == m] for m in methods}
    base = table.get("autoregressive")
    figures = {m: _figures(table[m], base) for m in methods}
    found: dict[str, Any] = {"n": len(next(iter(table.values()))), "environment": where, "methods": figures}
    if base and whole:
        totals = [r["timing_ms"]["total"] for r in base]
        found["autoregressive_all_cores"] = {"total_ms": mean(whole), "speedup": ratio_of_sums(totals, whole)}
    return found


def _figures(own: list[Row], base: list[Row] | None) -> dict[str, Any]:
    def column(rows: list[Row], name: str) -> list[float]:
        return [r["timing_ms"][name] for r in rows if r["timing_ms"][name] is not None]

    short = [r for r in own if len(r["token_ids"]) <= SHORT_TOKENS]
    spoken = [r["speculation"] for r in own]
    vision = [r["vision"] for r in own if r["vision"] is not None]
    total = column(own, "total")
    figures: dict[str, Any] = {
        "tau": ratio_of_sums([len(r["token_ids"]) for r in own], [s["rounds"] for s in spoken]),
        "acceptance": ratio_of_sums([s["accepted"] for s in spoken], [s["drafted_levels"] for s in spoken]),
        "acceptance_vision": ratio_of_sums([v[0] for v in vision], [v[1] for v in vision]) if vision else None,
        "vision_share": ratio_of_sums([v[1] for v in vision], [len(r["token_ids"]) for r in own]) if vision else None,
        "exact_match": mean([float(_same(r)) for r in own]),
        "exact_match_short": mean([float(_same(r)) for r in short]),
        "first_provisional_ms": mean(column(own, "first_provisional")),
        "first_committed_ms": mean(column(own, "first_committed")),
        "total_ms": mean(total),
        "overhead_share": mean([r["overhead_share"] for r in own]),
    }
    if base:
        whole, first = column(base, "total"), column(base, "first_committed")
        ties = sum((r["first_difference"] or {}).get("gap", 1.0) < TIE_GAP for r in own)
        figures |= {
            "speedup": ratio_of_sums(whole, total),
            "speedup_ci95": ratio_interval(whole, total),
            "decode_speedup": ratio_of_sums(column(base, "decode"), column(own, "decode")),
            "ceiling": ratio_of_sums(whole, first),
            "identical": sum(r["first_difference"] is None for r in own),
            "ties": ties,
            "slower_share": mean([float(a > b) for a, b in zip(total, whole, strict=True)]),
        }
    return figures


def _same(row: Row) -> bool:
    return bool(row["text"].strip() == row["answer"].strip())


def environment(pair: Pair, events: str) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "pair": pair.name,
        "events": events,
        "device_plan": pair.lanes.plan,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    lines: Iterator[str] = iter(())
    if Path("/proc/cpuinfo").exists():
        lines = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(lines, platform.processor()).split(":")[-1].strip()
