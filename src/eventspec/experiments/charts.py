"""Charts by matplotlib: a row for every value with its 95 % interval, and curves. Each holds its data as its description."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.experiments.names import BASE
from eventspec.experiments.verdict import Figures, grouped, remarks, verdict
from eventspec.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"lossless": ("#2a6fbb", "#2a6fbb"), "control": ("#c8751b", "#c8751b"), "lossy": ("#b03060", "white")}
"""Colours of a point's edge and face."""
LIMIT: dict[str, Any] = {"color": "#2b8a3e", "lw": 1.4, "ls": (0, (3, 2))}


@dataclass(frozen=True)
class Value:
    """One row: its value, the ends of the interval around it, and a limit that is marked."""

    label: str
    value: float
    interval: Sequence[float] = ()
    limit: float | None = None
    kind: str = "lossless"


def values(
    title: str, groups: Mapping[str, Sequence[Value]], across: str, limit: str = "", notes: str = "", unit: str = "x"
) -> Figure:
    """A row for every value, each group below its heading; `limit` says in the legend what limits are."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with style.context("default"):  # not the reader's own: black on white is legible in a dark page too
        figure, y, ticks = Figure(layout="constrained"), 0.0, dict[float, str]()
        axes = figure.add_subplot()
        axes.axvline(1.0, color="#444444", lw=0.8)
        beside = axes.get_yaxis_transform()
        for heading, rows in groups.items():
            if heading:
                axes.text(0.01, y, heading, transform=beside, fontsize=8, style="italic", va="center")
                y -= 1.0
            for row in rows:
                edge, face = KINDS[row.kind]
                if row.interval:
                    axes.hlines(y, row.interval[0], row.interval[1], color=edge, lw=2.2, alpha=0.55)
                if row.limit is not None:
                    axes.vlines(row.limit, y - 0.5, y + 0.5, **LIMIT)
                axes.plot([row.value], [y], "o", ms=6, color=edge, markerfacecolor=face, markeredgewidth=1.6)
                words = f"{row.value:.2f}{unit}" + ("  ({:.2f} .. {:.2f})".format(*row.interval) if row.interval else "")
                axes.text(1.02, y, words, transform=beside, fontsize=8, color=edge, va="center")
                ticks[y], y = row.label, y - 1.0
        figure.set_size_inches(8.5, 1.7 - 0.3 * y)
        axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
        axes.set_ylim(y + 0.4, 0.7)
        axes.set_xlabel(across)
        axes.grid(axis="x", color="#e6e6e6", lw=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        kinds = dict.fromkeys(row.kind for rows in groups.values() for row in rows)
        handles = [Line2D([], [], color=KINDS[k][0], marker="o", markerfacecolor=KINDS[k][1], lw=2.2, label=k) for k in kinds]
        handles += [Line2D([], [], **LIMIT, label=limit)] if limit else []
        figure.legend(handles=handles, ncols=4, loc="outside lower center", frameon=False, fontsize=8)
        figure.suptitle(title, fontsize=11, ha="left", x=0.02)
        axes.set_title(notes, fontsize=7.5, loc="left", x=0)
    figure.set_label(json.dumps({name: [asdict(row) for row in rows] for name, rows in groups.items()}))
    return figure


def curves(title: str, series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Figure:
    """A line for each series over (x, y)."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"):
        figure = Figure(figsize=(8.5, 3.6), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=across, ylabel=up)
        for name, points in series.items():
            axes.plot(*zip(*points, strict=True), marker="o", ms=4, label=name)
        axes.set_ylim(0.0, 1.06 * max(y for points in series.values() for _, y in points))
        axes.grid(axis="y", color="#e6e6e6", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    figure.set_label(json.dumps(series))
    return figure


def panels(
    title: str, found: Mapping[str, Sequence[Value]], labels: Sequence[str], kinds: Mapping[str, str], limit: str
) -> Figure:
    """A panel for each of several figures, four side by side, with the same rows in all of them, one a label: values of one
    label share it, one without any has a dash. `kinds`, `limit`: what the colours and the marks mean."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines, across = -(-len(found) // 4), min(4, len(found))
    with style.context("default"):
        figure = Figure(figsize=(3.0 + 2.6 * across, 1.0 + lines * (0.8 + 0.3 * len(labels))), layout="constrained")
        grid = figure.subplots(lines, across, sharey=True, squeeze=False)
        for axes, (name, rows) in zip(grid.flat, found.items(), strict=False):
            for value in rows:
                y, (edge, face) = (0.14 if value.kind == "lossless" else -0.14), KINDS[value.kind]
                y -= labels.index(value.label)
                if value.interval:
                    axes.hlines(y, *value.interval, color=edge, lw=2.0, alpha=0.55)
                if value.limit is not None:
                    axes.vlines(value.limit, y - 0.3, y + 0.1, **LIMIT)
                axes.plot([value.value], [y], "o", ms=4.5, color=edge, markerfacecolor=face)
            for label in set(labels) - {value.label for value in rows}:
                axes.text(
                    0.5,
                    -labels.index(label),
                    "none",
                    transform=axes.get_yaxis_transform(),
                    color="#777777",
                    fontsize=7,
                    va="center",
                )
            axes.set_title(name, fontsize=9)
            axes.set_yticks([-number for number in range(len(labels))], labels, fontsize=8)
            axes.set_ylim(0.6 - len(labels), 0.6)
            axes.tick_params(axis="x", labelsize=7)
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="both", color="#e6e6e6", lw=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right", "left"]].set_visible(False)
        handles = [
            Line2D([], [], color=KINDS[kind][0], marker="o", ms=4.5, lw=2.0, label=words) for kind, words in kinds.items()
        ]
        handles.append(Line2D([], [], **LIMIT, label=limit))
        figure.legend(handles=handles, ncols=3, loc="outside lower center", frameon=False, fontsize=8)
        figure.suptitle(title, fontsize=11, ha="left", x=0.02)
    figure.set_label(json.dumps({name: [asdict(row) for row in rows] for name, rows in found.items()}))
    return figure


def svg(figure: Figure) -> str:
    """A chart as SVG, its data as its description; letters stay text. Another matplotlib may give other bytes."""
    from matplotlib import style

    held = io.StringIO()
    with style.context(["default", {"svg.hashsalt": "eventspec", "svg.fonttype": "none"}]):
        figure.savefig(held, format="svg", metadata={"Date": None, "Creator": None, "Description": figure.get_label()})
    return held.getvalue()


def draw(found: Figures, path: Path) -> None:
    """Write the speedups of a summary of `compare` as PNG or SVG, by the suffix; whole or not at all. BadInput where it cannot
    be written."""
    methods: dict[str, Figures] = found["methods"]
    measured = {name: own for name, own in methods.items() if own.get("speedup") is not None}
    groups = {title: [value_of(name, measured[name]) for name in names] for title, names in grouped(measured)}
    notes = "\n".join(textwrap.fill(text, 120) for text in remarks(found))
    title, across = verdict(methods, found["n"]), f"times as fast as {BASE} alone"
    figure = values(title, groups, across, "ceiling of lossless methods", notes)
    write_whole(path, lambda part: figure.savefig(part, format=path.suffix[1:], dpi=130, facecolor="white"))


def value_of(name: str, own: Figures) -> Value:
    """The row of a method; without an interval for the baseline, and where samples are too few."""
    low, high = own.get("speedup_ci95") or (None, None)
    interval = () if low is None or high is None or low == high else (low, high)
    kind = "lossy" if not own["lossless"] else "control" if own["control"] else "lossless"
    return Value(name, own["speedup"], interval, own["ceiling"] if own["lossless"] else None, kind)
