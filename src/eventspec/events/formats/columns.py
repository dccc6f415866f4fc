"""How columns of events are called, in which order they stand without names, and in which unit their times are: one rule for
every file and for arrays.

A unit that stands behind the time's name (``t_ns``, ``time [s]``) counts. Else times with fractions are seconds, and whole ones
microseconds, or nanoseconds where they are too large for any clock in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import BadInput
from eventspec.events.stream import LARGEST_SIDE, Array

NAMES = {
    "t": ("t", "ts", "time", "times", "timestamp", "timestamps"),
    "x": ("x", "xs", "x_pos", "col", "column"),
    "y": ("y", "ys", "y_pos", "row"),
    "p": ("p", "ps", "pol", "polarity", "polarities", "on"),
}
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e6),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e3),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), 1.0),  # with both characters of Unicode
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-3),
}
UNIT_WORDS = {1e6: "seconds", 1e3: "milliseconds", 1.0: "microseconds", 1e-3: "nanoseconds"}
TIME_UNIT_NAMES = ("t_unit", "t_units", "time_unit", "time_units", "timestamp_unit")
UNIT_NAMES = (*TIME_UNIT_NAMES, "unit", "units")
"""Under which a file states the unit of its times; the last two only where they can be of nothing else."""
HEADER = re.compile(rf"([a-z_]+?)(?:(?:[ _]+|\s*[\[(])({'|'.join(UNITS)})[\])]?)?")
NANOSECONDS_FROM = 1e17  # as microseconds this would be the year 5138
LOOKED_AT = 1 << 12  # times at the beginning that tell the unit


class Unit(NamedTuple):
    """scale: microseconds in one unit of time; why it is taken for that."""

    scale: float
    why: str

    @property
    def note(self) -> str:
        return f"times are taken for {UNIT_WORDS[self.scale]}: {self.why}"

    def microseconds(self, times: Any) -> Any:
        """Times [E] of this unit in microseconds, rounded to the nearest; those in microseconds as they stand."""
        if self.scale == 1.0:
            return times
        if self.scale < 1.0 and times.dtype.kind in "iu":  # without the digits that a float64 lacks
            return times // 1000 + times % 1000 // 500
        return np.rint(self._near(times))

    def unsure(self, times: Array) -> Array:
        """Which of these float64 times may round to another microsecond than the digits that they were read from."""
        with np.errstate(invalid="ignore"):
            near = self._near(times)
            error = (np.spacing(times) * self.scale + np.spacing(near)) / 2
            found: Array = np.abs(near - np.floor(near) - 0.5) <= error
        return found

    def written(self, number: str) -> int:
        """A time of this unit as it is written, in microseconds. ValueError for what is no finite number."""
        try:
            return int((Decimal(number) * Decimal(str(self.scale))).to_integral_value(ROUND_HALF_UP))
        except (ArithmeticError, ValueError):
            raise ValueError(f"{number!r} is no number") from None

    def _near(self, times: Any) -> Any:
        with np.errstate(over="ignore"):  # infinite times are refused with the others
            times = np.asarray(times, np.float64)
            return times * self.scale if self.scale > 1.0 else times / round(1 / self.scale)


STATED = "the file says so"
MICROSECONDS = Unit(1.0, "they are whole numbers")


def column_of(name: str) -> tuple[str, float] | None:
    """Which of the columns x, y, t, p a name is that of, and us in one unit where it states one (else 0)."""
    match = HEADER.fullmatch(name.strip().strip("\"'").lower())
    column = next((key for key, names in NAMES.items() if match is not None and match[1] in names), None)
    if match is None or column is None:
        return None
    return column, UNITS[match[2]] if match[2] and column == "t" else 0.0


def unit_named(stated: Any, source: str) -> float:
    """Microseconds in the unit that an attribute or an entry of `source` names: text or bytes, alone or in an array; 0 for an
    empty one. BadInput for a unit that is not known."""
    values = np.asarray(stated).ravel().tolist()
    name = values[0] if len(values) == 1 else values
    words = str(name.decode("utf-8", "replace") if isinstance(name, bytes) else name).lower().split()
    if not words:
        return 0.0
    if words[0] not in UNITS:  # "seconds since the start" is one
        raise BadInput(f"{source}: the unit of its times is {' '.join(words)[:40]!r}: write s, ms, us or ns")
    return UNITS[words[0]]


def unit_in(entries: Mapping[str, Any], source: str, names: Iterable[str] = UNIT_NAMES) -> float:
    """Microseconds in the unit that one of these entries states, in either case; 0 without one."""
    stated = {str(name).lower(): name for name in entries}
    return next((unit for name in names if name in stated and (unit := unit_named(entries[stated[name]], source))), 0.0)


def time_name(entries: Mapping[str, Any], name: str, source: str) -> str:
    """How the times of that name are called with their unit, where one of these entries states it."""
    unit = unit_in(entries, source)
    return f"t_{UNIT_WORDS[unit]}" if unit else name


def names_of(names: Iterable[Any]) -> dict[str, list[str]]:
    """For each of x, y, t and p those of these names that call it so."""
    called = [(str(name), column_of(str(name))) for name in names]
    return {key: [name for name, column in called if column is not None and column[0] == key] for key in "xytp"}


def unit_of(times: Any, stated: float = 0.0, fractions: bool = False) -> Unit:
    """The unit of times [E]: as stated (us in one unit), else by how they look. `fractions`: whether they were written with
    digits after the point though they may be whole. What is no column of numbers is left to the checks of `EventStream`."""
    if stated:
        return Unit(stated, STATED)
    times = np.asarray(times)
    if times.ndim != 1 or times.dtype.kind not in "iuf":
        return MICROSECONDS
    times = times[:LOOKED_AT].astype(np.float64 if times.dtype.kind == "f" else times.dtype)
    times = times[np.isfinite(times)]
    if fractions or (times.dtype.kind == "f" and (times != np.floor(times)).any()):
        return Unit(1e6, "they have fractions")
    # By the median: one damaged time among them says nothing.
    if len(times) and np.median(times) >= NANOSECONDS_FROM:
        return Unit(1e-3, "they are whole numbers, too large for microseconds")
    return MICROSECONDS


def in_microseconds(times: Any, name: str = "t") -> tuple[Any, tuple[str, ...]]:
    """A column of times of this name, in microseconds; and a note, where they were in another unit."""
    column = column_of(name)
    unit = unit_of(times, column[1] if column is not None else 0.0)
    return unit.microseconds(np.asarray(times)), () if unit.scale == 1.0 else (unit.note,)


# ------------------------------------------------------------------------------------------- four columns without their names
ORDERS = ("txyp", "xytp", "xypt")
"""The orders in which programs write events: DSEC's and RPG's tools, those of arrays, Metavision's CSV."""
LEAST_ROWS = 8  # fewer may rise by chance


def order_of(rows: Array) -> tuple[str, bool]:
    """The one of `ORDERS` that rows [N, 4] of numbers have by their values, and whether that is certain: no other order fits
    them, or times go back in every other one. "" where nothing speaks for one of them."""
    fitting = [order for order in ORDERS if _fits(rows, order)]
    back: Array = np.any(rows[1:] < rows[:-1], axis=0)
    rising = [order for order in fitting if not back[order.index("t")]]
    if len(fitting) == 1:
        return fitting[0], True
    return (rising[0], len(rows) >= LEAST_ROWS) if len(rising) == 1 else ("", False)


def places_in(order: str) -> tuple[int, int, int, int]:
    """The places of t, x, y and p in an order such as "xypt"."""
    return order.index("t"), order.index("x"), order.index("y"), order.index("p")


def _fits(rows: Array, order: str) -> bool:
    t, x, y, p = (rows[:, order.index(name)] for name in "txyp")
    sides = np.stack([x, y])
    on_sensor = (sides >= 0) & (sides < LARGEST_SIDE) & (sides == np.floor(sides))
    signed = bool((p < 0).any())
    return bool(on_sensor.all() and (t >= 0).all() and ((p == 1) | (p == (-1 if signed else 0))).all())
