"""The event camera as a model: pictures in, events out. Compiled, seeded; the synthetic street and videos both go through it.

After v2e's emulator: log luminance against each pixel's memory and one event per threshold crossed; ON and OFF thresholds
that differ from pixel to pixel; crossing times interpolated between two pictures; uniform background noise; and a refractory
time that drops an event too soon after its pixel's last one. Not modelled: the photoreceptor's bandwidth, leak, readout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from eventspec.core import BadInput, FrameRows
from eventspec.errors import BadSetting, several
from eventspec.events.stream import EventStream

try:
    from numba import njit
except ModuleNotFoundError:
    raise BadInput("numba, which makes events from pictures, is not installed: pip install 'eventspec[scenes]'") from None

LEAST_THRESHOLD = 0.05
LARGEST_EVENTS = 1 << 27  # 1.7 GB, and as much again while they are joined
GREY = np.array([0.299, 0.587, 0.114], np.float32) / 255  # ITU-R BT.601, as v2e converts

Luma = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class PixelModel:
    """How a pixel turns light into events.

    threshold: change of log luminance that makes an event; spread: its standard deviation from pixel to pixel; noise_hz:
    background events per pixel and second; refractory_us: the least time between two events of a pixel; floor: added to
    luminance (0 to 1) before the logarithm, the dark current that keeps black from being infinitely sensitive.
    """

    threshold: float = 0.25
    spread: float = 0.02
    noise_hz: float = 0.1
    refractory_us: int = 500
    floor: float = 0.03

    def __post_init__(self) -> None:
        limits = {
            "threshold": (LEAST_THRESHOLD, 10.0),
            "spread": (0.0, 1.0),
            "noise_hz": (0.0, 100.0),
            "refractory_us": (0, 10**9),
            "floor": (0.001, 1.0),
        }
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise BadSetting(name, f"is {getattr(self, name)}: it must be {least} to {most}")


class EventSensor:
    """The pixels of one sensor, which remember what they saw. Every draw is from `rng`."""

    def __init__(self, width: int, height: int, model: PixelModel, rng: np.random.Generator) -> None:
        self.width, self.height, self.model = width, height, model
        self._rng, pixels = rng, width * height
        self._on = np.maximum(LEAST_THRESHOLD, rng.normal(model.threshold, model.spread, pixels))
        self._off = np.maximum(LEAST_THRESHOLD, rng.normal(model.threshold, model.spread, pixels))
        self._memory: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self._last = np.full(pixels, -1_000_000_000, np.int64)

    def see(self, luma: Luma, start_us: int, end_us: int) -> EventStream:
        """Events in [start_us, end_us) of pictures float32 [T, H, W], luminance 0 to 1, evenly spaced from one to the other.

        The next call goes on from here: its first picture is this one's last.
        """
        steps, pixels, duration_us = len(luma), self.width * self.height, end_us - start_us
        noise = int(self._rng.poisson(self.model.noise_hz * pixels * duration_us / 1e6))
        where, position, sign = self._crossings(luma.reshape(steps, pixels))
        step_us = duration_us / (steps - 1)
        when = np.minimum((position * step_us).astype(np.int64), int((steps - 1) * step_us) - 1)
        where = np.concatenate([where, self._rng.integers(0, pixels, noise)])
        when = start_us + np.concatenate([when, self._rng.integers(0, duration_us, noise)])
        sign = np.concatenate([sign, self._rng.integers(0, 2, noise, np.uint8)])
        order = np.argsort(when, kind="stable")
        where, when, sign = where[order], when[order], sign[order]
        keep = _refract(where, when, self._last, self.model.refractory_us)
        where = where[keep]
        x, y = (where % self.width).astype(np.uint16), (where // self.width).astype(np.uint16)
        return EventStream(x, y, when[keep], sign[keep], self.width, self.height)

    def _crossings(self, luma: Luma) -> tuple[Any, Any, Any]:
        """Pixel index int64, position in steps float64 and polarity uint8 [E] of every threshold crossed."""
        if self._memory is None:
            self._memory = _logarithms(luma[0], self.model.floor)
        room = luma.shape[1] * max(4, len(luma) // 5)
        while True:
            where, position, sign = np.empty(room, np.int64), np.empty(room), np.empty(room, np.uint8)
            memory = self._memory.copy()
            count = int(_emit(luma, memory, self._on, self._off, self.model.floor, where, position, sign))
            if count <= room:
                break
            room = count
        self._memory = memory
        return where[:count], position[:count], sign[:count]


@njit(cache=True, nogil=True, error_model="numpy")
def _logarithms(luma, floor):  # type: ignore[no-untyped-def]
    """float64 [pixels]; compiled because numpy's logarithm may differ from `_emit`'s in the last bit."""
    found = np.empty(len(luma))
    for i in range(len(luma)):
        found[i] = math.log(luma[i] + floor)
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _emit(luma, memory, on, off, floor, where, position, sign):  # type: ignore[no-untyped-def]
    """Write pixel index, position in steps and polarity of every crossing, as many as fit; returns how many there are."""
    steps, pixels = luma.shape
    before = _logarithms(luma[0], floor)
    room, e = len(where), 0
    for k in range(1, steps):
        for i in range(pixels):
            if luma[k, i] == luma[k - 1, i]:
                continue
            now = math.log(luma[k, i] + floor)
            change = now - memory[i]
            up = change >= on[i]
            if up or -change >= off[i]:
                theta = on[i] if up else -off[i]
                n = int(change / theta)
                for j in range(1, n + 1):
                    if e < room:
                        share = (memory[i] + j * theta - before[i]) / (now - before[i])
                        where[e], position[e], sign[e] = i, (k - 1) + min(1.0, max(0.0, share)), 1 if up else 0
                    e += 1
                memory[i] += n * theta
            before[i] = now
    return e


@njit(cache=True, nogil=True, error_model="numpy")
def _refract(where, when, last, refractory_us):  # type: ignore[no-untyped-def]
    """bool [E] of the time-sorted events that are not too soon after the last kept one of their pixel, kept in `last`."""
    keep = np.zeros(len(where), np.bool_)
    for e in range(len(where)):
        if when[e] - last[where[e]] >= refractory_us:
            keep[e] = True
            last[where[e]] = when[e]
    return keep


# ------------------------------------------------------------------------------------------------------------------- videos
def simulate(
    frames: FrameRows,
    times_us: np.ndarray[Any, np.dtype[np.int64]],
    model: PixelModel,
    seed: int,
    subframes: int = 1,
    progress: Callable[[int], object] | None = None,
) -> tuple[EventStream, tuple[str, ...]]:
    """What an event camera might have seen of frames uint8 [K, H, W, 3] at times int64 [K] us, and notes on how.

    The 8-bit values are taken for luminance as they are, as v2e does. With `subframes` above 1, frames are blended linearly
    in that many steps. One pair of frames is in memory at a time; `progress` is given the number of frames that are done.
    """
    if not 1 <= subframes <= 1000:
        raise BadSetting("subframes", f"is {subframes}: it must be 1 to 1000")
    if seed < 0:
        raise BadSetting("seed", f"is {seed}: it must be at least 0")
    last_of_its_time = np.flatnonzero(np.diff(times_us, append=np.iinfo(np.int64).max))
    if len(last_of_its_time) < 2:
        raise BadInput(
            f"{several(len(last_of_its_time), 'frame')} with different times: events need at least two: give a longer video"
        )
    _, height, width, _ = frames.shape
    expected = model.noise_hz * width * height * (int(times_us[-1]) - int(times_us[0])) / 1e6
    if expected > LARGEST_EVENTS:
        raise BadInput(f"about {expected:.1e} noise events are too many: cut the video, or lower noise_hz")
    sensor = EventSensor(width, height, model, np.random.default_rng(seed))
    before, start_us = _luminance(frames[last_of_its_time[0]]), int(times_us[last_of_its_time[0]])
    parts: list[EventStream] = []
    count = 0
    shares = np.linspace(0, 1, subframes + 1, dtype=np.float32)[:, None, None]
    for done, place in enumerate(last_of_its_time[1:], start=2):
        now, end_us = _luminance(frames[place]), int(times_us[place])
        pictures = np.stack([before, now]) if subframes == 1 else before + shares * (now - before)
        parts.append(sensor.see(pictures, start_us, end_us))
        count += len(parts[-1])
        if count > LARGEST_EVENTS:
            raise BadInput(f"more than {LARGEST_EVENTS} events after {done} frames: cut the video, or raise the threshold")
        before, start_us = now, end_us
        if progress is not None:
            progress(done)
    notes = _notes(times_us[last_of_its_time], len(times_us), model, seed, subframes)
    return EventStream.joined(parts, width, height), notes


def _luminance(frame: Any) -> Luma:
    """A frame uint8 [H, W, 3] as float32 [H, W], 0 to 1."""
    return np.asarray(frame.astype(np.float32) @ GREY, np.float32)


def _notes(times_us: Any, frames: int, model: PixelModel, seed: int, subframes: int) -> tuple[str, ...]:
    """What a reader of the events must know about them."""
    apart_ms = float(np.median(np.diff(times_us))) / 1000
    notes = [
        f"the events are simulated, not measured: threshold {model.threshold:g}, spread {model.spread:g}, "
        f"noise {model.noise_hz:g} Hz, refractory {model.refractory_us} us, floor {model.floor:g}, seed {seed}",
        f"frames are {apart_ms:g} ms apart: event times in between are interpolated, and nothing faster is seen",
    ]
    if subframes > 1:
        notes.append(f"frames are blended in {subframes} steps: what moves fades from place to place, it does not pass between")
    if len(times_us) < frames:
        notes.append(f"{several(frames - len(times_us), 'frame is', 'frames are')} left out: the next one has the same time")
    return tuple(notes)
