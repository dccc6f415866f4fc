"""What happened while one request was served: spans on lanes, rounds of the loop, marks and notes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eventspec.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lane = Literal["target", "drafter"]
"""A row of the timeline."""
Stage = Literal["vision", "projector", "transfer", "prefill", "drafter prefill", "draft", "verify", "decode", "post-processing"]
"""A projector's time is a part of its vision encoding's."""


@dataclass(frozen=True)
class Span:
    """One piece of work on one lane, seconds of ``time.perf_counter`` since the request began."""

    stage: Stage
    lane: Lane
    start: float
    end: float
    round: int | None = None
    """Which of `Trace.rounds` it is the target's forward of."""
    bytes: int | None = None
    """Of a transfer: how many went from one device to the other."""


@dataclass
class Round:
    """One pass of score, verify, commit, and the drafting after it: a proposal of `proposed` nodes in `depth` levels by the
    drafter `origin`, `accepted` of them, of which each drafter had `named` some; `tokens` are the ids that joined the answer,
    `text` what they added to its text, once the answer is finished. `first`: the answer's first round, whose forward ends the
    prefill and whose proposal is the head start."""

    proposed: int
    depth: int
    origin: str
    first: bool
    accepted: int = 0
    tokens: tuple[int, ...] = ()
    text: str = ""
    named: dict[str, int] = field(default_factory=dict)
    model_seconds: float = 0.0
    """Of the target's forward."""
    seconds: float = 0.0
    """Of the whole pass without drafting."""
    draft_seconds: float = 0.0
    """Of waiting for the next draft."""
    draft_model_seconds: float = 0.0
    """Of the drafter's own forwards meanwhile."""
    began: float = 0.0
    """When, in seconds since the request began."""

    @property
    def committed(self) -> int:
        """How many tokens joined the answer."""
        return len(self.tokens)


@dataclass(repr=False)
class Trace:
    """Everything that happened while one request was served. Spans may be added from several lanes."""

    spans: list[Span] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Rows of the target's prompt (`prompt`) and of its visual part (`visual`); the visual rows that a drafter with a vision of
    its own read (`drafter`)."""
    forwards: dict[str, float] = field(default_factory=dict)
    """Seconds spent in model forwards, by lane."""
    crossed: list[int] = field(default_factory=list)
    """Bytes of every tensor that one model computed and another read, on one device or between two."""
    provisional: int = 0
    retracted: int = 0
    """Tokens that were shown before they were verified, and those of them that were withdrawn."""
    near_ties: int = 0
    """Committed positions whose decision, greedy or drawn, was closer than the target's measured rounding."""
    skipped: bool = False
    """Whether the answer came from events alone, and the target gave none (method skip-encode)."""
    rule: str = ""
    """The rule that decided so (method skip-encode)."""
    compressor: str | None = None
    """The branch of its compressor by which a head saw the visual rows; None where none was chosen."""
    learned: int | None = None
    """How many answers the head had learned from when this one began; None where none learns."""
    shared: bool = False
    """Whether forwards of the target were shared with other answers, so that they took longer than this answer's own."""
    device_plan: str = "one"
    """Whether drafter and target had a device each (`two`) or shared one."""
    given_up: list[str] = field(default_factory=list)
    """Drafters that failed or hung, by name."""
    declined: list[str] = field(default_factory=list)
    """Where nothing was drafted: drafters whose drafts would have cost more than they save, by what was measured."""
    question: str = ""
    """What was asked."""
    began: float = field(default_factory=time.perf_counter)

    def __repr__(self) -> str:
        end = f"{1e3 * self.marks['end']:.1f} ms" if "end" in self.marks else "not finished"
        return f"<Trace: {end}, {len(self.rounds)} rounds, tau {self.tau:.2f}, {len(self.spans)} spans>"

    def _repr_html_(self) -> str:
        """For notebooks: the timeline as a small drawing."""
        from eventspec.trace.timeline import drawing

        return drawing(self)

    def now(self) -> float:
        """Seconds since the request began."""
        return time.perf_counter() - self.began

    def restart(self) -> None:
        """The request begins now: the time of preparing it (opening files) does not count."""
        self.began = time.perf_counter()

    def save(self, path: str | Path) -> None:
        """Write a Chrome trace, which Perfetto opens too. Whole or not at all; BadInput where the place cannot be written."""
        write_text(Path(path), json.dumps(chrome_trace(self)))

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """The timeline as a matplotlib Figure: what target and drafter did when, what each round accepted, the answer so far.
        With a path it is written there too, as .png, .svg or .pdf; BadInput where it cannot be. title: by default the
        question."""
        from eventspec.trace.timeline import draw, figure

        strips = [("answer", self)]
        return figure(strips, title) if path is None else draw(strips, Path(path), title)

    def span(
        self,
        stage: Stage,
        lane: Lane,
        start: float,
        of_round: int | None = None,
        moved: int | None = None,
        end: float | None = None,
    ) -> None:
        """Record work that began at `start` (seconds since the request began) and ended at `end`, by default now; of a transfer
        how many bytes it `moved`."""
        self.spans.append(Span(stage, lane, start, self.now() if end is None else end, of_round, moved))

    def beside(self) -> Trace:
        """Another trace on the same clock, for code that must not write to this one; see `take`."""
        return Trace(began=self.began)

    def take(self, other: Trace) -> None:
        """Move spans, forwards, what crossed, a drafter's rows, a compressor's branch, what was learned and notes over from a
        trace `beside` this one; an error for values they cannot have."""
        spans, other.spans = other.spans, []
        for s in spans:
            self.spans.append(Span(s.stage, s.lane, float(s.start), float(s.end), None, s.bytes and int(s.bytes)))
        crossed, other.crossed = other.crossed, []
        self.crossed += map(int, crossed)
        if "drafter" in other.sizes:
            self.sizes["drafter"] = int(other.sizes["drafter"])
        forwards, other.forwards = other.forwards, {}
        for lane in ("target", "drafter"):
            if seconds := forwards.get(lane):
                self.forward(lane, float(seconds))
        if other.compressor is not None:
            self.compressor = str.__str__(other.compressor)[:40]
        if other.learned is not None:
            self.learned = int(other.learned)
        notes, other.notes = other.notes, []
        for note in notes[:8]:
            self.note(str.__str__(note)[:300])

    def round(self, nodes: int, depth: int, origin: str) -> Round:
        """A round about a proposal of so many nodes and levels, which begins now, and joins the trace when it is `decided`."""
        return Round(nodes, depth, origin, first=not self.rounds, began=self.now())

    def scored(self, made: Round) -> None:
        """The target's forward of a round is done."""
        made.model_seconds = self.now() - made.began

    def decided(self, made: Round, read: int, accepted: int, tokens: Sequence[int], named: dict[str, int]) -> None:
        """The target `read` so many nodes, the rule `accepted` so many of them; `tokens` of its verdict count."""
        made.accepted, made.tokens, made.named = min(accepted, len(tokens)), tuple(tokens), named
        stage: Stage = "prefill" if made.first else "verify" if read else "decode"
        self.span(stage, "target", made.began, len(self.rounds))
        made.seconds = self.now() - made.began
        self.rounds.append(made)

    def drafting(self) -> Callable[[], None]:
        """The target waits for the draft of the next round: the latest round's time, until what this returns is called."""
        began, forwards, latest = self.now(), self.forwards.get("drafter", 0.0), self.rounds[-1]

        def ended() -> None:
            latest.draft_seconds = self.now() - began
            latest.draft_model_seconds = self.forwards.get("drafter", 0.0) - forwards

        return ended

    def forward(self, lane: Lane, seconds: float) -> None:
        """Add the time of one model forward on a lane."""
        self.forwards[lane] = self.forwards.get(lane, 0.0) + seconds

    def mark(self, name: str) -> None:
        """Remember the first time something happened."""
        self.marks.setdefault(name, self.now())

    def note(self, text: str) -> None:
        """Record in words what went wrong or was decided; each sentence once."""
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

    @property
    def ceiling(self) -> float | None:
        """The whole time over that to the first committed token, which vision and prefill take: of the baseline's trace, how
        many times as fast a lossless method can be at most. None without a first token or an end."""
        end, first = self.marks.get("end"), self.marks.get("first_committed")
        return None if end is None or not first else end / first


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """A trace in Chrome's Trace Event Format, which ui.perfetto.dev opens: microseconds since the request began, one thread a
    lane. A span that is a round's forward carries the round as `args`; `sources`: how many of the accepted nodes each drafter
    named. One that is a transfer carries its `bytes`."""
    done = list(trace.spans)  # a lane that is late may still add some
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(s.lane for s in done), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": lane}} for lane, number in lanes.items()
    ]
    for s in done:
        times = {"ts": 1e6 * s.start, "dur": 1e6 * (s.end - s.start)}
        event: dict[str, Any] = {"ph": "X", "pid": 1, "tid": lanes[s.lane], "name": s.stage, **times}
        if s.bytes is not None:
            event["args"] = {"bytes": s.bytes}
        if s.round is not None and s.round < len(trace.rounds):
            made = trace.rounds[s.round]
            event["args"] = {
                "round": s.round,
                "tokens": list(made.tokens),
                "text": made.text,
                "origin": made.origin,
                "drafted": made.proposed,
                "drafted_levels": made.depth,
                "accepted": made.accepted,
                "sources": dict(made.named),
            }
        events.append(event)
    events += [{"ph": "i", "s": "g", "pid": 1, "tid": 1, "name": name, "ts": 1e6 * at} for name, at in trace.marks.items()]
    about = {"question": trace.question, "notes": list(trace.notes)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
