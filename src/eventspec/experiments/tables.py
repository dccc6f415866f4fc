"""Sentences, tables and marked blocks of Markdown pages: a block stands between two comments, only the report writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from eventspec.errors import BadInput

COMMAND = "eventspec bench report"
Item = Mapping[str, Any]


class _Filling(Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Item) -> Any:
        name, plus, ends = field_name.partition("+")
        value, first = super().get_field(name, args, kwargs)
        if plus:
            value = [value, *(super().get_field(ends, args, kwargs)[0] or (None, None))]
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        return spread(value if isinstance(value, list) else [value, None, None], format_spec)


def filled(form: str, item: Item) -> str:
    """A form with an item's values, as `str.format` fills it: None gives a dash, a list [value, low, high] a value and its
    interval. `{tau+tau_ci95:.2f}` is a value with the interval [low, high] that another name has, which may be None."""
    return _Filling().vformat(form, (), item)


def spread(found: Sequence[Any], form: str = ".2f") -> str:
    """A value [value, low, high] and its interval, in a number format; without an interval where there is none."""
    value, low, high = found
    if value is None:
        return "-"
    return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; intervals, `(0.9 to 1.1)`, are not broken over lines."""
    cells = [[re.sub(r"\((\S+) to (\S+)\)", "(\\1\u00a0to\u00a0\\2)", str(cell)) for cell in row] for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in cells)])


def table_of(items: Iterable[Item], columns: Mapping[str, str]) -> str:
    """A table with one row an item: `columns` gives the form that is filled below each head."""
    return table(list(columns), [[filled(form, item) for form in columns.values()] for item in items])


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
