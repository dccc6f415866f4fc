"""Asking: one question about one recording with one method, whole or as a stream of updates, and the record of what
happened."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from eventspec.core import BadInput, Request, Sampling, Trace, Update, Window
from eventspec.engine.display import Emit
from eventspec.engine.generate import Outcome, run
from eventspec.engine.generate import stream as stream_updates
from eventspec.pairs.pair import Pair
from eventspec.recordings import Recording
from eventspec.text import Piece, pieces, stop_rule, text_of


@dataclass(frozen=True)
class Result:
    """An answer and how it came about."""

    text: str
    token_ids: list[int]
    method: str
    lossless: bool
    finish_reason: str
    prompt_tokens: int
    visual_tokens: int
    device_plan: str
    trace: Trace

    def as_json(self, trace_file: str | None = None) -> dict[str, Any]:
        """The object of `generate --json` (product, section 3); stages that did not happen are null."""
        rounds = self.trace.rounds
        head = [r for r in rounds if r.head_start]
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "method": self.method,
            "lossless": self.lossless,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "visual_tokens": self.visual_tokens,
                "completion_tokens": len(self.token_ids),
            },
            "timing_ms": timing(self.trace),
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
                "near_ties": self.trace.near_ties,
            },
            "rounds_ms": rounds_ms(self.trace),
            "overhead_share": round(overhead_share(self.trace), 4),
            "notes": self.trace.notes,
            "device_plan": self.device_plan,
            "trace": trace_file,
        }


def timing(trace: Trace) -> dict[str, float | None]:
    """Milliseconds of every stage; the target's prefill includes the forward that verifies the head start."""

    def stage(name: str, lane: str) -> float | None:
        spans = [s.end - s.start for s in trace.spans if s.name == name and s.lane == lane]
        return round(1e3 * sum(spans), 3) if spans else None

    def mark(name: str) -> float | None:
        return round(1e3 * trace.marks[name], 3) if name in trace.marks else None

    total, committed = trace.marks.get("end"), trace.marks.get("first_committed")
    decode = None if total is None or committed is None else round(1e3 * (total - committed), 3)
    return {
        "drafter_vision": stage("vision", "drafter"),
        "drafter_prefill": stage("prefill", "drafter") or stage("drafter prefill", "target"),
        "target_vision": stage("vision", "target"),
        "target_prefill": stage("prefill", "target"),
        "first_provisional": mark("first_provisional"),
        "first_committed": mark("first_committed"),
        "decode": decode,
        "total": mark("end"),
    }


def accepted_per_position(trace: Trace) -> list[int]:
    """How many rounds accepted a draft at level 1, 2, ..."""
    deepest = max((r.accepted for r in trace.rounds), default=0)
    return [sum(r.accepted > level for r in trace.rounds) for level in range(deepest)]


def rounds_ms(trace: Trace) -> dict[str, float]:
    """Milliseconds of the rounds, and of them in a model: the target's forwards and, while the target waits, the drafter's
    (`drafting`).

    A first round that is a whole prefill (nothing could be drafted ahead) is left out: it would hide what the others cost.
    """
    rounds = [r for r in trace.rounds if r.proposed or not r.head_start]
    drafting = sum(min(r.draft_seconds, r.draft_model_seconds) for r in rounds)
    verifying = sum(r.model_seconds for r in rounds)
    found = {"all": sum(r.seconds + r.draft_seconds for r in rounds), "model": verifying + drafting, "drafting": drafting}
    return {name: round(1e3 * seconds, 3) for name, seconds in found.items()}


def overhead_share(trace: Trace) -> float:
    """Share of the rounds' time in which no model ran: rule, cache, display and waiting for nothing."""
    found = rounds_ms(trace)
    return max(0.0, 1 - found["model"] / found["all"]) if found["all"] else 0.0


def prepare(
    pair: Pair,
    recording: Recording,
    prompt: str,
    window: Window | None,
    sampling: Sampling,
    method: str,
    events_may_lack: bool = False,
) -> Request:
    """The request for a window of a recording; BadInput when the recording lacks what the method needs.

    `events_may_lack` is for the blank-events control only.
    """
    if not prompt.strip():
        raise BadInput("the prompt is empty: ask something, e.g. --prompt 'What is ahead?'")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise BadInput("the prompt is not valid UTF-8: type it again") from None
    view = recording.slice(window)
    if pair.sees == "frames" and (view.video is None or len(view.video.frames) == 0):
        raise BadInput(
            f"{recording.name} has no RGB frames: method {method} needs them for the target (see `eventspec events info`)"
        )
    eventless = view.events is None or (len(view.events) == 0 and not events_may_lack)
    if pair.sees == "events" and eventless:
        raise BadInput(f"{recording.name} has no events: the target is an event model and sees nothing else")
    if method == "cross-modal" and eventless:
        raise BadInput(f"{recording.name} has no events: method {method} needs them for the drafter; use another method")
    events = None if view.events is None else view.events.read_only()
    video = None if view.video is None else view.video.read_only()
    return Request(prompt, events, video, pair.sampling(sampling))


class Answering:
    """One question being answered: iterate `updates` to see it grow, or take the `result` at once. It runs once."""

    def __init__(self, pair: Pair, request: Request, method: str, trace: Trace | None = None) -> None:
        self.pair, self.request, self.method = pair, request, method
        self.drafter = pair.drafter(method)
        self.trace = trace or Trace()
        self._outcome: Outcome | None = None
        self._begun = self._cancelled = False

    def cancel(self) -> None:
        """Stop after the round that is running."""
        self._cancelled = True

    def updates(self) -> Generator[Update, None, None]:
        """Provisional, Committed and Retracted tokens as they come; nothing once it has run. Leaving early cancels."""
        if self._begun:
            return
        self._begun = True
        try:
            yield from stream_updates(self._run, self.pair.lanes)
        finally:
            self.cancel()

    def pieces(self) -> Iterator[Piece]:
        """The same as text: joined, the pieces' `text` is the result's."""
        return pieces(self.updates(), self.pair.vocabulary.decode, self.request.sampling.stop_strings)

    def result(self) -> Result:
        """The finished answer; runs it when nobody listened to it."""
        begun, self._begun = self._begun, True
        # Work on a lane is done in order, so behind a run that somebody left, an empty job waits for its end.
        if self._outcome is None:
            try:
                self.pair.lanes.lane("target").start(int if begun else self._run_unheard).result()
            except KeyboardInterrupt:
                self.cancel()  # nobody waits for it any more, and the next question would
                raise
        outcome, request = self._outcome, self.request
        if outcome is None:
            raise RuntimeError("this question failed when it ran; ask it again")
        rows, visual = self.trace.sizes.get("prompt", 0), self.trace.sizes.get("visual", 0)
        text = text_of(outcome.token_ids, self.pair.vocabulary.decode, request.sampling.stop_strings)
        sizes = (rows - visual, visual)
        target, plan = self.pair.target_of(self.method), self.pair.lanes.plan
        return Result(text, outcome.token_ids, self.method, target.lossless, outcome.finish_reason, *sizes, plan, self.trace)

    def _run_unheard(self) -> None:
        self._run(lambda update: None)

    def _run(self, emit: Emit) -> Outcome:
        pair, request = self.pair, self.request
        stopped = stop_rule(request.sampling.stop_ids, request.sampling.stop_strings, pair.vocabulary.decode)
        limits = pair.target_of(self.method).limits  # measured on first use, which is no part of this answer
        self.trace.restart()
        for note in pair.notes.get(self.method, ()):
            self.trace.note(note)
        common = (pair.target_of(self.method), self.drafter, request, pair.plan(self.method), pair.lanes, self.trace, stopped)
        self._outcome = run(*common, emit, lambda: self._cancelled)
        self.trace.mark("end")
        self._tell(limits.rounding)
        return self._outcome

    def _tell(self, rounding: float) -> None:
        """Notes on what the run met: lanes that are not as they should be, decisions as close as rounding."""
        pair, ties = self.pair, self.trace.near_ties
        for name in ("target", "drafter"):
            if trouble := pair.lanes.trouble(name):
                self.trace.note(trouble)
        if ties:
            settled = pair.plan(self.method).settle
            how = "settled by plain decoding" if settled else "not settled: another numerical path may decide them otherwise"
            self.trace.note(f"{ties} near tie{'s' * (ties > 1)} (best two closer than {rounding:.1g}), {how}")


def answering(
    pair: Pair,
    recording: Recording,
    prompt: str,
    method: str,
    window: Window | None = None,
    sampling: Sampling | None = None,
    events_may_lack: bool = False,
) -> Answering:
    """One question about a window of a recording, ready to run; BadInput when the recording lacks what the method needs."""
    pair.drafter(method)
    request = prepare(pair, recording, prompt, window, sampling or Sampling(), method, events_may_lack)
    return Answering(pair, request, method)


def generate(
    pair: Pair,
    recording: Recording,
    prompt: str,
    method: str = "cross-modal",
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Result:
    """Answer one question. `settings` are fields of Sampling (max_new_tokens=64, temperature=0, ...)."""
    return answering(pair, recording, prompt, method, window, (sampling or Sampling()).but(**settings)).result()


def stream(
    pair: Pair,
    recording: Recording,
    prompt: str,
    method: str = "cross-modal",
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Iterator[Update]:
    """Answer one question as Provisional, Committed and Retracted updates."""
    return answering(pair, recording, prompt, method, window, (sampling or Sampling()).but(**settings)).updates()


def stream_text(
    pair: Pair,
    recording: Recording,
    prompt: str,
    method: str = "cross-modal",
    window: Window | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> Iterator[Piece]:
    """Answer one question as text: final pieces, each with the provisional text behind it."""
    return answering(pair, recording, prompt, method, window, (sampling or Sampling()).but(**settings)).pieces()
