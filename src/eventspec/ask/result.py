"""An answer and how it came about, as Python and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from eventspec.core import Trace
from eventspec.engine.answer import FinishReason
from eventspec.errors import several
from eventspec.trace import Lane

READY = 0.1
_UNVERIFIED: dict[str, Any] = {
    **dict.fromkeys(("rounds", "drafted", "accepted", "drafted_levels", "head_start_drafted", "head_start_accepted"), 0),
    **{"tau": None, "accepted_per_position": [], "accepted_by": {}, "drafted_rounds": 0, "ready_rounds": 0},
}
"""What speculation says of an answer from events alone: no target looked at a draft."""


@dataclass(frozen=True, repr=False)
class Result:
    """An answer and how it came about."""

    text: str
    token_ids: list[int]
    method: str
    chosen: str
    """The method that answered, where `method` leaves the choice to what was learnt; else the same."""
    lossless: bool
    """Whether the answer is the target's own."""
    finish_reason: FinishReason
    prompt_tokens: int
    """Text rows of the target's prompt."""
    visual_tokens: int
    """Visual rows of the target's prompt."""
    device_plan: str
    """Which placement it ran on: one, two."""
    devices: dict[str, str]
    """Where `target` and `drafter` ran: cpu, cuda:1, ..."""
    trace: Trace

    @property
    def drafter_rows(self) -> int | None:
        """Visual rows that the drafter's own language model read, after a vision of its own; 0 where no drafter has one, None
        without a drafter. How long they took to encode is `timing_ms.drafter_vision`."""
        return self.trace.sizes.get("drafter")

    def __repr__(self) -> str:
        text = repr(self.text if len(self.text) <= 120 else f"{self.text[:117]}...")
        lossy, total = "" if self.lossless else ", lossy", timing(self.trace)["total"]
        took = "not finished" if total is None else f"{total:.1f} ms"
        return f"<Result {text}: {several(len(self.token_ids), 'token')} by {self._by()}{lossy}, {took}>"

    def _by(self) -> str:
        return self.method if self.chosen == self.method else f"{self.method} ({self.chosen})"

    def summary(self) -> str:
        """A few lines for people: the answer, who drafted it, when its tokens came, and what a draft could gain at most."""
        trace, times = self.trace, timing(self.trace)
        came = {"first provisional": "first_provisional", "first committed": "first_committed", "complete": "total"}
        stages = [f"{words} {times[name]:.1f} ms" for words, name in came.items() if times[name] is not None]
        rounds = several(len(trace.rounds), "round")
        spoken = f"{rounds}, tau {trace.tau:.2f}, accepted {trace.accepted} of {trace.drafted} drafted nodes"
        if trace.skipped:
            spoken = "none: events alone, not verified"
        lines = [
            self.text,
            f"method:  {self._by()}, {'lossless' if self.lossless else 'LOSSY: not the answer of the target that sees all'}",
            f"times:   {', '.join(stages) or 'it was not finished'}",
            f"rounds:  {spoken}",
        ]
        if trace.ceiling is not None and not trace.drafted:
            lines.append(f"ceiling: {trace.ceiling:.2f}x as fast, if nothing came after vision and prefill")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the summary, and the timeline as a small drawing."""
        from html import escape as escaped

        from eventspec.trace.timeline import drawing

        return f'<div><pre style="white-space: pre-wrap">{escaped(self.summary())}</pre>{drawing(self.trace)}</div>'

    def as_json(self, trace_file: str | None = None) -> dict[str, Any]:
        """The object of `generate --json` (product, section 3); stages that did not happen are null."""
        rounds = self.trace.rounds
        head = [r for r in rounds if r.first]
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "method": self.method,
            "chosen": self.chosen,
            "lossless": self.lossless,
            "skipped": self.trace.skipped,
            "decide": self.trace.rule or None,
            "compressor": self.trace.compressor,
            "learned": self.trace.learned,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "visual_tokens": self.visual_tokens,
                "drafter_rows": self.drafter_rows,
                "completion_tokens": len(self.token_ids),
            },
            "timing_ms": timing(self.trace),
            "crossed": {"tensors": len(self.trace.crossed), "bytes": sum(self.trace.crossed)},
            "speculation": {
                "rounds": len(rounds),
                "drafted": self.trace.drafted,
                "accepted": self.trace.accepted,
                "drafted_levels": sum(r.depth for r in rounds),
                "head_start_drafted": sum(r.proposed for r in head),
                "head_start_accepted": sum(r.accepted for r in head),
                "provisional": self.trace.provisional,
                "retracted": self.trace.retracted,
                "tau": round(self.trace.tau, 4),
                "accepted_per_position": accepted_per_position(self.trace),
                "accepted_by": accepted_by(self.trace),
                **ready_rounds(self.trace),
                "declined": self.trace.declined,
                "near_ties": self.trace.near_ties,
                **(_UNVERIFIED if self.trace.skipped else {}),
            },
            "rounds_ms": rounds_ms(self.trace),
            "overhead_share": round(overhead_share(self.trace), 4),
            "notes": self.trace.notes,
            "device_plan": self.device_plan,
            "devices": self.devices,
            "trace": trace_file,
        }


def timing(trace: Trace) -> dict[str, float | None]:
    """Milliseconds of every stage; the target's prefill includes the forward that verifies the head start."""

    def stage(name: str, *lanes: str) -> float | None:
        spans = [s.end - s.start for s in trace.spans if s.stage == name and s.lane in lanes]
        return round(1e3 * sum(spans), 3) if spans else None

    def mark(name: str) -> float | None:
        return round(1e3 * trace.marks[name], 3) if name in trace.marks else None

    total, committed = trace.marks.get("end"), trace.marks.get("first_committed")
    decode = None if total is None or committed is None else round(1e3 * (total - committed), 3)
    return {
        "drafter_vision": stage("vision", "drafter"),
        "drafter_prefill": stage("prefill", "drafter") or stage("drafter prefill", "target"),
        "drafter_projector": stage("projector", "drafter"),
        "target_vision": stage("vision", "target"),
        "target_projector": stage("projector", "target"),
        "target_prefill": stage("prefill", "target"),
        "transfer": stage("transfer", *get_args(Lane)),
        "first_provisional": mark("first_provisional"),
        "first_committed": mark("first_committed"),
        "decode": decode,
        "postprocessing": stage("post-processing", "target"),
        "total": mark("end"),
    }


def accepted_per_position(trace: Trace) -> list[int]:
    """How many rounds accepted a draft at level 1, 2, ..."""
    deepest = max((r.accepted for r in trace.rounds), default=0)
    return [sum(r.accepted > level for r in trace.rounds) for level in range(deepest)]


def accepted_by(trace: Trace) -> dict[str, int]:
    """How many accepted tokens each drafter had named; several may have named the same one."""
    found = Counter[str]()
    for r in trace.rounds:
        found.update(r.named)
    return dict(found)


def ready_rounds(trace: Trace) -> dict[str, int]:
    """Rounds after the first that verified a draft, and how many of these began with a draft that was there: the target waited
    for less than `READY` of its own forward."""
    pairs = [(before, own) for before, own in pairwise(trace.rounds) if own.proposed]
    ready = sum(before.draft_seconds < READY * own.model_seconds for before, own in pairs)
    return {"drafted_rounds": len(pairs), "ready_rounds": ready}


def rounds_ms(trace: Trace) -> dict[str, float]:
    """Milliseconds of the rounds, and of them in a model: the target's forwards and, while the target waits, the drafter's
    (`drafting`).

    A first round that is a whole prefill (nothing could be drafted ahead) is left out: it would hide what the others cost.
    """
    rounds = [r for r in trace.rounds if r.proposed or not r.first]
    drafting = sum(min(r.draft_seconds, r.draft_model_seconds) for r in rounds)
    verifying = sum(r.model_seconds for r in rounds)
    found = {"all": sum(r.seconds + r.draft_seconds for r in rounds), "model": verifying + drafting, "drafting": drafting}
    return {name: round(1e3 * seconds, 3) for name, seconds in found.items()}


def overhead_share(trace: Trace) -> float:
    """Share of the rounds' time in which no model ran: rule, cache, display and waiting for nothing."""
    found = rounds_ms(trace)
    return max(0.0, 1 - found["model"] / found["all"]) if found["all"] else 0.0
