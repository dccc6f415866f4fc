"""What a person reads of a comparison: the verdict, then small tables that fit a page, lossy methods apart."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from eventspec.experiments.verdict import Figures, grouped, remarks, verdict

GAP = 2
"""Letters between two columns."""


def lines(found: Figures, width: int) -> list[str]:
    """A summary of `experiments.compare` in lines of at most `width` letters; a name is never broken, one that is longer than
    a line excepted."""
    methods: dict[str, Figures] = found["methods"]
    sections = grouped(methods)
    page = [*_wrapped(verdict(methods, found["n"]), width), ""]
    page += _table(SPEEDS, methods, sections, found["n"], width)
    page += ["", *_table(TIMES, methods, sections, found["n"], width), ""]
    page += [line for text in (*remarks(found), *_LEGEND) for line in _wrapped(text, width)]
    return page


def _times(own: Figures) -> str:
    return "-" if own.get("speedup") is None else f"{own['speedup']:.2f}x"


def _interval(own: Figures) -> str:
    low, high = own.get("speedup_ci95") or (None, None)
    return "-" if low is None or low == high else f"{low:.2f} .. {high:.2f}"


def _share(own: Figures, name: str) -> str:
    return "-" if own.get(name) is None else f"{own[name]:.0%}"


def _milliseconds(own: Figures, name: str) -> str:
    return "-" if own.get(name) is None else f"{own[name]:.0f}"


SPEEDS = {
    "speedup": lambda own, n: _times(own),
    "95 %": lambda own, n: _interval(own),
    "ceiling": lambda own, n: "-" if own.get("ceiling") is None or not own["lossless"] else f"{own['ceiling']:.2f}x",
    "tau": lambda own, n: "-" if own.get("tau") is None else f"{own['tau']:.2f}",
    "identical": lambda own, n: "-" if own.get("identical") is None else f"{own['identical']} of {n}",
}
"""Columns of the first table."""
TIMES = {
    "provisional": lambda own, n: _milliseconds(own, "first_provisional_ms"),
    "kept": lambda own, n: _share(own, "provisional_kept"),
    "committed": lambda own, n: _milliseconds(own, "first_committed_ms"),
    "total": lambda own, n: _milliseconds(own, "total_ms"),
    "accept": lambda own, n: _share(own, "acceptance"),
    "seen": lambda own, n: _share(own, "acceptance_vision"),
}
"""Columns of the second table."""
_LEGEND = (
    "ceiling: total over vision and prefill, which every lossless method pays. tau: tokens a round. provisional, committed: "
    "milliseconds to the first such token, means; kept: of the provisional ones. accept: accepted of drafted levels. seen: "
    "first choices of the drafter that are right where the blind prior is wrong.",
)


def _table(
    columns: Mapping[str, Any], methods: Mapping[str, Figures], sections: Sequence[tuple[str, list[str]]], n: int, width: int
) -> list[str]:
    """One line a method, two where its name is too long to stand beside its figures; columns that nobody has are left out."""
    cells = {head: {name: make(own, n) for name, own in methods.items()} for head, make in columns.items()}
    cells = {head: own for head, own in cells.items() if any(cell != "-" for cell in own.values())}
    widths = {head: max(len(head), *map(len, own.values())) for head, own in cells.items()}
    taken = sum(GAP + wide for wide in widths.values())
    first = max([len("method"), *(len(name) for name in methods if len(name) + taken <= width)])

    def line(name: str, row: Mapping[str, str]) -> list[str]:
        figures = "".join(" " * GAP + row[head].rjust(wide) for head, wide in widths.items())
        return [name.ljust(first) + figures] if len(name) <= first else [name, " " * first + figures]

    page = line("method", {head: head for head in widths})
    for title, names in sections:
        page += [*(["", title] if title else []), *(part for name in names for part in line(name, _row(cells, name)))]
    return [part.rstrip() for part in page]


def _row(cells: Mapping[str, Mapping[str, str]], name: str) -> dict[str, str]:
    return {head: own[name] for head, own in cells.items()}


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
