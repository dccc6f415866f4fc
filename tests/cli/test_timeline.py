"""The timeline says what it shows: every method with its speed, every lane that worked, every colour."""

from __future__ import annotations

from pathlib import Path

from eventspec.cli.timeline import draw
from eventspec.core import Span, Trace


def trace(end: float, *spans: Span, **marks: float) -> Trace:
    made = Trace()
    made.spans.extend(spans)
    made.marks.update(marks, end=end)
    return made


def test_methods_speeds_lanes_colours_and_units_are_written_on_it(tmp_path: Path) -> None:
    base = trace(0.12, Span("vision", "target", 0, 0.05), Span("decode", "target", 0.05, 0.12), first_committed=0.05)
    early = trace(
        0.08,
        Span("vision", "target", 0, 0.05),
        Span("draft", "drafter", 0.01, 0.03),
        Span("verify", "target", 0.05, 0.08),
        first_provisional=0.01,
    )
    cut = Trace()
    cut.spans.append(Span("prefill", "target", 0, 0.02))
    draw([("autoregressive", base), ("cross-modal", early), ("prior", cut)], tmp_path / "t.svg", 'street: "What?"')
    comments = (tmp_path / "t.svg").read_text()  # matplotlib writes each text beside the shapes of its letters
    for words in (
        'street: "What?"',
        "autoregressive: 120 ms",
        "cross-modal: 80 ms, 1.50x autoregressive",
        "prior: not finished",
        "milliseconds since the question was asked (ms)",
        "verify: check the guesses",
        "first provisional token",
        "answer complete",
    ):
        assert f"<!-- {words} -->" in comments, words
    assert comments.count("<!-- target -->") == 3 and comments.count("<!-- drafter -->") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.svg"]
