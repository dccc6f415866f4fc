"""What each sample of the picture sees: visibility of upright parts, and object ids. Compiled functions only.

The camera never pitches or rolls and all parts stand upright. So the horizontal half of the ray test depends on the picture's
column alone: each part is tested once a column, and its faces become vertical spans with a z-buffer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from eventspec.scenes import shapes as _s
from eventspec.scenes.shade import BACK, BOTTOM, CAMERA_M, FRONT, LEFT, RIGHT, TOP

Z0, Z1, HALF_L, HALF_W, HX, HY, SHAPE, OWNER = _s.Z0, _s.Z1, _s.HALF_L, _s.HALF_W, _s.HX, _s.HY, _s.SHAPE, _s.OWNER
BOX, ELLIPSOID, RING, NOBODY, OWNER_ZEBRA = _s.BOX, _s.ELLIPSOID, _s.RING, _s.NOBODY, _s.OWNER_ZEBRA

NEAR_M = 0.3
RIM = 0.72
"""Inner over outer radius of a bicycle wheel."""
NOTHING = -1
"""Surface code of ground and sky; a face's code is part * 8 + face."""


class Raster(NamedTuple):
    """A picture in samples: depth float32 (metres) and surface code int32 of what each sees, [columns, rows]; the horizon's row
    and the focal length."""

    zbuf: np.ndarray[Any, np.dtype[np.float32]]
    surf: np.ndarray[Any, np.dtype[np.int32]]
    middle: float
    scale: float


@njit(nogil=True, error_model="numpy", forceinline=True)
def span(raster, column, top, bottom, depth, code):  # type: ignore[no-untyped-def]
    """A vertical face: constant depth over rows [top, bottom)."""
    for row in range(top, bottom):
        if depth < raster.zbuf[column, row]:
            raster.zbuf[column, row] = depth
            raster.surf[column, row] = code


@njit(nogil=True, error_model="numpy", forceinline=True)
def flat(raster, column, top, bottom, rise, code):  # type: ignore[no-untyped-def]
    """A level face `rise` metres above the camera (negative: below it) over rows [top, bottom)."""
    for row in range(top, bottom):
        depth = rise * raster.scale / (raster.middle - (row + 0.5))
        if depth < raster.zbuf[column, row]:
            raster.zbuf[column, row] = depth
            raster.surf[column, row] = code


@njit(nogil=True, error_model="numpy", forceinline=True)
def row_of(slope, raster):  # type: ignore[no-untyped-def]
    """First sample row whose centre lies below a slope."""
    return max(0, min(raster.zbuf.shape[1], math.ceil(raster.middle - slope * raster.scale - 0.5)))


@njit(nogil=True, error_model="numpy")
def columns_of(right, ahead, half_l, half_w, axes, columns, scale):  # type: ignore[no-untyped-def]
    """Sample columns [first, last) a footprint can touch; all of them when it reaches behind the near plane."""
    al, bl, aw, bw = axes
    low, high, nearest, farthest = 1e9, -1e9, 1e9, -1e9
    for i in range(4):
        s = half_l if i < 2 else -half_l
        w = half_w if i % 2 == 0 else -half_w
        r = right + s * bl + w * bw
        a = ahead + s * al + w * aw
        nearest, farthest = min(nearest, a), max(farthest, a)
        if a > NEAR_M:
            low, high = min(low, r / a), max(high, r / a)
    if farthest <= NEAR_M:
        return 0, 0
    if nearest <= NEAR_M:
        return 0, columns
    first = math.floor(low * scale + 0.5 * columns - 0.5)
    last = math.ceil(high * scale + 0.5 * columns - 0.5) + 1
    return max(0, first), min(columns, last)


@njit(nogil=True, error_model="numpy")
def trace_ellipsoid(raster, part, code, right, ahead, first, last):  # type: ignore[no-untyped-def]
    """An upright ellipsoid: in a column's vertical plane it is an ellipse, seen from outside."""
    columns, scale = raster.zbuf.shape[0], raster.scale
    rz, zc = 0.5 * (part[Z1] - part[Z0]), 0.5 * (part[Z1] + part[Z0]) - CAMERA_M
    radius = part[HALF_L]
    for column in range(first, last):
        u = (column + 0.5 - 0.5 * columns) / scale
        norm = u * u + 1.0
        depth = (right * u + ahead) / norm
        square = radius * radius - (right * right + ahead * ahead - depth * depth * norm)
        if square <= 0.0 or depth <= NEAR_M:
            continue
        chord = math.sqrt(square)
        half = rz * chord / radius
        top = row_of((zc + half) / depth, raster)
        bottom = row_of((zc - half) / depth, raster)
        span(raster, column, top, bottom, max(NEAR_M, depth - chord / math.sqrt(norm)), code)


@njit(nogil=True, error_model="numpy", forceinline=True)
def slab(half, origin, slope):  # type: ignore[no-untyped-def]
    """Depths where a ray enters and leaves |origin + depth * slope| <= half."""
    if abs(slope) < 1e-9:
        slope = 1e-9
    one, other = (-half - origin) / slope, (half - origin) / slope
    return min(one, other), max(one, other)


@njit(nogil=True, error_model="numpy")
def trace_box(raster, part, index, ol, ow, axes, first, last):  # type: ignore[no-untyped-def]
    """A box, or a wheel: a thin box whose broad sides are round. (ol, ow) is the camera in the part's axes."""
    columns, scale = raster.zbuf.shape[0], raster.scale
    al, bl, aw, bw = axes
    half_l, half_w, shape = part[HALF_L], part[HALF_W], part[SHAPE]
    z0, z1 = part[Z0] - CAMERA_M, part[Z1] - CAMERA_M
    hub = 0.5 * (z0 + z1)
    for column in range(first, last):
        u = (column + 0.5 - 0.5 * columns) / scale
        dl, dw = al + u * bl, aw + u * bw
        l_in, l_out = slab(half_l, ol, dl)
        w_in, w_out = slab(half_w, ow, dw)
        enter, leave = max(l_in, w_in), min(l_out, w_out)
        if enter >= leave or leave <= NEAR_M:
            continue
        enter = max(enter, NEAR_M)
        if l_in > w_in:
            face = FRONT if dl < 0.0 else BACK
        else:
            face = RIGHT if dw < 0.0 else LEFT
        low, high, hole = z0, z1, 0.0
        if shape != BOX and face in (RIGHT, LEFT):
            s = ol + enter * dl
            half = math.sqrt(max(0.0, half_l * half_l - s * s))
            low, high = hub - half, hub + half
            if shape == RING:
                hole = math.sqrt(max(0.0, half_l * half_l * RIM * RIM - s * s))
        top, bottom = row_of(high / enter, raster), row_of(low / enter, raster)
        code = index * 8 + face
        if hole > 0.0:
            span(raster, column, top, row_of((hub + hole) / enter, raster), enter, code)
            span(raster, column, row_of((hub - hole) / enter, raster), bottom, enter, code)
            continue
        span(raster, column, top, bottom, enter, code)
        if shape == BOX and high < 0.0:
            flat(raster, column, row_of(high / leave, raster), top, high, index * 8 + TOP)
        if shape == BOX and low > 0.0:
            end = row_of(low / leave, raster)
            flat(raster, column, bottom, end, low, index * 8 + BOTTOM)


@njit(nogil=True, error_model="numpy")
def trace(parts, places, eye, raster):  # type: ignore[no-untyped-def]
    """Fill a raster's depths and codes for parts that stand at places float64 [N, 2]."""
    raster.zbuf[:] = 1e9
    raster.surf[:] = NOTHING
    cos, sin = eye.cos, eye.sin
    for index in range(parts.shape[0]):
        part = parts[index]
        hx, hy = part[HX], part[HY]
        dx, dy = places[index, 0] - eye.x, places[index, 1] - eye.y
        right, ahead = dx * cos + dy * sin, -dx * sin + dy * cos
        # the part's own axes (l along, w to its right) as ahead (a) and right (b) shares
        axes = (-hx * sin + hy * cos, hx * cos + hy * sin, -hy * sin - hx * cos, hy * cos - hx * sin)
        first, last = columns_of(right, ahead, part[HALF_L], part[HALF_W], axes, raster.zbuf.shape[0], raster.scale)
        if first >= last:
            continue
        if part[SHAPE] == ELLIPSOID:
            trace_ellipsoid(raster, part, index * 8 + RIGHT, right, ahead, first, last)
            continue
        ol, ow = -(right * axes[1] + ahead * axes[0]), -(right * axes[3] + ahead * axes[2])
        trace_box(raster, part, index, ol, ow, axes, first, last)


@njit(nogil=True, error_model="numpy")
def identify(parts, ground, eye, raster, ids):  # type: ignore[no-untyped-def]
    """Object ids uint8 [rows, columns] of a traced picture; the zebra is ground, so it is found by place."""
    surf, middle, scale = raster.surf, raster.middle, raster.scale
    columns, rows = surf.shape
    for column in range(columns):
        u = (column + 0.5 - 0.5 * columns) / scale
        for row in range(rows):
            code = surf[column, row]
            ids[row, column] = int(parts[code >> 3, OWNER]) if code >= 0 else NOBODY
            v = (middle - (row + 0.5)) / scale
            if code < 0 and ground.junction and v < 0.0:
                depth = CAMERA_M / -v
                x, y = eye.x + depth * (eye.cos * u - eye.sin), eye.y + depth * (eye.sin * u + eye.cos)
                if abs(x) < 3.7 and ground.zebra[0] <= y <= ground.zebra[1]:
                    ids[row, column] = OWNER_ZEBRA
