"""What a person reads of a comparison: the verdict, then small tables that fit a page, lossy methods apart."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping

from eventspec.experiments.verdict import Figures, grouped, remarks, verdict

GAP = 2
"""Letters between two columns."""
LEGEND = (
    "ceiling: total over vision and prefill, which every lossless method pays. tau: tokens a round. provisional, committed: "
    "milliseconds to the first of these tokens, means; kept: of the provisional ones. accept: accepted of drafted levels. "
    "seen: first choices of the drafter that are right where the blind prior is wrong."
)


def lines(found: Figures, width: int) -> list[str]:
    """A summary of `experiments.compare` in lines of at most `width` letters; a name is never broken, one that is longer than
    a line excepted."""
    methods: dict[str, Figures] = found["methods"]

    def wrapped(texts: Iterable[str]) -> list[str]:
        return [line for text in texts for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]

    n, notes = found["n"], wrapped([*remarks(found), LEGEND])
    return [
        *wrapped([verdict(methods, n)]),
        "",
        *_table(SPEEDS, methods, n, width),
        "",
        *_table(TIMES, methods, n, width),
        "",
        *notes,
    ]


def _interval(own: Figures) -> str:
    low, high = own.get("speedup_ci95") or (None, None)
    return "-" if low is None or low == high else f"{low:.2f} .. {high:.2f}"


def _shown(name: str, form: str) -> Callable[[Figures, int], str]:
    """A figure in a format, or a dash."""
    return lambda own, n: "-" if own.get(name) is None else form.format(own[name], n=n)


Columns = Mapping[str, Callable[[Figures, int], str]]
SPEEDS: Columns = {
    "speedup": _shown("speedup", "{:.2f}x"),
    "95 %": lambda own, n: _interval(own),
    "ceiling": lambda own, n: _shown("ceiling", "{:.2f}x")(own if own["lossless"] else {}, n),
    "tau": _shown("tau", "{:.2f}"),
    "identical": _shown("identical", "{} of {n}"),
}
TIMES: Columns = {
    "provisional": _shown("first_provisional_ms", "{:.0f}"),
    "kept": _shown("provisional_kept", "{:.0%}"),
    "committed": _shown("first_committed_ms", "{:.0f}"),
    "total": _shown("total_ms", "{:.0f}"),
    "accept": _shown("acceptance", "{:.0%}"),
    "seen": _shown("acceptance_vision", "{:.0%}"),
}


def _table(columns: Columns, methods: Mapping[str, Figures], n: int, width: int) -> list[str]:
    """One line a method, two where its name is too long to stand beside its figures; columns without any figure are left
    out."""
    cells = {head: {name: make(own, n) for name, own in methods.items()} for head, make in columns.items()}
    cells = {head: own for head, own in cells.items() if any(cell != "-" for cell in own.values())}
    widths = {head: max(len(head), *map(len, own.values())) for head, own in cells.items()}
    taken = sum(GAP + wide for wide in widths.values())
    first = max([len("method"), *(len(name) for name in methods if len(name) + taken <= width)])

    def line(name: str, row: Iterable[str]) -> list[str]:
        figures = "".join(" " * GAP + cell.rjust(wide) for cell, wide in zip(row, widths.values(), strict=True))
        return [name.ljust(first) + figures] if len(name) <= first else [name, " " * first + figures]

    page = line("method", widths)
    for title, names in grouped(methods):
        page += ["", title] if title else []
        page += [part for name in names for part in line(name, [own[name] for own in cells.values()])]
    return [part.rstrip() for part in page]
