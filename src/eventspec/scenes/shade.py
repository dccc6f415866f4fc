"""The looks of the street: what colour a ray's hit has. Compiled functions only; linear RGB in, linear RGB out.

Arguments are numbers and tuples of numbers: an array passed to a function costs reference counting, at every pixel.
Stripes and windows are box-filtered over the pixel's footprint, because point-sampled marks flicker, and a flicker is an
event. Texture is smooth noise below the sensor's contrast threshold.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from eventspec.scenes import shapes as _s
from eventspec.scenes.world import KERB_M, PAVING_M, ROAD_M, STRIP_M

Colour = tuple[float, float, float]
"""Linear red, green and blue."""

PLAIN, BUILDING, CAR_BODY, CAR_CABIN, TRUCK_LOAD = _s.PLAIN, _s.BUILDING, _s.CAR_BODY, _s.CAR_CABIN, _s.TRUCK_LOAD
TRUCK_CAB, BUS, LAMP, CROWN, GLOW = _s.TRUCK_CAB, _s.BUS, _s.LAMP, _s.CROWN, _s.GLOW

FRONT, BACK, RIGHT, LEFT, TOP, BOTTOM = range(6)
FOG_FROM_M, FOG_LENGTH_M = 25.0, 70.0
CAMERA_M = 1.5

GRASS, PAVING, KERB = (0.13, 0.20, 0.07), (0.29, 0.27, 0.245), (0.42, 0.41, 0.39)
STRIP, ASPHALT, ROAD_PAINT = (0.175, 0.165, 0.16), (0.135, 0.135, 0.14), (0.74, 0.74, 0.72)
GLASS, TAIL, PLATE, DARK = (0.035, 0.042, 0.055), (0.3, 0.02, 0.02), (0.6, 0.6, 0.55), (0.0, 0.0, 0.0)
WHITE_LAMP, RED_LAMP, SIGN = (0.9, 0.9, 0.8), (0.75, 0.03, 0.02), (0.5, 0.3, 0.03)

MARKS = np.array(
    [
        (paint, face, *across, *up, own, *colour, *emitted)
        for paint, face, across, up, own, colour, emitted in (
            (CAR_CABIN, FRONT, (-9, 0.86), (-9, 0.82), 0, GLASS, DARK),
            (CAR_CABIN, BACK, (-9, 0.86), (-9, 0.82), 0, GLASS, DARK),
            (CAR_CABIN, RIGHT, (0.08, 0.88), (-9, 0.8), 0, GLASS, DARK),
            (CAR_BODY, FRONT, (0.5, 0.93), (0.42, 0.8), 1, DARK, WHITE_LAMP),
            (CAR_BODY, FRONT, (-9, 0.45), (0.3, 0.62), 0, GLASS, DARK),  # the grille
            (CAR_BODY, FRONT, (-9, 9), (-9, 0.18), 0.4, DARK, DARK),
            (CAR_BODY, BACK, (0.58, 9), (0.5, 0.85), 0, TAIL, RED_LAMP),
            (CAR_BODY, BACK, (-9, 0.28), (0.34, 0.56), 0, PLATE, DARK),
            (CAR_BODY, BACK, (-9, 9), (-9, 0.2), 0.4, DARK, DARK),
            (CAR_BODY, RIGHT, (-9, 9), (-9, 0.12), 0.4, DARK, DARK),
            (TRUCK_LOAD, BACK, (0.68, 9), (-9, 0.16), 0, GLASS, RED_LAMP),
            (TRUCK_LOAD, BACK, (-9, 9), (-9, 0.16), 0, GLASS, DARK),  # the bumper
            (TRUCK_LOAD, BACK, (-9, 0.02), (-9, 9), 0.5, DARK, DARK),  # the doors' seam
            (TRUCK_LOAD, RIGHT, (-9, 9), (-9, 0.06), 0.3, DARK, DARK),
            (TRUCK_CAB, FRONT, (-9, 0.88), (0.52, 0.86), 0, GLASS, DARK),
            (TRUCK_CAB, FRONT, (0.58, 0.92), (0.1, 0.26), 1, DARK, WHITE_LAMP),
            (TRUCK_CAB, FRONT, (-9, 9), (-9, 0.09), 0, GLASS, DARK),
            (TRUCK_CAB, BACK, (0.66, 0.94), (0.12, 0.28), 1, DARK, RED_LAMP),
            (TRUCK_CAB, RIGHT, (-0.3, 0.7), (0.52, 0.86), 0, GLASS, DARK),
            (BUS, FRONT, (-9, 0.88), (0.42, 0.78), 0, GLASS, DARK),
            (BUS, FRONT, (-9, 0.6), (0.83, 0.95), 0, GLASS, SIGN),
            (BUS, FRONT, (0.58, 0.92), (0.1, 0.26), 1, DARK, WHITE_LAMP),
            (BUS, FRONT, (-9, 9), (-9, 0.09), 0, GLASS, DARK),
            (BUS, BACK, (-9, 0.8), (0.5, 0.8), 0, GLASS, DARK),
            (BUS, BACK, (0.66, 0.94), (0.12, 0.28), 1, DARK, RED_LAMP),
            (BUS, RIGHT, (-9, 0.86), (0.42, 0.78), 0, GLASS, DARK),
            (BUS, RIGHT, (-9, 9), (-9, 0.12), 0.45, DARK, DARK),
        )
    ]
)
"""What is not plain paint on a vehicle: on which paint and face (RIGHT: both sides), from where to where across (shares of the
half width from the middle; on a side of the half length, of a bus's pane) and up (shares of the height), how much of the
vehicle's own colour is left, what colour is added, and what it emits. The first that fits counts."""


class Light(NamedTuple):
    """The light of a clip: skylight, sun and the way to it, our headlights, lit windows, lamps; the tint of what is lit; the
    sky's colours up high and at the horizon; exposure and the noise of the frames."""

    ambient: float
    sun: float
    sun_x: float
    sun_y: float
    beam: float
    windows: float
    lamps: float
    tint: Colour
    top: Colour
    low: Colour
    exposure: float
    noise: float


class Ground(NamedTuple):
    """Whether a road crosses ours, and where (y) its zebra and its lanes begin and end."""

    junction: bool
    zebra: tuple[float, float]
    cross: tuple[float, float]


class Look(NamedTuple):
    paint: float
    colour: Colour
    half_l: float
    half_w: float
    z0: float
    z1: float
    seed: float


class Eye(NamedTuple):
    """Where the camera is, and the cosine and sine of its heading."""

    x: float
    y: float
    cos: float
    sin: float


class Hit(NamedTuple):
    """Where a ray meets a part: the face, the place along and across the part, the pixel's footprint there (sideways and
    upwards), the ray's slopes u and v, and its depth."""

    face: int
    s: float
    w: float
    ws: float
    wz: float
    u: float
    v: float
    t: float


@njit(nogil=True, error_model="numpy", forceinline=True)
def cover(x, width, low, high):  # type: ignore[no-untyped-def]
    """Share of the footprint [x - width/2, x + width/2] inside [low, high]."""
    part = min(x + 0.5 * width, high) - max(x - 0.5 * width, low)
    return max(0.0, min(1.0, part / width))


@njit(nogil=True, error_model="numpy", forceinline=True)
def stripes(x, width, period, share):  # type: ignore[no-untyped-def]
    """Share of the footprint on stripes that fill [k period, (k + share) period]."""
    a, b = (x - 0.5 * width) / period, (x + 0.5 * width) / period
    fa, fb = math.floor(a), math.floor(b)
    on = (fb - fa) * share + min(b - fb, share) - min(a - fa, share)
    return on / (b - a)


@njit(nogil=True, error_model="numpy", forceinline=True)
def chance(a, b, seed):  # type: ignore[no-untyped-def]
    """A fixed number in [0, 1) for a pair of cells."""
    h = (a * 374761393 + b * 668265263 + seed * 2246822519) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 1274126177) & 0xFFFFFFFF
    return ((h ^ (h >> 16)) & 0xFFFF) / 65536.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def smooth(x, y, seed):  # type: ignore[no-untyped-def]
    """Value noise in [-1, 1] with cells of size 1."""
    ix, iy = math.floor(x), math.floor(y)
    x, y = x - ix, y - iy
    x, y = x * x * (3.0 - 2.0 * x), y * y * (3.0 - 2.0 * y)
    a, b = chance(ix, iy, seed), chance(ix + 1, iy, seed)
    c, d = chance(ix, iy + 1, seed), chance(ix + 1, iy + 1, seed)
    near, far = a + (b - a) * x, c + (d - c) * x
    return 2.0 * (near + (far - near) * y) - 1.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def beam(light, u, v, t):  # type: ignore[no-untyped-def]
    """Our headlights at a point `t` metres ahead, seen at slopes u and v: a flat cone, dimmer above the horizon."""
    if light.beam <= 0.0:
        return 0.0
    reach = max(0.0, 1.0 - t / 38.0)
    wide = 1.0 / (1.0 + (u / 0.42) ** 4)
    high = 1.0 if v < 0.03 else 1.0 / (1.0 + ((v - 0.03) / 0.12) ** 2)
    return light.beam * reach * wide * high


@njit(nogil=True, error_model="numpy", forceinline=True)
def mix(one, share, other):  # type: ignore[no-untyped-def]
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share, one[2] + (other[2] - one[2]) * share


@njit(nogil=True, error_model="numpy", forceinline=True)
def scaled(colour, share):  # type: ignore[no-untyped-def]
    return colour[0] * share, colour[1] * share, colour[2] * share


@njit(nogil=True, error_model="numpy", forceinline=True)
def tinted(light, colour):  # type: ignore[no-untyped-def]
    return colour[0] * light.tint[0], colour[1] * light.tint[1], colour[2] * light.tint[2]


@njit(nogil=True, error_model="numpy", forceinline=True)
def sky(light, v):  # type: ignore[no-untyped-def]
    """Sky colour at slope v above the horizon."""
    return mix(light.low, min(1.0, max(0.0, v / 0.6)), light.top)


@njit(nogil=True, error_model="numpy", forceinline=True)
def fog(light, t, colour):  # type: ignore[no-untyped-def]
    """Fade to the horizon's colour beyond 25 m."""
    return colour if t <= FOG_FROM_M else mix(light.low, math.exp((FOG_FROM_M - t) / FOG_LENGTH_M), colour)


@njit(nogil=True, error_model="numpy", forceinline=True)
def ground_colour(ground, x, y, wx, wy):  # type: ignore[no-untyped-def]
    """Reflectance of the ground at (x, y), filtered over wx by wy metres."""
    ax, near_cross, cross = abs(x), False, 0.0
    if ground.junction:
        near_cross = ground.cross[0] - 2.0 - wy < y < ground.cross[1] + 2.0 + wy
    colour = ASPHALT
    if ax + 0.5 * wx > ROAD_M:
        colour = mix(GRASS, cover(x, wx, -PAVING_M, PAVING_M), PAVING)
        if near_cross:
            cross = cover(y, wy, ground.cross[0], ground.cross[1])
            colour = mix(colour, cover(y, wy, ground.cross[0] - 1.8, ground.cross[1] + 1.8), PAVING)
            colour = mix(colour, cover(y, wy, ground.cross[0] - 0.25, ground.cross[1] + 0.25), KERB)
            colour = mix(colour, cross, ASPHALT)
        if ax - 0.5 * wx < KERB_M:
            colour = mix(colour, cover(x, wx, -KERB_M, KERB_M) * (1.0 - cross), KERB)
            colour = mix(colour, cover(x, wx, -STRIP_M, STRIP_M) * (1.0 - cross), STRIP)
            colour = mix(colour, cover(x, wx, -ROAD_M, ROAD_M), ASPHALT)
    if ax - 0.5 * wx < ROAD_M:
        colour = mix(colour, road_paint(ground, x, y, wx, wy), ROAD_PAINT)
    return colour


@njit(nogil=True, error_model="numpy", forceinline=True)
def road_paint(ground, x, y, wx, wy):  # type: ignore[no-untyped-def]
    """Share of white paint on the driving lanes: centre dashes and edge lines, or zebra and stop line at a junction."""
    paint, lines = 0.0, 1.0
    if ground.junction and ground.zebra[0] - 1.2 - wy < y < ground.cross[1] + 0.5 + wy:
        z0, z1 = ground.zebra[0], ground.zebra[1]
        lines = 1.0 - cover(y, wy, z0 - 1.2, ground.cross[1] + 0.5)
        if y - wy < z1:
            bars = cover(y, wy, z0, z1) * stripes(x, wx, 1.1, 0.5) * cover(x, wx, -3.7, 3.7)
            paint = bars + cover(y, wy, z0 - 1.1, z0 - 0.75) * cover(x, wx, 0.1, 3.6)
    if lines > 0.0:
        if abs(x) - wx < 0.075:
            paint += lines * cover(x, wx, -0.075, 0.075) * stripes(y, wy, 6.0, 0.5)
        if abs(x) + wx > 3.5:
            paint += lines * cover(abs(x), wx, 3.5, 3.68)
    return min(1.0, paint)


@njit(nogil=True, error_model="numpy", forceinline=True)
def shade_ground(light, ground, eye, u, v, pixel, dim):  # type: ignore[no-untyped-def]
    """Linear RGB of the ground seen at slopes u, v; `pixel` is the footprint as a slope, dim < 1 is a shadow."""
    x, y, cos, sin = eye
    t = CAMERA_M / max(-v, 1e-6)
    dx, dy = cos * u - sin, sin * u + cos
    x, y = x + t * dx, y + t * dy
    across, along = t * pixel, t * t * pixel / CAMERA_M
    wx = across * abs(cos) + along * abs(dx) + 1e-6
    wy = across * abs(sin) + along * abs(dy) + 1e-6
    lit = (light.ambient + light.sun * 0.9) * dim + beam(light, u, v, t) * (0.5 + 0.5 * dim)
    if wy < 6.0:  # beyond, the texture is finer than a pixel
        coarse = 0.05 * smooth(x * 0.27, y * 0.19, 3) / (1.0 + wy * wy * 0.1)
        lit *= 1.0 + coarse + 0.035 * smooth(x * 1.1, y * 1.1, 5) / (1.0 + wy * wy * 3.0)
    return fog(light, t, tinted(light, scaled(ground_colour(ground, x, y, wx, wy), lit)))


@njit(nogil=True, error_model="numpy", forceinline=True)
def facade(light, part, face, s, z, ws, wz):  # type: ignore[no-untyped-def]
    """(wall share of reflectance, emitted light) of a house wall: windows on a 2.6 m x 3 m grid, some lit after dark."""
    if face >= TOP:
        return 0.75, 0.0
    top = part.z1 - 0.7
    inside = cover(z, wz, 0.9, top)
    windows = stripes(s + 40.0 * 2.6 + 0.6, ws, 2.6, 0.5) * stripes(z - 0.9, wz, 3.0, 0.5) * inside
    wall = 1.0 - 0.72 * windows + 0.12 * cover(z, wz, top + 0.35, part.z1)
    glow = 0.0
    if light.windows > 0.0 and windows > 0.0:
        detail = 1.0 / (1.0 + (max(ws, wz) / 2.0) ** 4)  # far away single windows blur to their mean
        column, floor = math.floor((s + 104.6) / 2.6), math.floor((z - 0.9) / 3.0)
        lit = 1.0 if chance(column, floor, int(part.seed) + 97 * face) < 0.35 else 0.0
        glow = light.windows * windows * (0.35 + (lit - 0.35) * detail)
    return wall, glow


@njit(nogil=True, error_model="numpy", forceinline=True)
def vehicle(part, face, s, w, z):  # type: ignore[no-untyped-def]
    """(reflectance, emitted at full lamp power) on a car, truck or bus; s along, w across, z up, all local."""
    up, across = (z - part.z0) / (part.z1 - part.z0), abs(w) / part.half_w
    if face in (RIGHT, LEFT):
        face, across = RIGHT, s / part.half_l
        if part.paint == CAR_CABIN:
            across = abs(across)
        elif part.paint == BUS:
            across = (across + 1.0) * 3.0 % 1.0
    for i in range(len(MARKS)):
        if part.paint != MARKS[i, 0] or face != MARKS[i, 1]:
            continue
        if MARKS[i, 2] < across < MARKS[i, 3] and MARKS[i, 4] < up < MARKS[i, 5]:
            own, emitted = scaled(part.colour, MARKS[i, 6]), (MARKS[i, 10], MARKS[i, 11], MARKS[i, 12])
            return (own[0] + MARKS[i, 7], own[1] + MARKS[i, 8], own[2] + MARKS[i, 9]), emitted
    return part.colour, DARK


@njit(nogil=True, error_model="numpy", forceinline=True)
def shade_part(light, part, lit, hit):  # type: ignore[no-untyped-def]
    """Linear RGB of a hit on one part; `lit` is the day- or skylight on that face."""
    face, s, w, ws, wz, u, v, t = hit
    paint, z = part.paint, CAMERA_M + t * v
    colour, emitted = part.colour, DARK
    if paint in (LAMP, GLOW):
        return fog(light, t, scaled(colour, 1.0 if paint == LAMP else 0.25 + 0.6 * light.lamps))
    if paint == BUILDING:
        share, glow = facade(light, part, face, s if face in (RIGHT, LEFT) else w, z, ws, wz)
        colour, emitted = scaled(colour, share), (glow, glow * 0.78, glow * 0.42)
    elif paint == CROWN:
        colour = scaled(colour, 0.55 + 0.6 * ((z - part.z0) / (part.z1 - part.z0)))
    elif paint != PLAIN:
        colour, emitted = vehicle(part, face, s, w, z)
        emitted = scaled(emitted, light.lamps)
    lit = lit + beam(light, u, v, t) * (0.8 if face != TOP else 0.25)
    seen = tinted(light, scaled(colour, lit))
    return fog(light, t, (seen[0] + emitted[0], seen[1] + emitted[1], seen[2] + emitted[2]))
