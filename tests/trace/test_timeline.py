"""The timeline says what it shows: methods with their speeds, lanes that worked, what was accepted and said, colours."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest

from eventspec.core import BadInput, Round, Span, Trace
from eventspec.trace.timeline import draw, figure, idle, so_far


def trace(end: float, *spans: Span, **marks: float) -> Trace:
    made = Trace(question="What costs $5 and $7?")
    made.spans.extend(spans)
    made.marks.update(marks, end=end)
    return made


@pytest.fixture
def base() -> Trace:
    return trace(0.12, Span("vision", "target", 0, 0.05), Span("decode", "target", 0.05, 0.12), first_committed=0.05)


@pytest.fixture
def early() -> Trace:
    made = trace(
        0.08,
        Span("vision", "target", 0, 0.05),
        Span("draft", "drafter", 0.01, 0.03),
        Span("prefill", "target", 0.05, 0.06, 0),
        Span("verify", "target", 0.065, 0.08, 1),
        first_provisional=0.01,
    )
    made.rounds += [Round(9, 6, "prior", True, 4, (1, 2, 3, 4, 5), "A car for"), Round(3, 3, "prior", False, 3, (6,), " $5.")]
    return made


def test_methods_speeds_lanes_colours_and_units_are_written_on_it(tmp_path: Path, base: Trace, early: Trace) -> None:
    cut = Trace()
    cut.spans.append(Span("prefill", "target", 0, 0.02))
    draw([("autoregressive", base), ("cross-modal", early), ("prior", cut)], tmp_path / "t.svg", "street: it is asked")
    comments = (tmp_path / "t.svg").read_text()  # matplotlib writes each text beside the shapes of its letters
    for words in (
        '"What costs $5 and $7?"',
        "street: it is asked",
        "autoregressive: 120 ms",
        "cross-modal: 80 ms, 1.50x autoregressive; 6 tokens in 2 rounds",
        "prior: not finished",
        "milliseconds since the question was asked (ms)",
        "verify: check the guesses",
        "first provisional token",
        "answer complete",
        "4 of 6",
        "3 of 3",
        " 80 ms:  A car for $5.",
        "idle",
        "ceiling, 2.40x: no lossless answer is done sooner",
    ):
        assert f"<!-- {words} -->" in comments, words
    early.marks["first_committed"] = 0.04
    draw([("cross-modal", early), ("autoregressive", base)], tmp_path / "t.svg", "")
    drafted_first = (tmp_path / "t.svg").read_text()
    assert "ceiling" not in drafted_first and "vision and prefill of the first: 2.00x" in drafted_first
    assert comments.count("<!-- target -->") == 3 and comments.count("<!-- drafter -->") == 1
    assert comments.count("<!-- accepted -->") == 1, "only where something was drafted"
    assert [path.name for path in tmp_path.iterdir()] == ["t.svg"]


def test_a_lane_that_waits_is_idle(early: Trace) -> None:
    assert idle(early, "drafter") == [(0.0, 0.01), (0.03, 0.08)]
    assert idle(early, "target") == [(pytest.approx(0.06), pytest.approx(0.065))]
    assert idle(Trace(), "target") == []


def test_the_answer_so_far_grows_to_the_whole_answer(early: Trace) -> None:
    assert so_far(early) == [(0.06, "A car for"), (0.08, "A car for $5.")]
    long = trace(1.0, *(Span("decode", "target", at / 100, (at + 1) / 100, at) for at in range(100)))
    long.rounds += [Round(0, 0, "", not at, 0, (at,), f" {at}") for at in range(100)]
    first, middle, last = so_far(long)
    assert first == (0.01, " 0") and middle[1].endswith(" 49") and last == (1.0, "".join(f" {at}" for at in range(100)))
    assert so_far(Trace()) == []


@pytest.mark.parametrize("rows", [[], [("nothing", Trace())]])
def test_a_picture_of_nothing_is_a_picture(rows: list[tuple[str, Trace]]) -> None:
    assert figure(rows).axes


def test_a_readers_own_style_does_not_make_it_illegible(base: Trace) -> None:
    with matplotlib.rc_context({"axes.facecolor": "black", "text.color": "white", "figure.facecolor": "black"}):
        made = base.plot()
    assert made.get_facecolor()[:3] == made.axes[0].get_facecolor()[:3] == (1, 1, 1)
    assert made.axes[0].texts[0].get_color() == "black"


@pytest.mark.parametrize("name", ["t.png", "t.svg", "t.pdf"])
def test_a_trace_draws_itself(name: str, tmp_path: Path, base: Trace) -> None:
    assert base.plot(tmp_path / name, title="mine").get_suptitle().endswith("\nmine")
    assert (tmp_path / name).stat().st_size > 1000


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path, base: Trace) -> None:
    with pytest.raises(BadInput, match=r"neither a \.png nor a \.svg"):
        base.plot(tmp_path / "t.txt")
    with pytest.raises(BadInput, match="cannot be written"):
        base.plot(tmp_path / "no/t.png")
    assert not list(tmp_path.iterdir())
