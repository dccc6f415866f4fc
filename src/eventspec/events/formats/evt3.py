"""Prophesee EVT 3.0: 16-bit words that change one thing at a time: row, column, time, or several pixels of one row.

A word's upper four bits are its type. ADDR_Y sets the row; ADDR_X is one event; VECT_BASE_X sets polarity and column for
the VECT_12 and VECT_8 words after it, whose set bits are events, and which move the column on by 12 or 8. TIME_HIGH and
TIME_LOW carry twelve bits each, so that times wrap after 2^24 us (16.8 s); wraps are counted.

There is no loop over words: the running sum of events gives each word its place among them, and a state such as the row is
then each of its values repeated until the place of the next one.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

import numpy as np

from eventspec.events.formats.evt2 import unwrapped
from eventspec.events.formats.sequential import Step, words
from eventspec.events.stored import Columns
from eventspec.events.stream import Array

ADDR_Y, ADDR_X, VECT_BASE_X, VECT_12, VECT_8, TIME_LOW, TIME_HIGH, TRIGGER = 0, 2, 3, 4, 5, 6, 8, 10
BLOCK = 1 << 16  # words: the fastest of 2^14 to 2^18, it fits in a core's cache
TURN = 1 << 12  # what TIME_HIGH counts to
FARTHEST = 0x7FFF  # columns stop here, far outside every sensor, so that a damaged file cannot make them wrap


class State(NamedTuple):
    """row, and high (the last TIME_HIGH with its wraps): None before the first one; low: the last TIME_LOW since it;
    column and on: of the next vector; skipped: events without a time or a row; triggers seen."""

    row: int | None = None
    high: int | None = None
    low: int = 0
    column: int = 0
    on: int = 0
    skipped: int = 0
    triggers: int = 0


def decode(file: BinaryIO, position: int, state: State) -> Step[State]:
    word = words(file, position, "<u2", BLOCK)
    columns, after = decoded(word, state)
    return Step(columns, position + 2 * len(word), after)


def decoded(word: Array, state: State) -> tuple[Columns, State]:
    """The events of words uint16 [N], of a file or a message, and the state after them."""
    kind = (word >> 12).astype(np.uint8)
    single = kind == ADDR_X
    vectors = np.flatnonzero((kind == VECT_12) | (kind == VECT_8))
    bits = word[vectors] & np.where(kind[vectors] == VECT_12, np.uint16(0xFFF), np.uint16(0xFF))
    many = single.astype(np.uint8)
    many[vectors] = np.bitwise_count(bits)
    done = np.cumsum(many, dtype=np.int64)  # events up to and with each word

    rows = np.flatnonzero(kind == ADDR_Y)
    y = _spread(word[rows] & np.uint16(2047), rows, done, np.uint16(state.row or 0))
    t, after = _times(word, kind, done, state)
    x, p, after = _columns(word, kind, single, vectors, bits, done, after)
    if len(rows):
        after = after._replace(row=int(word[rows[-1]] & 2047))
    first = _first_complete(state, rows, kind, done)
    triggers = state.triggers + int(np.count_nonzero(kind == TRIGGER))
    after = after._replace(skipped=state.skipped + first, triggers=triggers)
    return Columns(x[first:], y[first:], t[first:], p[first:]), after


def _spread(values: Array, places: Array, done: Array, before: Any) -> Array:
    """For each event the value in force: `values` [V] are set by the words at `places` [V], `before` holds until then."""
    events = int(done[-1]) if len(done) else 0
    counts = np.diff(done[places], prepend=0, append=events)
    return np.repeat(np.concatenate(([before], values), dtype=values.dtype), counts)


def _times(word: Array, kind: Array, done: Array, state: State) -> tuple[Array, State]:
    """Time of each event in us, int64. A TIME_HIGH that is new sets the low bits to 0, as the camera sends TIME_LOW after it;
    one that is repeated keeps them."""
    ticks = np.flatnonzero((kind == TIME_LOW) | (kind == TIME_HIGH))
    if not len(ticks):
        return np.full(int(done[-1]) if len(done) else 0, ((state.high or 0) << 12) + state.low, np.int64), state
    value = word[ticks] & np.uint16(0xFFF)
    is_high = kind[ticks] == TIME_HIGH
    highs = np.flatnonzero(is_high)
    high = unwrapped(value[highs], state.high, TURN)
    base = np.repeat(np.concatenate(([state.high or 0], high)), np.diff(highs, prepend=0, append=len(ticks)))
    renewed = np.zeros(len(ticks), np.bool_)
    renewed[highs] = np.diff(high, prepend=-1 if state.high is None else state.high) != 0
    # Each low value is that of the latest TIME_LOW or new TIME_HIGH; -1 is the one from before the block.
    latest = np.maximum.accumulate(np.where(renewed | ~is_high, np.arange(len(ticks)), -1))
    low = np.where(latest < 0, np.uint16(state.low), np.where(renewed[latest], np.uint16(0), value[latest]))
    t = _spread((base << 12) + low, ticks, done, ((state.high or 0) << 12) + state.low)
    return t, state._replace(high=int(high[-1]) if len(high) else state.high, low=int(low[-1]))


def _columns(
    word: Array, kind: Array, single: Array, vectors: Array, bits: Array, done: Array, state: State
) -> tuple[Array, Array, State]:
    """Column uint16 and polarity uint8 of each event; `bits` [V] are the masks of the vector words."""
    ones = np.flatnonzero(single)
    bases = np.flatnonzero(kind == VECT_BASE_X)
    if not len(vectors) and not len(bases):
        own = word[ones]
        return own & np.uint16(2047), (own >> 11 & 1).astype(np.uint8), state
    # Column of each vector: its base's, and the steps of the vectors since then.
    steps = np.where(kind[vectors] == VECT_12, 12, 8)
    walked = np.concatenate(([0], np.cumsum(steps)))
    before = np.searchsorted(vectors, bases)  # vectors before each base
    counts = np.diff(before, prepend=0, append=len(vectors))
    bases_x = (word[bases] & np.uint16(2047)).astype(np.int64)
    origin = np.concatenate(([state.column], bases_x - walked[before]))
    column = np.minimum(np.repeat(origin, counts) + walked[:-1], FARTHEST - 16)
    on = np.concatenate(([state.on], word[bases] >> 11 & 1)).astype(np.uint8)

    bits_set = np.flatnonzero(np.unpackbits(bits.astype("<u2").view(np.uint8), bitorder="little").view(np.bool_))
    source, pixel = bits_set >> 4, bits_set & 15
    many = np.bitwise_count(bits).astype(np.int64)
    # The events of a vector stand together, and all vectors' events in the order of `bits_set`.
    places = np.arange(len(bits_set)) + (done[vectors] - np.cumsum(many))[source]
    events = int(done[-1])
    x, p = np.empty(events, np.uint16), np.empty(events, np.uint8)
    own, alone = word[ones], done[ones] - 1
    x[alone], p[alone] = own & np.uint16(2047), own >> 11 & 1
    x[places], p[places] = column[source] + pixel, np.repeat(on, counts)[source]
    after = min(int(origin[-1] + walked[-1]), FARTHEST - 16)
    return x, p, state._replace(column=after, on=int(on[-1]))


def _first_complete(state: State, rows: Array, kind: Array, done: Array) -> int:
    """How many events of the block come before the stream's first row or its first TIME_HIGH."""
    events = int(done[-1]) if len(done) else 0
    needed = ((state.row, rows), (state.high, np.flatnonzero(kind == TIME_HIGH)))
    return max((int(done[places[0]]) if len(places) else events) if before is None else 0 for before, places in needed)
