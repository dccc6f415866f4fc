"""The two-lane picture of one request: what drafter and target did when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventspec.core import Trace

COLOURS = {"vision": "#4c78a8", "prefill": "#9ecae9", "draft": "#f58518", "verify": "#54a24b", "decode": "#b8b8b8"}


def draw(rows: list[tuple[str, Trace]], path: Path) -> None:
    """One strip a method, two lanes each, on one time axis; first provisional and committed tokens are marked. PNG or SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(figsize=(11, 0.9 + 0.95 * len(rows)), layout="constrained")
    ticks, labels = [], []
    for number, (name, trace) in enumerate(rows):
        for offset, lane in enumerate(("target", "drafter")):
            height = -(3 * number + offset)
            ticks.append(height)
            labels.append(f"{name}  {lane}" if offset == 0 else lane)
            for span in (s for s in trace.spans if s.lane == lane):
                width = 1e3 * (span.end - span.start)
                axes.barh(height, width, left=1e3 * span.start, color=COLOURS[span.name], height=0.8, edgecolor="white", lw=0.3)
        for mark, colour in (("first_provisional", "#e45756"), ("first_committed", "#2f6b2f"), ("end", "black")):
            if mark in trace.marks:
                at = 1e3 * trace.marks[mark]
                axes.plot([at, at], [-3 * number - 1.5, -3 * number + 0.5], color=colour, lw=1.4)
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_xlabel("milliseconds since the question")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    handles += [Patch(color="#e45756", label="first provisional"), Patch(color="#2f6b2f", label="first committed")]
    axes.legend(handles=handles, ncols=7, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=8)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    figure.savefig(part, dpi=130)
    part.rename(path)
    pyplot.close(figure)
