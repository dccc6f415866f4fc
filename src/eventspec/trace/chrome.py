"""A trace in Chrome's Trace Event Format, which ui.perfetto.dev opens: microseconds since the request began, one thread a
lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventspec.trace import Trace


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """The object of a .json file. A span that is a round's forward carries the round as `args`; `sources`: how many of the
    accepted nodes each drafter named."""
    done = list(trace.spans)  # a lane that is late may still add some
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(s.lane for s in done), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": lane}} for lane, number in lanes.items()
    ]
    for s in done:
        times = {"ts": 1e6 * s.start, "dur": 1e6 * (s.end - s.start)}
        event: dict[str, Any] = {"ph": "X", "pid": 1, "tid": lanes[s.lane], "name": s.stage, **times}
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
