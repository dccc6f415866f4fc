"""Prophesee EVT 2.0 (32-bit words, one event each) and EVT 2.1 (64-bit words, up to 32 events of one row each).

A word's upper four bits are its type. TIME_HIGH carries bits 6..33 of the time, an event word bits 0..5, so that times wrap
after 2^34 us (4.8 hours); wraps are counted. An EVT 2.1 word is an EVT 2.0 word and a 32-bit mask: bit k set is an event at
x + k. Sensors of the fourth generation send the word before the mask ("legacy" in the header), GenX320 the mask first.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

import numpy as np

from eventspec.errors import several
from eventspec.events.formats.sequential import Decode, Step, words
from eventspec.events.stored import Columns
from eventspec.events.stream import Array

ON, TIME_HIGH, TRIGGER = 1, 8, 10
BLOCK = 1 << 16  # words
TURN = 1 << 28  # what TIME_HIGH counts to


class State(NamedTuple):
    """high: the last TIME_HIGH with its wraps, None before the first one; skipped: events before it; triggers seen."""

    high: int | None = None
    skipped: int = 0
    triggers: int = 0


def notes_of(state: Any) -> list[str]:
    """What is not among the events, by the state of a decoder of EVT 2.0, 2.1 or 3.0 at the end."""
    notes = []
    if state.skipped:
        notes.append(f"{several(state.skipped, 'event')} before the first complete time left out: their time is unknown")
    if state.triggers:
        notes.append(f"{several(state.triggers, 'external trigger event is', 'external trigger events are')} not read")
    return notes


def unwrapped(values: Array, before: int | None, turn: int) -> Array:
    """A counter that starts again at 0 after `turn`, made to run on: int64 [N]; `before` is its last value, running on.

    A fall by more than half a turn is a new turn; a smaller one is a time that really goes back. A rise by all but 1/512 of a
    turn is one that goes back over the border, after an event of the new turn.
    """
    running = values.astype(np.int64)
    if not len(running):
        return running
    start = int(running[0]) if before is None else before
    steps = np.diff(running, prepend=start % turn)
    change = (steps < -(turn // 2)).astype(np.int64) - (steps > turn - turn // 512)
    if change.any():
        turns = np.cumsum(change)
        running += (turns - min(0, start // turn + int(turns.min()))) * turn  # never before the first turn
    return running + (start - start % turn)


def decode(file: BinaryIO, position: int, state: State) -> Step[State]:
    word = words(file, position, "<u4", BLOCK)
    columns, state = _events(word, None, state)
    return Step(columns, position + 4 * len(word), state)


def decoder21(legacy: bool) -> Decode[State]:
    """The decoder of EVT 2.1 for either order of word and mask."""

    def decode21(file: BinaryIO, position: int, state: State) -> Step[State]:
        pair = words(file, position, "<u8", BLOCK // 2).view("<u4").reshape(-1, 2)
        word, mask = np.ascontiguousarray(pair[:, 0 if legacy else 1]), np.ascontiguousarray(pair[:, 1 if legacy else 0])
        columns, after = _events(word, mask, state)
        return Step(columns, position + 8 * len(word), after)

    return decode21


def _events(word: Array, mask: Array | None, state: State) -> tuple[Columns, State]:
    """Columns of words uint32 [N], each with a mask uint32 [N] of the pixels from its x on; None is one pixel each."""
    kind = (word >> 28).astype(np.uint8)
    ticks = np.flatnonzero(kind == TIME_HIGH)
    high = unwrapped(word[ticks] & 0x0FFFFFFF, state.high, TURN)
    event = np.flatnonzero(kind <= ON)
    # Words [0, ticks[0]) keep the time from before the block, [ticks[0], ticks[1]) have that of ticks[0], and so on.
    counts = np.diff(np.searchsorted(event, ticks), prepend=0, append=len(event))
    known = np.repeat(np.concatenate(([state.high or 0], high)), counts)
    skipped = state.skipped
    if state.high is None and counts[0]:
        lost = event[: counts[0]]
        skipped += len(lost) if mask is None else int(np.bitwise_count(mask[lost]).sum())
        event, known = event[counts[0] :], known[counts[0] :]
    own = word[event]
    t = (known << 6) + (own >> 22 & 63)
    x, y, p = (own >> 11 & 2047).astype(np.uint16), (own & 2047).astype(np.uint16), kind[event]
    if mask is not None:
        bits_set = np.flatnonzero(np.unpackbits(mask[event].view(np.uint8), bitorder="little").view(np.bool_))
        source, pixel = bits_set >> 5, (bits_set & 31).astype(np.uint16)
        x, y, t, p = x[source] + pixel, y[source], t[source], p[source]
    triggers = state.triggers + int(np.count_nonzero(kind == TRIGGER))
    return Columns(x, y, t, p), State(int(high[-1]) if len(high) else state.high, skipped, triggers)
