"""Tables and marked blocks of Markdown pages: a block stands between two comments, and the report alone writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eventspec.errors import BadInput

COMMAND = "eventspec bench report"
Item = Mapping[str, Any]
Column = str | Callable[[Item], object]
"""A format string of an item's values, or a function of the item."""


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; intervals, `(0.9 to 1.1)`, are not broken over lines."""
    cells = [[re.sub(r"\((\S+) to (\S+)\)", "(\\1\u00a0to\u00a0\\2)", str(cell)) for cell in row] for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in cells)])


def table_of(items: Iterable[Item], columns: Mapping[str, Column]) -> str:
    """A table with one row an item: `columns` gives what stands below each head."""
    filled = [[cell.format(**item) if isinstance(cell, str) else cell(item) for cell in columns.values()] for item in items]
    return table(list(columns), filled)


def spread(found: Sequence[float | None], form: str = ".2f") -> str:
    """A value [value, low, high] and its interval, in a number format; without an interval where there is none."""
    value, low, high = found
    if value is None:
        return "-"
    return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"


def figure(found: Item, name: str, form: str = ".2f", interval: str = "") -> str:
    """One of an arm's figures and its interval, which has the name `interval`, usually NAME_ci95, and may be missing."""
    return spread([found[name], *(found[interval or f"{name}_ci95"] or (None, None))], form)


def figures(name: str, form: str = ".2f") -> Callable[[Item], str]:
    """A column of `figure`."""
    return lambda item: figure(item, name, form)


def shown(value: float | None, form: str = ".0%", unit: str = "") -> str:
    """A value in a number format with its unit, or a dash."""
    return "-" if value is None else f"{value:{form}}{unit}"


def known(name: str, form: str = ".0%") -> Callable[[Item], str]:
    """A column of `shown`."""
    return lambda item: shown(item[name], form)


def named(found: Mapping[str, Item]) -> list[dict[str, Any]]:
    """The items of a table of figures, each with its name as `name`."""
    return [{"name": name, **own} for name, own in found.items()]


def with_blocks(page: Path, blocks: Mapping[str, str]) -> str:
    """The text of a page with each block, by name, between its markers. BadInput for a page without them."""
    text = page.read_text()
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: {COMMAND} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(f"{begin}\n")
        _, closed, after = rest.partition(f"\n{end}")
        if not found or not closed:
            raise BadInput(f"{page} has no place for the figures '{name}': put them between {begin} and {end}")
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text
