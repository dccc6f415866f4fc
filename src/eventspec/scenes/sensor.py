"""The event camera: log luminance against each pixel's memory, one event per threshold crossed. Compiled; seeded.

Model (after v2e's emulator): per-pixel ON and OFF thresholds, crossing times interpolated inside a sub-frame, uniform
background noise, and a refractory time that drops an event too soon after its pixel's last one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

FLOOR = 0.03
"""Added to linear luminance before the logarithm: the dark current that keeps black from being infinitely sensitive."""
THRESHOLD, THRESHOLD_SPREAD = 0.25, 0.02
NOISE_HZ = 0.1
"""Background events per pixel and second."""
REFRACTORY_US = 500

Events = tuple[
    np.ndarray[Any, np.dtype[np.uint16]],
    np.ndarray[Any, np.dtype[np.uint16]],
    np.ndarray[Any, np.dtype[np.int64]],
    np.ndarray[Any, np.dtype[np.uint8]],
]
"""x, y, t in microseconds, p (1 = brighter), all [E], sorted by t."""


@njit(cache=True, nogil=True, error_model="numpy")
def _emit(luma, on, off, step_us, where, when, sign):  # type: ignore[no-untyped-def]
    """Write pixel index, microsecond and polarity of every crossing, as many as fit; returns how many there are."""
    steps, pixels = luma.shape
    before = np.empty(pixels)
    for i in range(pixels):
        before[i] = math.log(luma[0, i] + FLOOR)
    memory = before.copy()
    room, e, last_us = len(where), 0, int((steps - 1) * step_us) - 1
    for k in range(1, steps):
        for i in range(pixels):
            if luma[k, i] == luma[k - 1, i]:
                continue
            now = math.log(luma[k, i] + FLOOR)
            change = now - memory[i]
            up = change >= on[i]
            if up or -change >= off[i]:
                theta = on[i] if up else -off[i]
                n = int(change / theta)
                for j in range(1, n + 1):
                    if e < room:
                        share = (memory[i] + j * theta - before[i]) / (now - before[i])
                        t = int(((k - 1) + min(1.0, max(0.0, share))) * step_us)
                        where[e], when[e], sign[e] = i, min(t, last_us), 1 if up else 0
                    e += 1
                memory[i] += n * theta
            before[i] = now
    return e


@njit(cache=True, nogil=True, error_model="numpy")
def _refract(where, when, pixels):  # type: ignore[no-untyped-def]
    """bool [E] of the time-sorted events that are not too soon after the last kept one of their pixel."""
    last = np.full(pixels, -1_000_000_000, np.int64)
    keep = np.zeros(len(where), np.bool_)
    for e in range(len(where)):
        if when[e] - last[where[e]] >= REFRACTORY_US:
            keep[e] = True
            last[where[e]] = when[e]
    return keep


def sense(luma: np.ndarray[Any, np.dtype[np.float32]], duration_us: int, rng: np.random.Generator) -> Events:
    """Events of luminance sub-frames float32 [T, H, W], the first at 0 and the last at `duration_us`."""
    steps, height, width = luma.shape
    pixels = height * width
    on = np.maximum(0.05, rng.normal(THRESHOLD, THRESHOLD_SPREAD, pixels))
    off = np.maximum(0.05, rng.normal(THRESHOLD, THRESHOLD_SPREAD, pixels))
    noise = int(rng.poisson(NOISE_HZ * pixels * duration_us / 1e6))
    flat, room = luma.reshape(steps, pixels), 20 * pixels
    while True:
        where, when, sign = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
        crossings = int(_emit(flat, on, off, duration_us / (steps - 1), where, when, sign))
        if crossings <= room:
            break
        room = crossings
    where = np.concatenate([where[:crossings], rng.integers(0, pixels, noise)])
    when = np.concatenate([when[:crossings], rng.integers(0, duration_us, noise)])
    sign = np.concatenate([sign[:crossings], rng.integers(0, 2, noise, np.uint8)])
    order = np.argsort(when, kind="stable")
    where, when, sign = where[order], when[order], sign[order]
    keep = _refract(where, when, pixels)
    where = where[keep]
    return (where % width).astype(np.uint16), (where // width).astype(np.uint16), when[keep], sign[keep]
