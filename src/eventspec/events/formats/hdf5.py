"""What the HDF5 families share: safe opening, checked datasets, reading rows by time, and writing columns.

A dataset may claim anything: it must lie in the file itself, in chunks no larger than the file's size warrants, and unpack to
no more than deflate could have packed. Rows are read block by block, and a window is found by its times.
"""

from __future__ import annotations

import importlib
import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.formats.columns import LOOKED_AT, TIME_UNIT_NAMES, UNIT_NAMES, Unit, unit_in, unit_of
from eventspec.events.formats.family import SIZE_NAMES, EventFile, SensorSize, file_of, size_in
from eventspec.events.stored import Columns, Source, StoredStream, hull, is_short
from eventspec.events.stream import BLOCK, STRICT, EventStream, Policy

MAGIC = b"\x89HDF\r\n\x1a\n"
CHUNK = 1 << 16  # events a chunk
# Deflate cannot shrink data more than 1032:1, so a dataset that claims more than this is not an honest one.
LARGEST_RATIO = 1100
UNDEFINED = (1 << 64) - 1  # an address that points nowhere
LARGEST_CHUNK = 1 << 24  # bytes; more only in a file that is larger itself
LARGEST_SIZE_BYTES = 64  # of a dataset that holds the sensor's width, height, or both
# Filters that h5py lacks and hdf5plugin brings.
ECF = 36559
PLUGIN_FILTERS = {32001: "Blosc", 32004: "LZ4", 32008: "Bitshuffle", 32015: "Zstandard", 32026: "Blosc2"}


class EcfMissing(BadInput):
    """Prophesee's filter is not there."""


@contextmanager
def opened_h5(path: Path) -> Iterator[Any]:
    """The h5py file, open for reading; h5py's errors on damage become one BadInput."""
    import h5py

    try:
        _check_start(path)
        with h5py.File(path, "r", rdcc_nbytes=1 << 23) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: the HDF5 file is damaged or cut short ({reason}): copy or write it again") from None


def _check_start(path: Path) -> None:
    """OSError for a superblock that no single file has: the library would follow it into gigabytes (found by fuzzing)."""
    with path.open("rb") as file:
        start = file.read(96)
    if not start.startswith(MAGIC) or len(start) < 48:
        raise OSError("the superblock is incomplete")
    version = start[8]
    if version > 3 or start[13 if version < 2 else 9] != 8:
        raise OSError(f"superblock version {version} or its width of addresses is unknown")
    first = {0: 24, 1: 28}.get(version, 12)
    base, _, end, driver = (int.from_bytes(start[first + 8 * place : first + 8 * place + 8], "little") for place in range(4))
    if base or end > path.stat().st_size:
        raise OSError(f"it should have {end} bytes, and has {path.stat().st_size}")
    if version < 2 and driver != UNDEFINED:
        raise OSError("the superblock asks for a driver of several files")


def holds(path: Path, names: tuple[str, ...]) -> bool | None:
    """Whether the file has all these datasets; None when it is HDF5 but cannot be opened."""
    try:
        with opened_h5(path) as file:
            return all(name in file for name in names)
    except BadInput:
        return None


def dataset(file: Any, name: str, path: Path, axes: int = 1, fields: tuple[str, ...] = (), kinds: str = "biuf") -> Any:
    """The h5py dataset `name` with that many axes, of numbers of these `kinds` of dtype, or of records with these `fields` of
    whole numbers among theirs; BadInput when it points elsewhere or claims too much."""
    import h5py

    place = file
    for part in name.split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        place = place[part] if isinstance(link, h5py.HardLink) else None
    if not isinstance(place, h5py.Dataset) or place.external or place.is_virtual:
        raise BadInput(f"{path}: {name} is not a dataset stored in the file itself: write every column as a plain dataset")
    if fields:
        known = place.dtype.names or ()
        fits = all(field in known and place.dtype[field].kind in "iu" for field in fields)
    else:
        fits = place.dtype.kind in kinds
    if not fits or place.ndim != axes:
        wanted = f"records with whole numbers {', '.join(fields)}" if fields else "numbers" if "f" in kinds else "whole numbers"
        raise BadInput(f"{path}: {name} is {place.dtype} of shape {place.shape}: it must be {axes}-dimensional {wanted}")
    size, stored = path.stat().st_size, place.id.get_storage_size()
    if place.nbytes > LARGEST_RATIO * size + CHUNK * 8:
        raise BadInput(f"{path}: {name} claims {place.nbytes} bytes but stores {stored}: write it again")
    if place.chunks is not None and np.prod(place.chunks, dtype=float) * place.dtype.itemsize > max(LARGEST_CHUNK, size):
        raise BadInput(f"{path}: {name} is stored in chunks of {place.chunks}: write it again in chunks of {CHUNK} events")
    _need_filters(place, name, path)
    return place


def stated_size(
    file: Any, groups: tuple[str, ...], asked: SensorSize | None, path: Path, notes: list[str]
) -> SensorSize | None:
    """The sensor size that the root or one of these groups states, as attributes or as small datasets, under `SIZE_NAMES`.
    BadInput where two places contradict each other, unless one of them is what was asked for."""
    import h5py

    sizes: dict[SensorSize, str] = {}
    for group in (file, *(file[name] for name in groups if name in file)):
        entries = {name: group.attrs[name] for name in group.attrs if name.lower() in SIZE_NAMES}
        for name in group if isinstance(group, h5py.Group) else ():
            known = name.lower() in SIZE_NAMES and isinstance(group.get(name, getlink=True), h5py.HardLink)
            place = group[name] if known else None
            if isinstance(place, h5py.Dataset) and not place.external and not place.is_virtual:
                entries.update({name: place[()]} if place.nbytes <= LARGEST_SIZE_BYTES else {})
        size = size_in(entries, str(path), notes)
        if size is not None:
            sizes.setdefault(size, group.name)
    if asked in sizes:
        return asked
    if len(sizes) > 1:
        both = " and ".join(f"{width}x{height} (in {where})" for (width, height), where in sizes.items())
        raise BadInput(f"{path}: states its sensor size as {both}: say which it is by sensor_size")
    return next(iter(sizes), None)


def _need_filters(place: Any, name: str, path: Path) -> None:
    import h5py

    plan = place.id.get_create_plist()
    for code in (plan.get_filter(step)[0] for step in range(plan.get_nfilters())):
        if h5py.h5z.filter_avail(code):
            continue
        with suppress(ImportError):
            importlib.import_module("hdf5plugin")  # registers its filters
        if not h5py.h5z.filter_avail(code):
            if code == ECF:
                raise EcfMissing(
                    f"{path}: {name} is compressed with Prophesee's ECF (filter {ECF}): pip install 'eventspec[ecf]', or set "
                    "HDF5_PLUGIN_PATH to the folder of libhdf5_ecf_plugin.so (Metavision SDK, OpenEB)"
                )
            words = f"{PLUGIN_FILTERS.get(code, 'a filter')} (filter {code})"
            raise BadInput(f"{path}: {name} is compressed with {words}: install hdf5plugin (pip install 'eventspec[dsec]')")


# ------------------------------------------------------------------------------------------------------------------- reading
@dataclass(frozen=True)
class Table:
    """The events of an open file, unchecked: `count` of them; ``rows(first, last)`` gives some, ``time(place)`` one time, as
    they stand there.

    ``near(time)``, where the file has an index: the places between which it says that the first event at or after a time is.
    ``unit``: microseconds in one unit of time, where the file says so (else 0).
    """

    count: int
    rows: Callable[[int, int], Columns]
    time: Callable[[int], int]
    near: Callable[[int], tuple[int, int]] | None = None
    unit: float = 0.0

    def of(self, unit: Unit) -> Table:
        """The same with times in microseconds; an index of milliseconds is left out, as nothing says of which clock it is."""
        if unit.scale == 1.0:
            return self

        def rows(first: int, last: int) -> Columns:
            columns = self.rows(first, last)
            return columns._replace(t=unit.microseconds(columns.t))

        return Table(self.count, rows, lambda place: int(unit.microseconds(np.asarray(self.time(place)))))

    def place(self, time_us: int) -> int:
        """The first event at or after a time. What the index says is only believed when the times there agree."""
        low, high = (0, self.count) if self.near is None else self.near(time_us)
        starts_before = low == 0 or self.time(low - 1) < time_us
        ends_after = high == self.count or self.time(high) >= time_us
        if not (starts_before and ends_after):
            low, high = 0, self.count
        return bisect_left(range(self.count), time_us, low, high, key=self.time)


def column_table(columns: Mapping[str, Any], path: Path, offset_us: int = 0, index: Any = None) -> Table:
    """The table of one dataset for each of x, y, t and p; `offset_us` is added to t, and `index` is DSEC's ms_to_idx."""
    x, y, t, p = (columns[name] for name in "xytp")
    if any(len(column) != len(t) for column in columns.values()):
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise BadInput(f"{path}: the columns differ in length ({lengths}): every event needs x, y, t and p")
    if offset_us and t.dtype.kind not in "iu":
        raise BadInput(f"{path}: t holds {t.dtype}: beside a t_offset it must be whole microseconds")

    def times(places: slice | int) -> Any:
        return np.add(t[places], np.int64(offset_us), dtype=np.int64) if offset_us else t[places]

    def rows(first: int, last: int) -> Columns:
        places = slice(first, last)
        return Columns(x[places], y[places], times(places), p[places])

    def near(time_us: int) -> tuple[int, int]:
        millisecond = (time_us - offset_us) // 1000
        if index is None or not 0 <= millisecond < len(index):
            return 0, len(t)
        low, high = [*map(int, index[millisecond : millisecond + 2]), len(t)][:2]
        return (low, high) if 0 <= low <= high <= len(t) else (0, len(t))

    return Table(len(t), rows, times, near, _unit_on(t, str(path)))


def _unit_on(column: Any, source: str) -> float:
    """Microseconds in the unit of times that an attribute of their dataset, of its group or the root names; 0 without one."""
    for place, names in ((column, UNIT_NAMES), (column.parent, TIME_UNIT_NAMES), (column.file, TIME_UNIT_NAMES)):
        stated: dict[str, Any] = {}
        for name in (name for name in place.attrs if name.lower() in names):
            with suppress(OSError, TypeError, ValueError):  # an attribute may be damaged, or of a type that numpy lacks
                stated[name] = place.attrs[name]
        if unit := unit_in(stated, source):
            return unit
    return 0.0


def stated_offset(file: Any, groups: Iterable[str], path: Path) -> int | None:
    """``t_offset``, a dataset or an attribute of the root or of one of these groups; None without one."""
    for group in (file, *(file[name] for name in groups)):
        if "t_offset" in group:
            return int(dataset(group, "t_offset", path, 0, kinds="iu")[()])
        if "t_offset" in group.attrs:
            value = np.ravel(group.attrs["t_offset"])
            if len(value) != 1 or value.dtype.kind not in "iu":
                raise BadInput(f"{path}: t_offset is {group.attrs['t_offset']!r}: it must be whole microseconds")
            return int(value[0])
    return None


class H5Source(Source):
    """The table of `count` events that ``table(file)`` finds in an open file."""

    def __init__(self, path: Path, size: SensorSize, policy: Policy, table: Callable[[Any], Table], count: int) -> None:
        super().__init__(path, size, policy)
        self._table, self._count = table, count

    def count(self) -> int:
        return self._count - self.outside

    def span(self) -> Window | None:
        if not self._count:
            return None
        if self.policy == STRICT:
            with opened_h5(self._path) as file:
                table = self._table(file)
                first, last = int(table.time(0)), int(table.time(self._count - 1))
            if first < 0 or last < first:
                raise BadInput(f'{self._path}: t goes from {first} to {last}: sort the file, or read it with monotonic="clamp"')
            return Window(first, last + 1)
        return self._hull

    @cached_property
    def _hull(self) -> Window | None:
        return hull(block.span for block in self.blocks())

    def _read(self, window: Window | None) -> Iterator[EventStream]:
        """Where times must not go back, a window is found by search, and nothing else is read. Times of events that are dropped
        may be anything."""
        with opened_h5(self._path) as file:
            table = self._table(file)
            first, last = 0, self._count
            if window is not None and self.policy == STRICT:
                first, last = (table.place(time) for time in (window.start_us, window.end_us))
            latest = 0
            for start in range(first, last, BLOCK):
                block = self._checked(table.rows(start, min(start + BLOCK, last)), start, latest, whole=window is None)
                latest = latest if block.span is None else max(latest, block.span.end_us - 1)
                yield block


def h5_file(
    name: str,
    path: Path,
    file: Any,
    table: Callable[[Any], Table],
    size: SensorSize,
    policy: Policy,
    notes: Iterable[str] = (),
) -> EventFile:
    """The open file as a whole: in memory when it is short, and else read from its path later."""
    found = table(file)
    unit = unit_of(found.rows(0, min(found.count, LOOKED_AT)).t, found.unit)
    notes = notes if unit.scale == 1.0 else (*notes, unit.note)
    source = H5Source(path, size, policy, lambda opened: table(opened).of(unit), found.count)
    short = is_short(found.count, path.stat().st_size)
    stream = EventStream.joined(source.blocks(), *size) if short else StoredStream(source)
    return file_of(name, source, stream, notes)


# ------------------------------------------------------------------------------------------------------------------- writing
class _Kept(io.FileIO):
    """A file that keeps its first error for later: HDF5 crashes the process where its last blocks cannot be written."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        while view and self.error is None:
            try:
                view = view[super().write(view) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return 0


@contextmanager
def written_h5(path: Path) -> Iterator[Any]:
    """A new h5py file, and OSError at the end where the disk had no room for it."""
    import h5py

    with _Kept(path, "w+") as raw:
        try:
            with h5py.File(raw, "w", track_order=False) as file:
                yield file
        finally:
            if raw.error is not None:
                raise raw.error


def write_columns(place: Any, stream: EventStream, dtypes: Mapping[str, str], offset_us: int, **packing: Any) -> None:
    """Append the stream's columns to new datasets of an h5py file or group, block by block.

    `dtypes`: "x", "y", "t", "p" -> dtype; `offset_us` is subtracted from t; `packing`: arguments of create_dataset.
    """
    # Without creation times, which would make every file different.
    columns = {
        name: place.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNK,), track_times=False, **packing)
        for name, dtype in dtypes.items()
    }
    columns["t"].attrs["unit"] = "us"
    count = 0
    for block in stream.blocks():
        for name, column in columns.items():
            column.resize((count + len(block),))
            column[count:] = block.t - offset_us if name == "t" else getattr(block, name)
        count += len(block)
