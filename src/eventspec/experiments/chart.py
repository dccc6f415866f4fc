"""The picture of a comparison: speedups with their intervals, what is possible, controls and lossy methods set apart."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.experiments.figures import BASE
from eventspec.experiments.verdict import Figures, grouped, remarks, verdict
from eventspec.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSSLESS, CONTROL, LOSSY, CEILING = "#2a6fbb", "#666666", "#c8551b", "#2b8a3e"


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
