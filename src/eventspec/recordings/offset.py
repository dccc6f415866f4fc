"""How far the clock of the events is from that of the frames, estimated from what both saw.

An event says that log light changed by one threshold, so between two frames the signed events of a place add up to the change
of its log light: the generative model that event simulators and EKLT (Gehrig et al., IJCV 2020, section 3) use. For every
candidate d the events between t_i + d and t_i+1 + d are added up in the cells of a common grid and correlated with the change
of the frames; the best d is the offset. This was chosen over the rate of events against the frames' differences because it
was measurably better: one second at 8 frames a second has seven rates, and thousands of cells. The rate is used where the
pictures do not lie on each other (two cameras with different views), and asks for more frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from eventspec.core import BadInput, Window
from eventspec.events.stream import EventStream
from eventspec.video.clip import VideoClip

RANGE_US = 500_000
"""Offsets up to this are looked for, either way."""
STEP_US = 5_000
"""Between candidates; the best is refined by a parabola."""
GRID = (24, 32)
"""Rows and columns of cells in which events and frames are compared."""
TILES = (3, 4)
"""Parts of the picture that count as witnesses of their own."""
LEAST_SCORE = 0.6
"""Correlation from which an estimate is given: the best of 201 offsets reached 0.53 for events of another street (410 pairs),
0.83 for its own, and 0.81 in a third of a second of a DAVIS346's."""
LEAST_RATE_SCORE = 0.65
"""The same of rates alone, of which there are few."""
LEAST_AGREEMENT = 0.02
"""Of two halves of the events: below it they are noise, of which nothing is corrected."""
LEAST_ERROR_US, LARGEST_ERROR_US = 15_000, 100_000
"""Events lag what they see by a threshold's worth of change, and a pixel in dim light by more: no smaller error is told (it is
2 to 7 ms in simulated streets, 8 to 13 in a DAVIS346's recording of traffic). With a larger one there is no estimate."""
LEAST_EVENTS, LEAST_FRAMES, LEAST_RATES = 100, 3, 24
BLOCK_FRAMES, BLOCK_US, BLOCKS = 16, 2_000_000, 8
"""Of long recordings so many blocks of so many frames, which span at most so long, are looked at, spread over the whole."""
MOST_EVENTS = 20_000_000
"""No further block is read after so many events."""
DRAWS = 200
SEEMS = "the event clock seems"
"""How the note on a wrong offset begins: it goes where another offset comes."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
_LIGHT = np.log(np.arange(256, dtype=np.float32) + 8)  # the dark end of 8 bits is grain
_OFFSETS = np.arange(-RANGE_US, RANGE_US + 1, STEP_US)


@dataclass(frozen=True)
class EventOffset:
    """By how many microseconds events are moved relative to the frames; error_us: half the 95 % interval of an estimate, None
    where the offset was given."""

    us: int
    error_us: int | None = None

    def __str__(self) -> str:
        return f"{self.us} us" + ("" if self.error_us is None else f" (+-{self.error_us})")


class _Sums(NamedTuple):
    """Of every offset [D] and witness [U]: products and squares of the events' sums X and the frames' changes Y, xy and xx
    [D, U] and yy [U]; halves [3, D]: the products of X of two halves of the events, and the squares of each."""

    xy: Floats
    xx: Floats
    yy: Floats
    halves: Floats


def estimate_event_offset(events: EventStream | None, video: VideoClip | None, source: str = "recording") -> EventOffset:
    """What to move the events by so that they lie on the frames' clock, within +-`RANGE_US`, and its error.

    The error is half the 95 % interval of a bootstrap over frame intervals and parts of the picture. An estimate is given where
    the correlation is at least `LEAST_SCORE` after correction for the events' own noise (by how well two halves of them agree:
    Spearman-Brown), more than random signs of the witnesses reach, and not at the end of the range. Cost is bounded by `BLOCKS`
    and `MOST_EVENTS`.

    BadInput, one line, where there is nothing to estimate from, and where events and frames do not agree at any offset.
    """
    if events is None or video is None:
        raise BadInput(f"{source}: an event offset is estimated from events and frames: one of them is missing")
    if len(video) < LEAST_FRAMES:
        raise BadInput(f"{source}: {len(video)} frames are too few to estimate the event offset: give it in microseconds")
    seen, counted = list[_Sums](), list[_Sums]()
    for change, sums in _blocks(events, video, source):
        by_place = change - np.median(change, axis=1, keepdims=True)  # what all of the picture does is exposure
        seen.append(_products(sums, by_place, TILES))
        counted.append(_rates(sums, change))
    if not any(part.yy.any() for part in seen):
        raise BadInput(f"{source}: nothing moves in the frames: the event offset cannot be estimated, give it in microseconds")
    found, score = _peak(_joined(seen))
    if found is None and sum(part.xy.shape[1] for part in counted) >= LEAST_RATES:
        found, _ = _peak(_joined(counted), LEAST_RATE_SCORE)
    if found is None:
        agree = f"events and frames agree too little at any offset within {RANGE_US // 1000} ms ({score:.2f} of {LEAST_SCORE})"
        raise BadInput(f"{source}: the event offset cannot be estimated: {agree}: give it in microseconds")
    return found


def offset_notes(events: EventStream, video: VideoClip) -> tuple[str, ...]:
    """A note where the events seem to be on another clock than the frames: by more than the error and the usual lag of events.
    Nothing where that cannot be told."""
    try:
        found = estimate_event_offset(events, video)
    except BadInput:
        return ()
    if found.error_us is None or abs(found.us) <= found.error_us + LEAST_ERROR_US:
        return ()
    where = "behind" if found.us > 0 else "ahead of"
    by = f"{abs(found.us) / 1000:.0f} ms (+-{found.error_us / 1000:.0f})"
    return (f"{SEEMS} {by} {where} the frames': --event-offset auto, or with_event_offset, moves the events",)


def _blocks(events: EventStream, video: VideoClip, source: str) -> Iterator[tuple[Floats, Floats]]:
    """Of each block of frames: changes of log light [I, C], and what events add up to [2 halves, D, I, C + 1]."""
    blocks = min(BLOCKS, max(1, len(video) // BLOCK_FRAMES))
    starts = np.linspace(0, max(0, len(video) - BLOCK_FRAMES), blocks).astype(int)
    count, used = 0, 0
    for place in sorted(range(blocks), key=lambda one: one * 5 % BLOCKS):  # a series that is cut off is spread, too
        start = int(starts[place])
        times = video.times_us[start : start + BLOCK_FRAMES]
        places = np.flatnonzero(np.diff(times, prepend=times[0] - 1) > 0)
        places = places[times[places] - times[0] <= BLOCK_US]
        if len(places) < 2 or count > MOST_EVENTS:
            continue
        times = times[places]
        light = np.stack([_cells_of(frame) for frame in video.frames[places + start]])
        piled, found = _piled(events, Window(int(times[0]) - RANGE_US - STEP_US, int(times[-1]) + RANGE_US + 2 * STEP_US))
        count, used = count + found, used + 1
        at = (times[None] + _OFFSETS[:, None] - (times[0] - RANGE_US - STEP_US)) / STEP_US
        low = at.astype(int)
        share = (at - low).astype(np.float32)[..., None]
        level = piled[..., low, :] * (1 - share) + piled[..., low + 1, :] * share
        yield np.diff(light, axis=0), np.diff(level, axis=-2)
    if not used:
        raise BadInput(
            f"{source}: its frames are more than {BLOCK_US // 1_000_000} s apart: give the event offset in microseconds"
        )
    if count < LEAST_EVENTS:
        raise BadInput(
            f"{source}: {count} events near its frames are too few to estimate the event offset: give it in microseconds"
        )


def _cells_of(frame: Any) -> Floats:
    """Mean log light [C] of the cells of a frame uint8 [H, W, 3]; of large frames some of the pixels."""
    step = max(1, min(frame.shape[:2]) // 240)
    light = _LIGHT[frame[::step, ::step]].mean(2)
    cell = _cell(*np.indices(light.shape).reshape(2, -1), *light.shape)
    total = np.bincount(cell, light.ravel(), GRID[0] * GRID[1])
    return np.asarray(total / np.maximum(1, np.bincount(cell, minlength=len(total))), np.float32)


def _cell(y: Any, x: Any, height: int, width: int) -> Any:
    return y.astype(np.int64) * GRID[0] // height * GRID[1] + x.astype(np.int64) * GRID[1] // width


def _piled(events: EventStream, window: Window) -> tuple[Floats, int]:
    """Events of a window, added up from its begin to every `STEP_US`: float32 [2 halves, T, C + 1], by their sign in each cell,
    and last their number; and how many there are. Every other event is in a half. They are read in pieces of 200 ms."""
    cells, steps = GRID[0] * GRID[1], -(-window.duration_us // STEP_US)
    found, count = np.zeros((2, steps + 1, cells + 1), np.float32), 0
    piece = 40 if events.ordered else steps  # of events out of order every part is looked for in all of them
    for first in range(0, steps, piece):
        last = min(first + piece, steps)
        part = events.slice(Window(window.start_us + first * STEP_US, window.start_us + last * STEP_US))
        row = (np.arange(len(part)) + count) % 2 * (last - first) + (part.t - window.start_us) // STEP_US - first
        rows = 2 * (last - first)
        index, sign = row * cells + _cell(part.y, part.x, events.height, events.width), 2.0 * part.p - 1
        found[:, first + 1 : last + 1, :cells] = np.bincount(index, sign, rows * cells).reshape(2, -1, cells)
        found[:, first + 1 : last + 1, cells] = np.bincount(row, minlength=rows).reshape(2, -1)
        count += len(part)
    return found.cumsum(1, dtype=np.float32), count


def _products(sums: Floats, change: Floats, tiles: tuple[int, int]) -> _Sums:
    """By place: signed events against the change of light, witnesses are intervals x tiles."""
    first, second = sums[..., :-1]
    x = first + second

    def tiled(values: Floats) -> Floats:
        rows, columns = (side // parts for side, parts in zip(GRID, tiles, strict=True))
        shape = (*values.shape[:-1], tiles[0], rows, tiles[1], columns)
        return np.asarray(values.reshape(shape).sum((-3, -1)).reshape(*values.shape[:-2], -1))

    halves = np.stack([(one * other).sum((1, 2)) for one, other in ((first, second), (first, first), (second, second))])
    return _Sums(tiled(x * change), tiled(x * x), tiled(change * change), halves)


def _rates(sums: Floats, change: Floats) -> _Sums:
    """By time alone: how many events, against how much light changed; witnesses are intervals."""
    first, second = (_centred(half) for half in sums[..., -1])
    x, y = first + second, _centred(np.abs(change).mean(1))
    halves = np.stack([(one * other).sum(1) for one, other in ((first, second), (first, first), (second, second))])
    return _Sums(x * y, x * x, y * y, halves)


def _centred(values: Floats) -> Floats:
    return np.asarray(values - values.mean(-1, keepdims=True))


def _joined(parts: list[_Sums]) -> _Sums:
    xy, xx = (np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("xy", "xx"))
    return _Sums(xy, xx, np.concatenate([part.yy for part in parts]), np.sum([part.halves for part in parts], axis=0))


def _peak(sums: _Sums, least: float = LEAST_SCORE) -> tuple[EventOffset | None, float]:
    """The best offset, None where it is not to be relied on, and its correlation, corrected for the events' noise."""
    rng, witnesses = np.random.default_rng(0), sums.xy.shape[1]
    scores = _scores(sums, np.ones((witnesses, 1), np.float32))[:, 0]
    best = int(scores.argmax())
    between, one, other = sums.halves[:, best]
    agree = float(between) / max(1e-9, float(np.sqrt(one * other)))
    score = float(scores[best])
    if agree > LEAST_AGREEMENT:
        score = min(1.0, score / float(np.sqrt(2 * agree / (1 + agree))))  # Spearman-Brown, for both halves together
    signs = rng.choice(np.array([-1, 1], np.float32), (witnesses, DRAWS))
    norm = np.sqrt(np.maximum(1e-9, sums.xx.sum(1) * sums.yy.sum()))
    by_chance = ((sums.xy @ signs) / norm[:, None]).max(0)
    chance = np.count_nonzero(by_chance >= scores[best]) / DRAWS
    if score < least or chance > 0.01 or best in (0, len(scores) - 1):
        return None, score
    drawn = rng.multinomial(witnesses, np.full(witnesses, 1 / witnesses), DRAWS).T.astype(np.float32)
    peaks = [_refined(column) for column in _scores(sums, drawn).T]
    low, high = np.quantile(peaks, [0.025, 0.975])
    error = max(LEAST_ERROR_US, round((high - low) / 2))
    return (EventOffset(-round(_refined(scores)), error) if error <= LARGEST_ERROR_US else None), score


def _scores(sums: _Sums, weights: Floats) -> Floats:
    """Correlations [D, W] with witnesses weighted by [U, W]."""
    norm = np.sqrt(np.maximum(1e-9, (sums.xx @ weights) * (sums.yy @ weights)))
    return np.asarray((sums.xy @ weights) / norm)


def _refined(scores: Floats) -> float:
    """The place of the largest of scores [D], by the parabola through it and its neighbours."""
    best = int(scores.argmax())
    if not 0 < best < len(scores) - 1:
        return float(_OFFSETS[best])
    before, at, after = (float(score) for score in scores[best - 1 : best + 2])
    bend = before - 2 * at + after
    return float(_OFFSETS[best]) + (0.5 * (before - after) / bend if bend else 0.0) * STEP_US
