"""A trace as one line, as a page, and as a file for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from eventspec.core import Round, Span, Trace


def traced() -> Trace:
    made = Trace(question="Who?")
    made.spans += [
        Span("vision", "target", 0.0, 0.05),
        Span("draft", "drafter", 0.0, 0.01),
        Span("verify", "target", 0.05, 0.06, 0),
    ]
    made.rounds.append(Round(5, 3, "prior+ngram", True, 2, (7, 8, 9), "<b>&", {"prior": 2, "ngram": 1}))
    made.marks |= {"first_committed": 0.05, "end": 0.06}
    return made


def test_a_saved_trace_carries_what_every_round_committed_and_who_named_it(tmp_path: Path) -> None:
    traced().save(tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())
    assert told["otherData"]["question"] == "Who?"
    assert {event["ph"] for event in told["traceEvents"]} == {"M", "X", "i"}
    spans = [event for event in told["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and {"pid", "tid", "ts", "name"} <= set(event) for event in spans)
    assert [event.get("args") for event in spans[:2]] == [None, None]
    wanted = {"round": 0, "tokens": [7, 8, 9], "text": "<b>&", "origin": "prior+ngram", "drafted": 5, "drafted_levels": 3}
    assert spans[2]["args"] == {**wanted, "accepted": 2, "sources": {"prior": 2, "ngram": 1}}


def test_a_round_that_failed_has_a_span_and_no_figures(tmp_path: Path) -> None:
    made = traced()
    made.spans.append(Span("verify", "target", 0.06, 0.07, 1))
    made.save(tmp_path / "trace.json")
    assert "args" not in json.loads((tmp_path / "trace.json").read_text())["traceEvents"][5]


def test_a_trace_is_one_line_and_a_small_drawing() -> None:
    assert repr(traced()) == "<Trace: 60.0 ms, 1 rounds, tau 3.00, 3 spans>"
    assert repr(Trace()) == "<Trace: not finished, 0 rounds, tau 0.00, 0 spans>"
    drawn = ElementTree.fromstring(traced()._repr_html_())
    bars = [bar for bar in drawn if bar.tag.endswith("rect")]
    assert len(bars) == 3 and any("2 of 3 levels accepted: <b>&" in (bar[0].text or "") for bar in bars)
    long = Trace()
    long.spans += [Span("decode", "target", at, at + 1) for at in range(5000)]
    assert len(long._repr_html_()) < 100_000 and "the first 400 of 5000 spans" in long._repr_html_()
    assert ElementTree.fromstring(Trace()._repr_html_()) is not None


def test_the_ceiling_is_total_over_vision_and_prefill() -> None:
    assert traced().ceiling == 0.06 / 0.05
    assert Trace().ceiling is None


def test_a_transfer_carries_its_bytes_from_the_drafters_own_trace_to_the_file(tmp_path: Path) -> None:
    made = traced()
    own = made.beside()
    own.crossed.append(4096)
    own.span("transfer", "drafter", own.now(), moved=4096)
    made.take(own)
    assert (made.crossed, made.spans[-1].bytes, own.crossed, own.spans) == ([4096], 4096, [], [])
    made.save(tmp_path / "trace.json")
    told = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["name"] == "transfer"]
    assert [event["args"] for event in told] == [{"bytes": 4096}]
