"""The trace of one request: spans on lanes, rounds of the loop, marks and notes. `core` hands its names on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eventspec.files import write_text

Lane = Literal["target", "drafter"]
"""A row of the timeline."""
Stage = Literal["vision", "prefill", "drafter prefill", "draft", "verify", "decode"]


@dataclass(frozen=True)
class Span:
    """One piece of work on one lane, seconds of ``time.perf_counter`` since the request began."""

    stage: Stage
    lane: Lane
    start: float
    end: float


@dataclass
class Round:
    """One pass of score, verify, commit, and the drafting behind it."""

    proposed: int
    """Nodes of the proposal."""
    depth: int
    """Levels of the proposal."""
    origin: str
    """Who drafted it."""
    first: bool
    """Whether it is the answer's first round, whose forward ends the prefill; its proposal is the head start."""
    accepted: int = 0
    """Nodes of the accepted path."""
    committed: int = 0
    """Tokens that joined the answer."""
    named: dict[str, int] = field(default_factory=dict)
    """How many nodes of the accepted path each drafter had named."""
    model_seconds: float = 0.0
    """Of the target's forward."""
    seconds: float = 0.0
    """Of the whole pass without drafting."""
    draft_seconds: float = 0.0
    """Of waiting for the next draft."""
    draft_model_seconds: float = 0.0
    """Of the drafter's own forwards meanwhile."""


class RoundRecord:
    """Fills in a `Round` while it runs; see `Trace.round`."""

    def __init__(self, trace: Trace, made: Round) -> None:
        self._trace, self._round, self._began = trace, made, trace.now()

    def scored(self) -> None:
        """The target's forward is done."""
        self._round.model_seconds = self._trace.now() - self._began

    def decided(self, read: int, accepted: int, committed: int, named: dict[str, int]) -> None:
        """How many nodes the target read, how many of them the rule accepted, how many tokens of its verdict count, and who
        had `named` how many of the accepted nodes."""
        self._round.accepted, self._round.committed = min(accepted, committed), committed
        self._round.named = named
        stage: Stage = "prefill" if self._round.first else "verify" if read else "decode"
        self._trace.span(stage, "target", self._began)
        self._round.seconds = self._trace.now() - self._began


@dataclass
class Trace:
    """Everything that happened while one request was served. Spans may be added from several lanes."""

    spans: list[Span] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Rows of the target's prompt (`prompt`) and of its visual part (`visual`)."""
    forwards: dict[str, float] = field(default_factory=dict)
    """Seconds spent in model forwards, by lane."""
    provisional: int = 0
    retracted: int = 0
    """Tokens that were shown before they were verified, and those of them that were withdrawn."""
    near_ties: int = 0
    """Committed positions whose decision, greedy or drawn, was closer than the target's measured rounding."""
    given_up: list[str] = field(default_factory=list)
    """Drafters that failed or hung, by name."""
    began: float = field(default_factory=time.perf_counter)

    def now(self) -> float:
        """Seconds since the request began."""
        return time.perf_counter() - self.began

    def restart(self) -> None:
        """The request begins now: what was prepared before (opening files) does not count."""
        self.began = time.perf_counter()

    def save(self, path: str | Path) -> None:
        """Write the spans as a Chrome trace; Perfetto opens it too. Times in microseconds, one thread a lane."""
        done = list(self.spans)  # a lane that is late may still add some
        lanes = {lane: number for number, lane in enumerate(dict.fromkeys(s.lane for s in done), 1)}
        named = [{"ph": "M", "pid": 1, "tid": n, "name": "thread_name", "args": {"name": lane}} for lane, n in lanes.items()]
        spans = [
            {"ph": "X", "pid": 1, "tid": lanes[s.lane], "name": s.stage, "ts": 1e6 * s.start, "dur": 1e6 * (s.end - s.start)}
            for s in done
        ]
        marks = [{"ph": "i", "s": "g", "pid": 1, "tid": 1, "name": n, "ts": 1e6 * at} for n, at in self.marks.items()]
        write_text(Path(path), json.dumps({"traceEvents": [*named, *spans, *marks], "displayTimeUnit": "ms"}))

    def span(self, stage: Stage, lane: Lane, start: float) -> None:
        """Record work that began at `start` (seconds since the request began) and ends now."""
        self.spans.append(Span(stage, lane, start, self.now()))

    def beside(self) -> Trace:
        """Another trace on the same clock, for code that must not write to this one; see `take`."""
        return Trace(began=self.began)

    def take(self, other: Trace) -> None:
        """Move spans, forwards and notes over from a trace `beside` this one; an error for what they cannot be."""
        spans, other.spans = other.spans, []
        self.spans += [Span(s.stage, s.lane, float(s.start), float(s.end)) for s in spans]
        forwards, other.forwards = other.forwards, {}
        for lane in ("target", "drafter"):
            if seconds := forwards.get(lane):
                self.forward(lane, float(seconds))
        notes, other.notes = other.notes, []
        for note in notes[:8]:
            self.note(str.__str__(note)[:300])

    @contextmanager
    def round(self, nodes: int, depth: int, origin: str) -> Iterator[RoundRecord]:
        """Account for one round about a proposal of so many nodes and levels; it joins `rounds` when it went well."""
        made = Round(nodes, depth, origin, first=not self.rounds)
        yield RoundRecord(self, made)
        self.rounds.append(made)

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """The target waits for the draft of the next round: the latest round's time."""
        began, forwards = self.now(), self.forwards.get("drafter", 0.0)
        yield
        latest = self.rounds[-1]
        latest.draft_seconds = self.now() - began
        latest.draft_model_seconds = self.forwards.get("drafter", 0.0) - forwards

    def forward(self, lane: Lane, seconds: float) -> None:
        """Add the time of one model forward on a lane."""
        self.forwards[lane] = self.forwards.get(lane, 0.0) + seconds

    def mark(self, name: str) -> None:
        """Remember the first time something happened."""
        self.marks.setdefault(name, self.now())

    def note(self, text: str) -> None:
        """Say in words what went wrong or was decided; each sentence once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def drafted(self) -> int:
        return sum(r.proposed for r in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(r.accepted for r in self.rounds)

    @property
    def tau(self) -> float:
        """Mean tokens committed per target forward, bonus token included."""
        return sum(r.committed for r in self.rounds) / len(self.rounds) if self.rounds else 0.0
