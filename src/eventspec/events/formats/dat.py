"""Prophesee DAT: an ASCII header, two bytes (event type, event size), then records of 8 bytes: time, then x, y, polarity.

The header may be of Metavision's four fields alone, so a file is also known by those two bytes after it.
Times are 32-bit microseconds and wrap after 71.6 minutes; wraps are counted. Version 2 packs x in 14 bits, y in 14 and the
polarity in 4; version 1 (the first ATIS cameras) in 9, 8 and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.evt2 import unwrapped
from eventspec.events.formats.family import EventFile, Format, SensorSize
from eventspec.events.formats.prophesee import header, read_header
from eventspec.events.formats.sequential import Decode, Sequential, Step, event_file, whole_words, words
from eventspec.events.stored import Columns
from eventspec.events.stream import Policy

NAME = "dat"
EVENT_2D, CHANGE, TRIGGER = 0x00, 0x0C, 0x0E
RECORD = 8
STARTS = tuple(bytes((kind, RECORD)) for kind in (EVENT_2D, CHANGE, TRIGGER))
BLOCK = 1 << 15  # records
TURN = 1 << 32


class Packing(NamedTuple):
    """Bits of x, y and polarity in the second half of a record, from the lowest bit up."""

    x: int
    y: int
    p: int


PACKINGS = {"1": Packing(9, 8, 1), "2": Packing(14, 14, 4)}


def matches(path: Path, head: bytes) -> bool:
    """A header that says what the file contains, or any header of fields with an event type of 8 bytes after it."""
    found = header(head)
    return "contains" in found.fields or (bool(found.fields) and head[found.end : found.end + 2] in STARTS)


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """The file; a last record that is cut is left out with a note."""
    found = read_header(path)
    with path.open("rb") as file:
        file.seek(found.end)
        kind = file.read(2)
    # Without a version it is the first one, unless the type is of the cameras that came with the second.
    version = found.fields.get("version", "2" if kind[:1] == bytes((CHANGE,)) else "1")
    if version not in PACKINGS:
        raise BadInput(f"{path}: DAT version {version!r}, readable are 1 and 2: convert the file to version 2")
    if len(kind) == 2 and kind[0] == TRIGGER:
        raise BadInput(f"{path}: holds external triggers, not events: give the file with the CD events")
    if len(kind) < 2 or kind[0] not in (EVENT_2D, CHANGE) or kind[1] != RECORD:
        said = kind.hex(" ") or "nothing"
        raise BadInput(f"{path}: event type and size are {said}, readable are 00 08 and 0c 08: copy or export it again")
    notes: list[str] = []
    size = found.size(path, sensor_size, notes)
    start = found.end + 2
    end = whole_words(path, start, RECORD, notes)
    source = Sequential(path, size, policy, decoder(PACKINGS[version]), start, end, None)
    return event_file(NAME, source, notes)


def decoder(packing: Packing) -> Decode[int | None]:
    """The decoder of one version; its state is the last time, running on over the wraps."""

    def decode(file: BinaryIO, position: int, latest: int | None) -> Step[int | None]:
        record = words(file, position, "<u8", BLOCK).view("<u4").reshape(-1, 2)
        t = unwrapped(record[:, 0], latest, TURN)
        place = np.ascontiguousarray(record[:, 1])
        x = (place & np.uint32((1 << packing.x) - 1)).astype(np.uint16)
        y = (place >> packing.x & np.uint32((1 << packing.y) - 1)).astype(np.uint16)
        p = (place >> (packing.x + packing.y) & np.uint32((1 << packing.p) - 1)).astype(np.uint8)
        return Step(Columns(x, y, t, p), position + RECORD * len(record), int(t[-1]) if len(t) else latest)

    return decode


FORMAT = Format(NAME, "Prophesee DAT", matches, read)
