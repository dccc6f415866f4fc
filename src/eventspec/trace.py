"""The trace of one request: spans on lanes, rounds of the loop, marks and notes. `core` hands its names on."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from eventspec.errors import write_text


@dataclass(frozen=True)
class Span:
    """One piece of work on one lane, seconds of ``time.perf_counter`` since the request began."""

    name: str
    lane: str
    start: float
    end: float


@dataclass(frozen=True)
class Round:
    """One pass of score, verify, commit, propose.

    proposed, depth: nodes and levels of the proposal; accepted: nodes of its path; committed: tokens that joined the answer;
    seconds of the target's forward, of the whole pass without drafting, of waiting for the next draft, and of the drafter's
    own forwards meanwhile.
    """

    proposed: int
    depth: int
    accepted: int
    committed: int
    origin: str
    head_start: bool
    model_seconds: float
    seconds: float
    draft_seconds: float
    draft_model_seconds: float


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
            {"ph": "X", "pid": 1, "tid": lanes[s.lane], "name": s.name, "ts": 1e6 * s.start, "dur": 1e6 * (s.end - s.start)}
            for s in done
        ]
        marks = [{"ph": "i", "s": "g", "pid": 1, "tid": 1, "name": n, "ts": 1e6 * at} for n, at in self.marks.items()]
        write_text(Path(path), json.dumps({"traceEvents": [*named, *spans, *marks], "displayTimeUnit": "ms"}))

    def span(self, name: str, lane: str, start: float) -> None:
        """Record work that began at `start` (seconds since the request began) and ends now."""
        self.spans.append(Span(name, lane, start, self.now()))

    def forward(self, lane: str, seconds: float) -> None:
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
