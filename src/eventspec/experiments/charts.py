"""Charts: small ones as SVG text without a library, the same bytes for the same results; and the picture of a comparison.

Letters and lines of the small ones take the colour of the page (`currentColor`); a <style> gives a file opened on its own one
for light and one for dark. Values are given with their 95 % intervals where there are some.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.experiments.names import BASE
from eventspec.experiments.verdict import Figures, grouped, remarks, verdict
from eventspec.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b07aa1", "#9c755f", "#72b7b2", "#e45756", "#b8860b")
"""Readable on light and on dark."""
STYLE = "<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style>"
MOST_MARKS = 12
"""Of points along an axis, each of which is named; of more, round values are."""
WIDTH, LABELS, ROW, TOP = 760, 210, 24, 26
LOSSLESS, CONTROL, LOSSY, CEILING = "#2a6fbb", "#666666", "#c8551b", "#2b8a3e"


@dataclass(frozen=True)
class Bar:
    """One row: its value, the interval around it, and a second value marked by a line."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    mark: float | None = None
    colour: int = 0


def bars(title: str, rows: Sequence[Bar], unit: str = "", lines: Mapping[str, float] | None = None) -> str:
    """Horizontal bars from 0 on, with `lines` across all of them at values that have a name."""
    lines = lines or {}
    tops = [max(row.value, (row.interval or (0, 0))[1], row.mark or 0.0) for row in rows]
    most = 1.04 * max([*tops, *lines.values()])
    height = TOP + ROW * len(rows) + 34
    plot = WIDTH - LABELS - 110

    def x(value: float) -> float:
        return LABELS + plot * value / most

    parts = []
    for tick in ticks(most):
        parts.append(line(x(tick), TOP, x(tick), height - 30, "0.15"))
        parts.append(text(x(tick), height - 14, f"{tick:g}{unit}", "middle"))
    for number, row in enumerate(rows):
        middle = TOP + ROW * number + ROW / 2
        parts.append(text(LABELS - 8, middle + 4, row.label, "end"))
        colour = PALETTE[row.colour]
        parts.append(
            f'<rect x="{LABELS}" y="{middle - 8:.1f}" width="{x(row.value) - LABELS:.1f}" height="16" fill="{colour}"/>'
        )
        end = row.value
        if row.interval is not None:
            low, end = row.interval
            parts.append(line(x(low), middle, x(end), middle, "0.9", 1.6))
        if row.mark is not None:
            parts.append(line(x(row.mark), middle - 10, x(row.mark), middle + 10, "0.9", 2.4))
            end = max(end, row.mark)
        beside = "" if row.mark is None else f" of {row.mark:.2f}{unit}"
        parts.append(text(x(end) + 6, middle + 4, f"{row.value:.2f}{unit}{beside}", "start"))
    for name, value in lines.items():
        parts.append(line(x(value), TOP - 4, x(value), height - 30, "0.8", 1.2, "4 3"))
        parts.append(text(x(value), TOP - 9, name, "middle"))
    return svg(title, height, parts)


def curves(title: str, series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> str:
    """A line for each series over (x, y); both axes say what they are."""
    xs = sorted({point[0] for points in series.values() for point in points})
    most, height, left, right = 1.06 * max(y for points in series.values() for _, y in points), 300, 60, 200

    def place(at: float, value: float) -> tuple[float, float]:
        span = (xs[-1] - xs[0]) or 1.0
        return left + (WIDTH - left - right) * (at - xs[0]) / span, TOP + (height - TOP - 46) * (1 - value / most)

    parts = [text(left, 14, up, "start"), text((left + WIDTH - right) / 2, height - 6, across, "middle")]
    for tick in ticks(most):
        parts.append(line(left, place(xs[0], tick)[1], WIDTH - right, place(xs[0], tick)[1], "0.15"))
        parts.append(text(left - 8, place(xs[0], tick)[1] + 4, f"{tick:g}", "end"))
    marked = xs if len(xs) <= MOST_MARKS else [at for at in ticks(xs[-1]) if at >= xs[0]]
    parts += [text(place(at, 0)[0], height - 26, f"{at:g}", "middle") for at in marked]
    ends = spaced([place(*points[-1])[1] for points in series.values()], 16)
    for number, ((name, points), label) in enumerate(zip(series.items(), ends, strict=True)):
        colour = PALETTE[number % len(PALETTE)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in (place(*point) for point in points)]
        a = place(*points[-1])[0]
        parts.append(f'<rect x="{a + 10:.1f}" y="{label - 5:.1f}" width="10" height="10" fill="{colour}"/>')
        parts.append(text(a + 26, label + 4, name, "start"))
    return svg(title, height, parts)


def spaced(places: Sequence[float], least: float) -> list[float]:
    """The same places in their order, moved down where two are closer than `least`."""
    found, last = dict[int, float](), -least
    for number in sorted(range(len(places)), key=places.__getitem__):
        last = found[number] = max(places[number], last + least)
    return [found[number] for number in range(len(places))]


def ticks(most: float) -> list[float]:
    """Round values from 0 up to `most`, four to nine of them."""
    step = next(step for step in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if most / step <= 9)
    return [step * number for number in range(int(most / step) + 1)]


def text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, opacity: str, width: float = 1.0, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="{width}" opacity="{opacity}"{dashed}/>'


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    """The whole drawing; its title is what a screen reader says."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" role="img"'
    return "\n".join([f"{head} {style}>", STYLE, f"<title>{escape(title)}</title>", *parts, "</svg>", ""])


def draw(found: Figures, path: Path) -> None:
    """Write the speedups of a summary of `compare` as PNG or SVG, by the suffix; whole or not at all. BadInput where it cannot
    be written."""
    from matplotlib import style

    with style.context("default"):  # whatever the reader's own: black on white is legible in a dark page too
        figure = _drawn(found)
        write_whole(path, lambda part: figure.savefig(part, format=path.suffix[1:], dpi=130, facecolor="white"))


def _drawn(found: Figures) -> Figure:
    from matplotlib.figure import Figure

    methods: dict[str, Figures] = found["methods"]
    groups = grouped({name: own for name, own in methods.items() if own.get("speedup") is not None})
    heights, y, titles = dict[str, float](), 0.0, list[tuple[float, str]]()
    for title, names in groups:
        if title:
            titles.append((y, title))
            y -= 1.0
        for method in names:
            heights[method], y = y, y - 1.0
    figure = Figure(figsize=(8.5, 1.7 + 0.3 * -y), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color="#444444", lw=0.8)
    for method, height in heights.items():
        _point(axes, methods[method], height)
    for height, text in titles:
        style: dict[str, Any] = {"fontsize": 8, "style": "italic", "va": "center", "bbox": {"color": "white", "pad": 1.0}}
        axes.text(0.01, height, text, transform=axes.get_yaxis_transform(), **style)
    axes.set_yticks(list(heights.values()), list(heights), fontsize=9)
    axes.set_ylim(y + 0.4, 0.7)
    shown = [
        end for own in methods.values() for end in (own.get("speedup"), own.get("ceiling"), *_interval(own)) if end is not None
    ]
    axes.set_xlim(0.95 * min([1.0, *shown]), 1.03 * max([1.0, *shown]))
    axes.set_xlabel(f"times as fast as {BASE} alone")
    axes.grid(axis="x", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _explain(figure, found)
    return figure


def _interval(own: Figures) -> list[float]:
    """Both ends; none for the baseline's own, or where samples are too few."""
    low, high = own.get("speedup_ci95") or (None, None)
    return [] if low is None or high is None or low == high else [low, high]


def _point(axes: Axes, own: Figures, y: float) -> None:
    """A method's speedup, its interval and, for a lossless one, the ceiling."""
    colour = LOSSY if not own["lossless"] else CONTROL if own["control"] else LOSSLESS
    if interval := _interval(own):
        axes.hlines(y, interval[0], interval[1], color=colour, lw=2.2, alpha=0.55)
    if own["lossless"]:
        axes.vlines(own["ceiling"], y - 0.5, y + 0.5, color=CEILING, lw=1.4, ls=(0, (3, 2)))
    face = colour if own["lossless"] else "white"
    axes.plot([own["speedup"]], [y], "o", ms=6, color=colour, markerfacecolor=face, markeredgewidth=1.6)
    words = f"{own['speedup']:.2f}x" + (f"  ({interval[0]:.2f} .. {interval[1]:.2f})" if interval else "")
    axes.text(1.02, y, words, transform=axes.get_yaxis_transform(), fontsize=8, color=colour, va="center")


def _explain(figure: Figure, found: Figures) -> None:
    from matplotlib.lines import Line2D

    def dot(colour: str, face: str, label: str) -> Line2D:
        return Line2D([], [], color=colour, marker="o", markerfacecolor=face, lw=2.2, label=label)

    handles = [dot(LOSSLESS, LOSSLESS, "lossless"), dot(CONTROL, CONTROL, "control"), dot(LOSSY, "white", "lossy")]
    handles.append(Line2D([], [], color=CEILING, ls=(0, (3, 2)), label="ceiling of lossless methods"))
    figure.legend(handles=handles, ncols=4, loc="outside lower center", frameon=False, fontsize=8)
    figure.suptitle(verdict(found["methods"], found["n"]), fontsize=11, ha="left", x=0.02)
    figure.axes[0].set_title("\n".join(textwrap.fill(text, 120) for text in remarks(found)), fontsize=7.5, loc="left", x=0)
