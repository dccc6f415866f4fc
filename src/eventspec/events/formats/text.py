"""Events as text: one line each, columns by commas, semicolons, tabs or spaces, with or without a header.

A header names the columns in any order, with a unit where it has one (``t_us``, ``time [s]``); other columns are passed
over. Without a header the order is t x y p, unless the first lines can only be of another one of `columns.ORDERS`. A first line
of two whole numbers is the sensor's size, and so is a comment such as ``# sensor 640x480``, ``%geometry:640,480`` or
``# width 640``. Messages number the lines of the file from 1 on, headers and comments included.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from eventspec.core import BadInput
from eventspec.errors import several
from eventspec.events.formats.columns import ORDERS, Unit, column_of, order_of, places_in, unit_of
from eventspec.events.formats.family import HEAD_BYTES, EventFile, Format, SensorSize, settled_size
from eventspec.events.formats.sequential import Decode, Sequential, Step, event_file, opened
from eventspec.events.stored import Columns
from eventspec.events.stream import Array, EventStream, Named, Policy

NAME = "text"
BLOCK_BYTES = 1 << 21
MOST_COMMENTS = 1 << 20  # bytes of them that are read to find the first event
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|True|False|true|false")
NO_NUMBER = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)  # what programs write for a number that is missing
GAPS = re.compile(r"[,;\t]\s*|(?<=[\w\])])\s+(?=[a-z])")
SIZE = re.compile(
    rb"(?i)[a-z _-]*(?:sensor|geometry|resolution|size)[\s:=\[(]*(\d{1,5})\s*[x,;\s]\s*(\d{1,5})[\s\])]*(?:px|pixels)?"
)
SIDES = re.compile(rb"(?i)(?<![a-z])(width|height)[\s:=]*(\d{1,5})(?!\d)")
MARK = b"\xef\xbb\xbf"  # of UTF-8, as spreadsheets write it
COMMENT = re.compile(rb"[ \t]*([#%]|\r?\n)")
COMMENTS = re.compile(rb"(?m)^[ \t]*[#%].*\n?")


class Layout(NamedTuple):
    """separator: of the columns, None for white space; order: places of t, x, y, p in a line; unit: of times; start: byte of
    the first event; size: of the sensor, if stated; header: whether one named the columns; likely: where none did, the order
    that the first lines speak for, "" for none; twice: a name of a column that has another one before it, "" for none."""

    separator: bytes | None
    order: tuple[int, int, int, int]
    unit: Unit
    start: int
    size: SensorSize | None
    header: bool
    likely: str
    twice: str = ""


def matches(path: Path, head: bytes) -> bool:
    return layout(*_beginning(path)) is not None


def _beginning(path: Path) -> tuple[bytes, bool]:
    """The comments that a file begins with, at most `MOST_COMMENTS` bytes, and `HEAD_BYTES` after them; is that all of it?"""
    with path.open("rb") as file:
        found = line = file.readline(MOST_COMMENTS)
        while line and len(found) < MOST_COMMENTS and COMMENT.match(line.removeprefix(MARK)):
            line = file.readline(MOST_COMMENTS)
            found += line
        found += file.read(HEAD_BYTES)
        return found, not file.read(1)


def layout(head: bytes, whole: bool) -> Layout | None:
    """How the columns lie, from the file's first bytes, or from the `whole` file; None when it is no text of events."""
    if b"\0" in head:
        return None
    start, size, names, scale, twice = len(MARK) if head.startswith(MARK) else 0, None, None, 0.0, ""
    sides: dict[bytes, int] = {}
    for line in head[start:].splitlines(keepends=True):
        words = line.strip().lstrip(b"#%").strip()
        if size is None and COMMENT.match(line):
            sides.update((side.lower(), int(pixels)) for side, pixels in SIDES.findall(words))
            stated = SIZE.fullmatch(words)
            both = (int(stated[1]), int(stated[2])) if stated else (sides.get(b"width", 0), sides.get(b"height", 0))
            size = both if all(both) else None
        ends = line.endswith(b"\n") or (whole and start + len(line) == len(head))  # the last line may be cut by `head`
        if words and names is None and (found := _header(words)):
            names, scale, twice = found
        elif words and not line.lstrip().startswith((b"#", b"%")):
            separator = next((sign for sign in (b",", b";") if sign in words), None)
            cells = words.split(separator)
            # After a header that names t, x, y and p any line is one of them, and `read` says which one is wrong.
            if not ends or not (
                names or all(NUMBER.fullmatch(cell.strip()) or NO_NUMBER.fullmatch(cell.strip()) for cell in cells)
            ):
                return None
            if len(cells) == 2 and size is None and all(cell.strip().isdigit() for cell in cells):
                size = int(cells[0]), int(cells[1])
            elif len(cells) == 4 or names is not None:
                rows = _cells(head[start:], separator)
                likely, certain = ("", False) if names else order_of(_numbers(rows))
                order = names or places_in(likely if certain else ORDERS[0])
                unit = _unit(rows, order[0], scale)
                return Layout(separator, order, unit, start, size, names is not None, likely, twice)
            else:
                return None
        start += len(line)
    # Nothing after a header: text of no events.
    none = Unit(scale or 1.0, "there is no line of events")
    return Layout(b",", names, none, start, size, True, "") if names and whole else None


def _header(line: bytes) -> tuple[tuple[int, int, int, int], float, str] | None:
    """Places of t, x, y and p, us in one unit of time (0 when not stated), and a name whose column another one was before; None
    when the line does not name them all."""
    places: dict[str, int] = {}
    scale, twice = 0.0, ""
    for place, cell in enumerate(GAPS.split(line.decode("utf-8", errors="replace").lower())):
        column = column_of(cell)
        if column is not None and column[0] not in places:
            places[column[0]] = place
            scale = column[1] or scale
        elif column is not None:
            twice = cell
    if len(places) < 4:
        return None
    return (places["t"], places["x"], places["y"], places["p"]), scale, twice


def _cells(lines: bytes, separator: bytes | None) -> list[list[bytes]]:
    """The cells of these lines; the last line may be cut, and is left out where it is not the only one."""
    rows = (line.split(separator) for line in lines.splitlines()[:-1] or [lines])
    return [[cell.strip() for cell in row] for row in rows]


def _numbers(rows: list[list[bytes]]) -> Array:
    """Those rows that are four numbers, float64 [N, 4]."""
    whole = [row for row in rows if len(row) == 4 and all(NUMBER.fullmatch(cell) for cell in row)]
    numbers = [[float(cell) if not cell.isalpha() else float(cell.lower() == b"true") for cell in row] for row in whole]
    return np.array(numbers, np.float64).reshape(-1, 4)


def _unit(rows: list[list[bytes]], place: int, stated: float) -> Unit:
    """The unit of the times in these rows: as the header states it (us), else by how they are written."""
    words = [row[place] for row in rows if len(row) > place]
    times = np.array([float(word) for word in words if NUMBER.fullmatch(word) and not word.isalpha()])
    written = (word.partition(b".")[2] for word in words)  # a float that is whole is written with one digit, as in "5.0"
    return unit_of(times, stated, any(len(digits) > 1 and digits.isdigit() for digits in written))


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """The file; a last line that is cut is left out, and notes say so and which order and unit were assumed."""
    found = layout(*_beginning(path))
    if found is None:  # `matches` saw another file
        raise BadInput(f"{path}: holds no lines of t, x, y and p any more: was it changed meanwhile?")
    why = "there is no header" if found.order == places_in(ORDERS[0]) else "there is no header, and no other order fits"
    taken = " ".join(sorted("txyp", key=lambda name: found.order["txyp".index(name)]))
    notes = [] if found.header else [f"the columns are taken for {taken}: {why}"]
    notes += [f"the column {found.twice} is not read: another one before it has such a name"] if found.twice else []
    notes.append(found.unit.note)
    size = settled_size(found.size, sensor_size, str(path))
    decode = decoder(path, found, path.stat().st_size, policy.monotonic == "raise")
    source = Sequential(path, size, policy, decode, found.start, path.stat().st_size, 0, _named(path, found.start))
    try:
        return event_file(
            NAME,
            source,
            notes,
            lambda cut: [f"the last line is cut: {several(cut, 'byte')} lost"] if cut else [],
        )
    except BadInput as error:
        if found.header:
            raise
        likely = f", and look like {' '.join(found.likely)}" if found.likely and places_in(found.likely) != found.order else ""
        order = ",".join(found.likely or ORDERS[0])
        raise BadInput(f"{error}; {notes[0]}{likely}: if they are others, name them in a first line such as {order}") from None


def write(path: Path, stream: EventStream) -> None:
    """Write ``t_us,x,y,p`` a line under a header, after a comment with the sensor's size; the caller renames the path."""
    with path.open("wb") as file:
        file.write(f"# sensor {stream.width}x{stream.height}\nt_us,x,y,p\n".encode())
        for block in stream.blocks():
            rows = zip(block.t.tolist(), block.x.tolist(), block.y.tolist(), block.p.tolist(), strict=True)
            file.write("".join(f"{t},{x},{y},{p}\n" for t, x, y, p in rows).encode())


def decoder(path: Path, found: Layout, end: int, ordered: bool = False) -> Decode[int]:
    """The decoder of one layout; its state is the length of a cut last line, 0 until there. Where times are to be `ordered`,
    a last one that falls lost its digits."""

    def decode(file: BinaryIO, position: int, _: int) -> Step[int]:
        file.seek(position)
        data = file.read(BLOCK_BYTES)
        lines = data[: data.rfind(b"\n") + 1] if position + len(data) < end else data
        if not lines:
            number = _lines_before(path, position) + 1
            raise BadInput(f"{path}: line {number} has more than {BLOCK_BYTES} bytes: this is no event text")
        cut = 0
        if position + len(lines) == end and not lines.endswith(b"\n"):
            last = lines[lines.rfind(b"\n") + 1 :]
            if not _is_event(last, found) or (ordered and _falls(lines, found)):
                cut, lines = len(last), lines[: len(lines) - len(last)]
        return Step(_columns(lines, position, path, found), position + len(lines) + cut, cut)

    return decode


def _falls(lines: bytes, found: Layout) -> bool:
    """Whether the event of the last line is earlier than that of the line before."""
    rows = [line.split(found.separator) for line in lines.splitlines()[-2:] if _is_event(line, found)]
    times = [row[found.order[0]].strip() for row in rows]
    return len(times) == 2 and not any(time.isalpha() for time in times) and float(times[1]) < float(times[0])


def _is_event(line: bytes, found: Layout) -> bool:
    cells = line.strip().split(found.separator)
    return len(cells) > max(found.order) and all(NUMBER.fullmatch(cells[place].strip()) for place in found.order)


def _columns(lines: bytes, position: int, path: Path, found: Layout) -> Columns:
    """The events of whole lines, their values unchecked. Times are rounded to the nearest microsecond."""
    raw = lines
    for word, digit in ((b"True", b"1"), (b"False", b"0"), (b"true", b"1"), (b"false", b"0")):
        lines = lines.replace(word, digit)
    if b"#" in lines or b"%" in lines:
        lines = COMMENTS.sub(b"", lines)
    if not lines.strip():
        return Columns(*(np.empty(0, np.int64) for _ in range(4)))
    separator = found.separator.decode() if found.separator else None
    try:
        table = np.loadtxt(io.BytesIO(lines), np.float64, None, separator, usecols=found.order, ndmin=2, encoding="latin-1")
    except (ValueError, IndexError):
        number = _lines_before(path, position) + 1
        wrong = ((place, text) for place, text in _event_lines(raw.split(b"\n")) if not _is_event(text, found))
        place, text = next(wrong, (0, lines[:80]))
        raise BadInput(f"{path}: line {number + place} is no event ({_shown(text)}): mend or remove it") from None
    t, x, y, p = table.T
    return Columns(x, y, _times(t, lines, found), p)


def _times(numbers: Array, lines: bytes, found: Layout) -> Array:
    """The times [E] of the lines in microseconds; their digits are read where the `numbers`, float64, leave open which one."""
    times: Array = found.unit.microseconds(numbers)
    unsure = np.flatnonzero(found.unit.unsure(numbers))
    if not len(unsure) or not ((np.abs(times) < 2.0**63) & (times == np.rint(times))).all():  # `EventStream` says what is wrong
        return times
    times, rows = times.astype(np.int64), [line for line in lines.split(b"\n") if line.strip()]
    for place in unsure:
        times[place] = found.unit.written(rows[place].split(found.separator)[found.order[0]].decode())
    return times


def _event_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that should hold an event, with their place among all of them from 0 on: no empty ones, no comments."""
    for place, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith((b"#", b"%")):
            yield place, line


def _lines_before(path: Path, position: int) -> int:
    with opened(path) as file:
        return sum(file.read(min(BLOCK_BYTES, position - at)).count(b"\n") for at in range(0, position, BLOCK_BYTES))


def _named(path: Path, start: int) -> Named:
    """A value of the file in words; events are counted from byte `start` on."""

    def named(name: str, index: int) -> str:
        with opened(path) as file:
            file.seek(start)
            place, _ = next(islice(_event_lines(file), index, None), (0, b""))
        return f"{name} in line {_lines_before(path, start) + 1 + place}"

    return named


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


FORMAT = Format(NAME, "text with t x y p", matches, read)
