"""The picture of one request in several methods: what target and drafter did when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventspec.core import Trace

COLOURS = {"vision": "#4c78a8", "prefill": "#9ecae9", "draft": "#f58518", "verify": "#54a24b", "decode": "#b8b8b8"}
COLOURS |= {"drafter prefill": "#f2b880"}
MEANINGS = {
    "vision": "vision: encode frames or events",
    "prefill": "prefill: read the prompt",
    "draft": "draft: guess tokens",
    "verify": "verify: check the guesses",
    "decode": "decode: one token, unaided",
    "drafter prefill": "drafter prefill: a head reads the prompt's features",
}
MARKS = {
    "first_provisional": ("#d62728", "--", "first provisional token"),
    "first_committed": ("#111111", "-", "first committed token"),
    "end": ("#111111", ":", "answer complete"),
}


def draw(rows: list[tuple[str, Trace]], path: Path, title: str) -> None:
    """One strip a method, a lane for each model that worked, all on one axis of milliseconds. PNG or SVG, by the suffix.

    Over each strip stand the method, its time, and how many times as fast as the first strip it was in the runs drawn.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = [[lane for lane in ("target", "drafter") if any(s.lane == lane for s in trace.spans)] for _, trace in rows]
    lanes = sum(map(len, used))
    figure, axes = pyplot.subplots(figsize=(11, 1.9 + 0.36 * lanes + 0.42 * len(rows)), layout="constrained")
    height, ticks, labels = 0.0, list[float](), list[str]()
    for (name, trace), own in zip(rows, used, strict=True):
        axes.text(0.0, height, f"{name}: {_speed(trace, rows[0][1], rows[0][0])}", va="center", fontsize=9, weight="bold")
        top = height - 0.4
        for lane in own:
            height -= 1.0
            ticks.append(height)
            labels.append(lane)
            for span in (s for s in trace.spans if s.lane == lane):
                left, width = 1e3 * span.start, 1e3 * (span.end - span.start)
                axes.barh(height, width, left=left, color=COLOURS[span.stage], height=0.8, edgecolor="white", lw=0.3)
        for mark, (colour, style, _) in MARKS.items():
            if mark in trace.marks:
                axes.vlines(1e3 * trace.marks[mark], height - 0.5, top, color=colour, ls=style, lw=1.6)
        height -= 1.2
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(height + 0.5, 0.7)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("milliseconds since the question was asked (ms)")
    axes.grid(axis="x", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    shown = {span.stage for _, trace in rows for span in trace.spans}
    handles: list[Patch | Line2D] = [Patch(color=COLOURS[name], label=MEANINGS[name]) for name in COLOURS if name in shown]
    handles += [Line2D([], [], color=colour, ls=style, lw=1.6, label=label) for colour, style, label in MARKS.values()]
    figure.legend(handles=handles, ncols=4, loc="outside lower center", frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    figure.savefig(part, dpi=130)
    part.rename(path)
    pyplot.close(figure)


def _speed(trace: Trace, base: Trace, base_name: str) -> str:
    """How long the answer took, and against the first strip; nothing where a run did not come to its end."""
    if "end" not in trace.marks or "end" not in base.marks:
        return "not finished"
    took = f"{1e3 * trace.marks['end']:.0f} ms"
    return took if trace is base else f"{took}, {base.marks['end'] / trace.marks['end']:.2f}x {base_name}"
