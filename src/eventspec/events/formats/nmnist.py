"""N-MNIST and N-Caltech101 .bin files: records of 40 bits, x, y, then one bit of polarity and 23 of time in us, big-endian.

There is no header: a file is recognised by its times. A record with y = 240 is no event but the converter's sign that its
13-bit clock turned: every later time is 2^13 us later than it says (the convention of the data sets' own reader).
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from eventspec.errors import several
from eventspec.events.formats.family import HEAD_BYTES, EventFile, Format, SensorSize
from eventspec.events.formats.sensors import SENSORS
from eventspec.events.formats.sequential import Sequential, Step, event_file, whole_words, words
from eventspec.events.stored import Columns
from eventspec.events.stream import Array, Policy

NAME = "nmnist-bin"
RECORD = 5
BLOCK = 1 << 15  # records
TURN_ROW = 240
TURN_US = 1 << 13
LEAST_RECORDS = 8
LONGEST_STEP_US = 1_000_000  # the recordings last 0.3 s, and there is no long time without an event


def matches(path: Path, head: bytes) -> bool:
    """Records whose times never go back and never leap, on a sensor no larger than N-Caltech101's.

    Of a short file every record is seen; text, archives and images never pass.
    """
    record = np.frombuffer(head, np.uint8, len(head) // RECORD * RECORD).reshape(-1, RECORD)
    if len(record) < LEAST_RECORDS or (len(head) < HEAD_BYTES and len(head) % RECORD and len(record) < 4 * LEAST_RECORDS):
        return False
    times, turns = _times(record, 0)
    steps = np.diff(times[~turns])
    width, height = SENSORS["ncaltech101"]
    fits = (record[:, 0] < width).all() and ((record[:, 1] < height) | turns).all()
    return bool(fits and (steps >= 0).all() and (steps <= LONGEST_STEP_US).all() and steps.any())


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """The file; a last record that is cut is left out with a note, as is the guess at the sensor."""
    notes: list[str] = []
    end = whole_words(path, 0, RECORD, notes)
    size = sensor_size if sensor_size is not None else _size(path, notes)
    source = Sequential(path, size, policy, decode, 0, end, 0)
    return event_file(
        NAME, source, notes, lambda turns: [f"the clock turned {several(turns, 'time')} (y = 240)"] if turns else []
    )


def decode(file: BinaryIO, position: int, turns: int) -> Step[int]:
    """One block; the state is the number of clock turns so far."""
    record = words(file, position, "u1", BLOCK * RECORD)
    record = record[: len(record) // RECORD * RECORD].reshape(-1, RECORD)
    times, turn = _times(record, turns)
    event = record[~turn]
    columns = Columns(event[:, 0], event[:, 1], times[~turn], event[:, 2] >> 7)
    return Step(columns, position + record.size, turns + int(np.count_nonzero(turn)))


def _times(record: Array, turns: int) -> tuple[Array, Array]:
    """Time int64 [E] of each record, and bool [E] which of them are no events but turns of the clock."""
    high, middle, low = (record[:, place].astype(np.int64) for place in (2, 3, 4))
    turn = record[:, 1] == TURN_ROW
    return ((high & 127) << 16 | middle << 8 | low) + (turns + np.cumsum(turn)) * TURN_US, turn


def _size(path: Path, notes: list[str]) -> SensorSize:
    """N-MNIST's sensor when every event is inside, else N-Caltech101's."""
    name = "nmnist"
    with path.open("rb") as file:
        while data := file.read(BLOCK * RECORD):
            record = np.frombuffer(data, np.uint8, len(data) // RECORD * RECORD).reshape(-1, RECORD)
            event = record[record[:, 1] != TURN_ROW]
            if len(event) and event[:, :2].max() >= SENSORS[name][0]:
                name = "ncaltech101"
                break
    width, height = SENSORS[name]
    notes.append(f"sensor size {width}x{height} ({name}) is assumed: the file does not say, and it is the smallest that fits")
    return width, height


FORMAT = Format(NAME, "N-MNIST and N-Caltech101 .bin", matches, read)
