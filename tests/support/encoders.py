"""Tiny encoders of every event format, for tests: columns x, y, t, p [E] in order of time to a file's bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from eventspec.events.formats import EventFile

Numbers = Sequence[int] | np.ndarray[Any, np.dtype[Any]]
Events = list[tuple[int, int, int, int]]


def listed(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> Events:
    return [tuple(map(int, event)) for event in zip(x, y, t, p, strict=True)]  # type: ignore[misc]


def rows_of(events: Events) -> list[tuple[int, int, int, list[int]]]:
    """Neighbours that share time, row and polarity, and whose columns rise, as (t, y, p, columns)."""
    rows: list[tuple[int, int, int, list[int]]] = []
    for (t, y, p), group in groupby(events, lambda event: (event[2], event[1], event[3])):
        for x, *_ in group:
            if rows and rows[-1][:3] == (t, y, p) and x > rows[-1][3][-1]:
                rows[-1][3].append(x)
            else:
                rows.append((t, y, p, [x]))
    return rows


def ticks(last: int | None, time: int, step: int) -> list[int]:
    """Times at which a camera would have said TIME_HIGH between two events: it never lets half a turn pass."""
    return [time] if last is None else [*range(last + step, time, step), time]


# --------------------------------------------------------------------------------------------------------------- Prophesee
def evt2(x: Numbers, y: Numbers, t: Numbers, p: Numbers, head: bytes = b"% evt 2.0\n% geometry 640x480\n% end\n") -> bytes:
    words: list[int] = []
    last: int | None = None
    for column, row, time, on in listed(x, y, t, p):
        if last is None or time >> 6 != last >> 6:
            words += [8 << 28 | (tick >> 6) & 0xFFFFFFF for tick in ticks(last, time, 1 << 32)]
        last = time
        words.append(on << 28 | (time & 63) << 22 | column << 11 | row)
    return head + np.array(words, "<u4").tobytes()


def evt21(x: Numbers, y: Numbers, t: Numbers, p: Numbers, order: str = "legacy", size: str = "width=640;height=480") -> bytes:
    head = f"% evt 2.1\n% format EVT21;{size};endianness={order}\n% end\n".encode()
    words: list[tuple[int, int]] = []
    last: int | None = None
    for time, row, on, columns in rows_of(listed(x, y, t, p)):
        if last is None or time >> 6 != last >> 6:
            words += [(8 << 28 | (tick >> 6) & 0xFFFFFFF, 0) for tick in ticks(last, time, 1 << 32)]
        last = time
        while columns:
            base = columns[0]
            mask = sum(1 << (column - base) for column in columns if column < base + 32)
            columns = [column for column in columns if column >= base + 32]
            words.append((on << 28 | (time & 63) << 22 | base << 11 | row, mask))
    pairs = np.array(words, "<u4").reshape(-1, 2)
    return head + (pairs if order == "legacy" else pairs[:, ::-1]).tobytes()


def evt3(x: Numbers, y: Numbers, t: Numbers, p: Numbers, head: bytes = b"% format EVT3;height=480;width=640\n% end\n") -> bytes:
    words: list[int] = []
    last_row, last = -1, None
    for time, row, on, columns in rows_of(listed(x, y, t, p)):
        if last is None or time >> 12 != last >> 12:
            words += [0x8000 | (tick >> 12) & 0xFFF for tick in ticks(last, time, 1 << 22)]
        if last != time:
            words.append(0x6000 | time & 0xFFF)
        if row != last_row:
            words.append(row)
        last, last_row = time, row
        if len(columns) < 3:
            words += [0x2000 | on << 11 | column for column in columns]
            continue
        words.append(0x3000 | on << 11 | columns[0])
        for start in range(columns[0], columns[-1] + 1, 32):  # 12, 12 and 8 pixels
            for base, width, kind in ((start, 12, 4), (start + 12, 12, 4), (start + 24, 8, 5)):
                mask = sum(1 << (column - base) for column in columns if base <= column < base + width)
                words.append(kind << 12 | mask)
    return head + np.array(words, "<u2").tobytes()


def dat(x: Numbers, y: Numbers, t: Numbers, p: Numbers, version: int = 2, size: str = "% Width 640\n% Height 480\n") -> bytes:
    head = f"% Data file containing CD events\n% Version {version}\n{size}".encode() + bytes((0x0C, 8))
    column, row, on = (np.asarray(values, np.uint32) for values in (x, y, p))
    record = np.empty((len(column), 2), "<u4")
    record[:, 0] = np.asarray(t, np.int64) % (1 << 32)
    record[:, 1] = column | row << 14 | on << 28 if version == 2 else column | row << 9 | on << 17
    return head + record.tobytes()


# ------------------------------------------------------------------------------------------------------------------- others
def nmnist(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> bytes:
    record = [(column, row, on << 7 | time >> 16, time >> 8 & 255, time & 255) for column, row, time, on in listed(x, y, t, p)]
    return np.array(record, np.uint8).tobytes()


def text(x: Numbers, y: Numbers, t: Numbers, p: Numbers, header: str = "640 480\n", line: str = "{t} {x} {y} {p}\n") -> bytes:
    lines = [line.format(t=time, s=time / 1e6, x=a, y=b, p=on) for a, b, time, on in listed(x, y, t, p)]
    return (header + "".join(lines)).encode()


def npz(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.asarray(x), y=np.asarray(y), t=np.asarray(t), p=np.asarray(p), width=640, height=480)
    return file.getvalue()


def eventgpt_npy(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> bytes:
    columns = {"x": np.asarray(x, "u2"), "y": np.asarray(y, "u2"), "t": np.asarray(t, "i8"), "p": np.asarray(p, "u1")}
    head = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(127) + b"\n"
    return head + pickle.dumps(np.array(columns, object), protocol=3)


def _h5(fill: Callable[[Any], None]) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        fill(file)
    return buffer.getvalue()


def dsec(x: Numbers, y: Numbers, t: Numbers, p: Numbers, offset_us: int = 0, **packing: Any) -> bytes:
    times = np.asarray(t, np.int64) - offset_us

    def fill(file: Any) -> None:
        for name, values, dtype in (("x", x, "u2"), ("y", y, "u2"), ("t", times, "u4"), ("p", p, "u1")):
            file.create_dataset(f"events/{name}", data=np.asarray(values, dtype), **packing)
        milliseconds = np.arange(int(times[-1]) // 1000 + 1 if len(times) else 0) * 1000
        file["ms_to_idx"] = np.searchsorted(times, milliseconds).astype(np.uint64)
        file["t_offset"] = np.int64(offset_us)

    return _h5(fill)


def mvsec(x: Numbers, y: Numbers, t: Numbers, p: Numbers, frames: int = 0) -> bytes:
    def fill(file: Any) -> None:
        seconds = np.asarray(t, np.float64) / 1e6
        matrix = np.stack([np.asarray(x, float), np.asarray(y, float), seconds, np.asarray(p, float) * 2 - 1], axis=1)
        file["davis/left/events"] = matrix
        if frames:
            file["davis/left/image_raw"] = np.zeros((frames, 26, 34), np.uint8)
            file["davis/left/image_raw_ts"] = seconds[0] + np.arange(frames) * 0.02

    return _h5(fill)


def metavision(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> bytes:
    def fill(file: Any) -> None:
        records = np.zeros(len(t), [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
        for name, values in (("x", x), ("y", y), ("p", p), ("t", t)):
            records[name] = values
        file.create_dataset("CD/events", data=records, chunks=(max(1, min(len(t) // 20, 1 << 16)),), compression="gzip")
        file.attrs["geometry"] = "640x480"

    return _h5(fill)


def native(x: Numbers, y: Numbers, t: Numbers, p: Numbers) -> bytes:
    def fill(file: Any) -> None:
        for name, values, dtype in (("x", x, "u2"), ("y", y, "u2"), ("t", t, "i8"), ("p", p, "u1")):
            file.create_dataset(
                name, data=np.asarray(values, dtype), chunks=(max(1, min(len(t) // 20, 1 << 16)),), compression="gzip"
            )
        file.attrs.update(width=640, height=480)

    return _h5(fill)


ENCODERS: dict[str, Callable[..., bytes]] = {
    "evt2": evt2,
    "evt21": evt21,
    "evt3": evt3,
    "dat": dat,
    "nmnist-bin": nmnist,
    "text": text,
    "npz": npz,
    "eventgpt-npy": eventgpt_npy,
    "dsec-h5": dsec,
    "mvsec-hdf5": mvsec,
    "metavision-h5": metavision,
    "native-h5": native,
}


def street(events: int, width: int, height: int, seed: int = 3, longest_step_us: int = 9) -> dict[str, Any]:
    """Columns of random events with runs of neighbours in one row, as edges leave them."""
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.integers(0, longest_step_us + 1, events))
    run = rng.integers(0, 4, events) > 0  # this event continues the one before it
    run[:1] = False
    place = np.arange(events) - np.maximum.accumulate(np.where(run, 0, np.arange(events)))
    first = np.maximum.accumulate(np.where(run, 0, np.arange(events)))
    x = (rng.integers(0, width, events)[first] + place) % width
    y, p, t = (values[first] for values in (rng.integers(0, height, events), rng.integers(0, 2, events), t))
    return {"x": x, "y": y, "t": t, "p": p}


def write(path: Path, name: str, events: int, seed: int = 3) -> Path:
    """A miniature file of one format."""
    side = {"nmnist-bin": (34, 34), "mvsec-hdf5": (346, 260)}.get(name, (640, 480))
    path.write_bytes(ENCODERS[name](**street(events, *side, seed)))
    return path


def frames_of(found: EventFile) -> Any:
    """All frames of an event file, uint8 [K, H, W, 3]; None without."""
    if found.frames is None:
        return None
    picture, shape, times_us = found.frames
    rows = [picture(place) for place in range(len(times_us))]
    return np.stack(rows) if rows else np.empty((0, *shape, 3), np.uint8)
