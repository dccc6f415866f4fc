"""The picture of one request in one or several methods: what target and drafter did when, and what was accepted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from eventspec.errors import BadInput, several
from eventspec.files import write_whole
from eventspec.trace.record import Lane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from eventspec.trace import Trace

STAGES = {
    "vision": ("#4c78a8", "vision: encode frames or events"),
    "projector": ("#2f4b7c", "projector: rows for the language model"),
    "transfer": ("#b279a2", "transfer: rows go to the other device"),
    "prefill": ("#9ecae9", "prefill: read the prompt"),
    "draft": ("#f58518", "draft: guess tokens"),
    "verify": ("#54a24b", "verify: check the guesses"),
    "decode": ("#b8b8b8", "decode: one token, unaided"),
    "drafter prefill": ("#f2b880", "drafter prefill: a head reads the prompt"),
    "post-processing": ("#e45756", "post-processing: tokens become text"),
}
"""Colour and meaning of every stage."""
MARKS = {
    "first_provisional": ("#d62728", "--", "first provisional token"),
    "first_committed": ("#111111", "-", "first committed token"),
    "end": ("#111111", ":", "answer complete"),
}
CEILING, IDLE, DRAFTED, ACCEPTED, INK = "#8e44ad", "#bdbdbd", "#d5d5d5", "#8fce84", "#111111"
WIDTH, MARGINS, UNIT = 11.0, 1.4, 0.3
"""Inches: of the picture, of what stands beside its axes, and of a lane."""
LETTERS = 150
"""Of the answer that fit beside each other."""
SHORTEST_GAP = 0.01
"""A share of the request: a lane that does nothing for less is not called idle."""
PAGE_WIDTH, LEFT, LANE = 640, 56, 18
"""Pixels: of the drawing in a page, of the lanes' names, and of a lane."""
MOST_SPANS = 400
"""A longer answer is drawn up to here, so that a notebook stays small."""


def figure(strips: Sequence[tuple[str, Trace]], title: str | None = None) -> Figure:
    """One strip a method, with a lane for each model that worked, on one axis of milliseconds. title: by default the question.

    Over each strip stand the method, its time, and how many times as fast as the first strip it was in the runs drawn; below
    its lanes what every round accepted of its draft's levels, and the answer so far at three times.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"):  # whatever the reader's own: black on white is legible in a dark page too
        made = Figure(figsize=(WIDTH, 1.0), layout="constrained", facecolor="white")
        axes = made.add_subplot()
        limit = 1e3 * max([1e-4, *(_length(trace) for _, trace in strips)])
        deepest = max([1, *(r.depth for _, trace in strips for r in trace.rounds)])
        y, ticks = 0.0, dict[float, str]()
        for name, trace in strips:
            axes.text(0.0, y, _headline(name, trace, *strips[0]), va="center", fontsize=9, weight="bold", parse_math=False)
            bottom = _strip(axes, trace, y - 0.4, limit, deepest, ticks)
            y = _answer_so_far(axes, trace, bottom) - 0.9
        base = strips[0][1].marks.get("first_committed") if strips else None
        if base is not None:
            axes.axvline(1e3 * base, color=CEILING, ls="-.", lw=1.0, zorder=0)
        made.set_size_inches(WIDTH, 1.5 + UNIT * (0.7 - y))
        _frame(axes, ticks, y, limit)
        _legend(made, strips)
        made.suptitle(_title(strips, title), fontsize=10, parse_math=False)  # a "$" is a dollar
    return made


def draw(strips: Sequence[tuple[str, Trace]], path: Path, title: str | None) -> Figure:
    """`figure`, written whole or not at all. BadInput for a suffix but .png, .svg and .pdf, and where it cannot be written."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{path} is neither a .png nor a .svg nor a .pdf file: give it one of these names")
    made = figure(strips, title)
    write_whole(path, lambda part: made.savefig(part, format=path.suffix[1:], dpi=130))
    return made


def lanes_of(trace: Trace) -> list[Lane]:
    """The lanes that worked, from above."""
    return [lane for lane in get_args(Lane) if any(span.lane == lane for span in trace.spans)]


def idle(trace: Trace, lane: Lane) -> list[tuple[float, float]]:
    """When a lane did nothing for a while, [begin, end) in seconds, from the question to the last work or mark."""
    end, free, found = _length(trace), 0.0, list[tuple[float, float]]()
    for span in sorted((s for s in trace.spans if s.lane == lane), key=lambda s: s.start):
        found.append((free, span.start))
        free = max(free, span.end)
    return [(begin, until) for begin, until in [*found, (free, end)] if until - begin > SHORTEST_GAP * end]


def so_far(trace: Trace, times: int = 3) -> list[tuple[float, str]]:
    """The answer at its first committed token, at its end and evenly between: (seconds, text)."""
    grown, text = list[tuple[float, str]](), ""
    for span in trace.spans:
        if span.round is not None and (added := trace.rounds[span.round].text):
            text += added
            grown.append((span.end, text))
    if len(grown) <= times:
        return grown
    first, last = grown[0][0], grown[-1][0]
    wanted = [first + (last - first) * step / (times - 1) for step in range(times)]
    return list(dict.fromkeys(max((one for one in grown if one[0] <= at + 1e-9), key=lambda one: one[0]) for at in wanted))


def _length(trace: Trace) -> float:
    """Seconds from the question to the last that is known."""
    return max([0.0, *trace.marks.values(), *(span.end for span in trace.spans)])


def _strip(axes: Axes, trace: Trace, top: float, limit: float, deepest: int, ticks: dict[float, str]) -> float:
    """The lanes of one method below `top`, and what its rounds accepted; its lower end. The lanes' names go into `ticks`."""
    y = top + 0.4
    for lane in lanes_of(trace):
        y -= 1.0
        ticks[y] = lane
        for begin, end in idle(trace, lane):
            axes.barh(y, 1e3 * (end - begin), left=1e3 * begin, height=0.5, color="none", edgecolor=IDLE, hatch="////", lw=0)
        for span in (span for span in trace.spans if span.lane == lane):
            left, width = 1e3 * span.start, 1e3 * (span.end - span.start)
            axes.barh(y, width, left=left, color=STAGES[span.stage][0], height=0.8, edgecolor="white", lw=0.3)
    if any(made.depth for made in trace.rounds):
        y -= 1.0
        ticks[y] = "accepted"
        _accepted(axes, trace, y, limit, deepest)
    for mark, (colour, line, _) in MARKS.items():
        if mark in trace.marks:
            axes.vlines(1e3 * trace.marks[mark], y - 0.5, top, color=colour, ls=line, lw=1.6)
    return y - 0.5


def _accepted(axes: Axes, trace: Trace, y: float, limit: float, deepest: int) -> None:
    """A column for every draft, as high as it had levels, filled as far as they were accepted."""
    for span in (span for span in trace.spans if span.round is not None and trace.rounds[span.round].depth):
        assert span.round is not None
        made, left, width = trace.rounds[span.round], 1e3 * span.start, 1e3 * (span.end - span.start)
        for levels, colour in ((made.depth, DRAFTED), (made.accepted, ACCEPTED)):
            axes.bar(left, 0.8 * levels / deepest, width, y - 0.4, align="edge", color=colour, edgecolor="white", lw=0.3)
        room = (WIDTH - MARGINS) * width / limit
        words = next((w for w in (f"{made.accepted} of {made.depth}", f"{made.accepted}") if 0.075 * len(w) < room), "")
        axes.text(left + width / 2, y, words, ha="center", va="center", fontsize=7, color=INK)


def _answer_so_far(axes: Axes, trace: Trace, y: float) -> float:
    """Lines of text below a strip; their lower end."""
    for at, text in so_far(trace):
        y -= 0.62
        shown = _one_line(text) if len(text) <= LETTERS else f"... {_one_line(text[4 - LETTERS :]).partition(' ')[2]}"
        words, box = f" {1e3 * at:.0f} ms:  {shown}", {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.text(0.0, y + 0.2, words, va="center", parse_math=False, fontsize=8, color=INK, bbox=box)
    return y


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _headline(name: str, trace: Trace, base_name: str, base: Trace) -> str:
    """The method, how long it took, and against the first strip; nothing of that where a run did not come to its end."""
    if "end" not in trace.marks or "end" not in base.marks:
        return f"{name}: not finished"
    took = f"{name}: {1e3 * trace.marks['end']:.0f} ms"
    if trace is not base:
        took += f", {base.marks['end'] / trace.marks['end']:.2f}x {base_name}"
    tokens, rounds = sum(r.committed for r in trace.rounds), len(trace.rounds)
    return f"{took}; {several(tokens, 'token')} in {several(rounds, 'round')}" if rounds else took


def _title(strips: Sequence[tuple[str, Trace]], given: str | None) -> str:
    """The title as it is given, after the question where that is not in it."""
    question = strips[0][1].question if strips else ""
    lines = [] if not question or question in (given or "") else [f'"{_one_line(question)}"']
    return "\n".join(part for line in [*lines, *(given or "").splitlines()] for part in textwrap.wrap(line, LETTERS))


def _frame(axes: Axes, ticks: dict[float, str], bottom: float, limit: float) -> None:
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.set_ylim(bottom + 0.4, 0.7)
    axes.set_xlim(0.0, 1.01 * limit)
    axes.set_xlabel("milliseconds since the question was asked (ms)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _legend(made: Figure, strips: Iterable[tuple[str, Trace]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    traces = [trace for _, trace in strips]
    shown = {span.stage for trace in traces for span in trace.spans}
    handles: list[Patch | Line2D] = [Patch(color=c, label=label) for name, (c, label) in STAGES.items() if name in shown]
    if any(idle(trace, lane) for trace in traces for lane in lanes_of(trace)):
        handles.append(Patch(facecolor="none", edgecolor=IDLE, hatch="////", lw=0, label="idle"))
    if any(r.depth for trace in traces for r in trace.rounds):
        handles.append(Patch(color=ACCEPTED, label="accepted levels of a draft"))
        handles.append(Patch(color=DRAFTED, label="refused levels of it"))
    marked = {mark for trace in traces for mark in trace.marks}
    handles += [Line2D([], [], color=c, ls=ls, lw=1.6, label=label) for mark, (c, ls, label) in MARKS.items() if mark in marked]
    if traces and (ceiling := traces[0].ceiling) is not None:
        words = f"vision and prefill of the first: {ceiling:.2f}x"
        if not traces[0].drafted:
            words = f"ceiling, {ceiling:.2f}x: no lossless answer is done sooner"
        handles.append(Line2D([], [], color=CEILING, ls="-.", lw=1.0, label=words))
    made.legend(handles=handles, ncols=4, loc="outside lower center", frameon=False, fontsize=7.5)


def drawing(trace: Trace) -> str:
    """For a notebook, plain SVG in the page's own text colour: a bar for every span, on a lane for each model; times in
    milliseconds in the tooltips."""
    spans = trace.spans[:MOST_SPANS]
    lanes = lanes_of(trace)
    end = max([1e-9, *(span.end for span in spans)])
    parts = []
    for row, lane in enumerate(lanes):
        y = row * (LANE + 4)
        parts.append(f'<text x="0" y="{y + 13}" font-size="11" fill="currentColor">{lane}</text>')
        for span in (span for span in spans if span.lane == lane):
            x, wide = LEFT + (PAGE_WIDTH - LEFT) * span.start / end, (PAGE_WIDTH - LEFT) * (span.end - span.start) / end
            tip = f"{span.stage}: {1e3 * span.start:.1f} to {1e3 * span.end:.1f} ms"
            if span.round is not None and span.round < len(trace.rounds):
                made = trace.rounds[span.round]
                tip += f", {made.accepted} of {made.depth} levels accepted: {made.text}"
            box = f'x="{x:.1f}" y="{y}" width="{max(0.5, wide):.1f}" height="{LANE}" fill="{STAGES[span.stage][0]}"'
            parts.append(f"<rect {box}><title>{escape(tip)}</title></rect>")
    height = len(lanes) * (LANE + 4) + 14
    left = "" if len(spans) == len(trace.spans) else f"; the first {MOST_SPANS} of {len(trace.spans)} spans"
    words = escape(f"0 to {1e3 * end:.1f} ms{left}; {', '.join(dict.fromkeys(span.stage for span in spans))}")
    parts.append(f'<text x="{LEFT}" y="{height - 3}" font-size="11" fill="currentColor">{words}</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{PAGE_WIDTH}" height="{height}">{"".join(parts)}</svg>'
