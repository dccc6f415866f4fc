"""The ray caster: a street's parts and a camera pose in, pictures and object ids out. One thread, no GIL.

The camera never pitches or rolls and all parts stand upright. So the horizontal half of the ray test depends on the picture's
column alone: each part is tested once a column, and its faces become vertical spans with a z-buffer. Visibility is found
for S x S samples a pixel; a pixel whose samples all see one smooth surface is shaded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from eventspec.scenes import shapes as _s
from eventspec.scenes.shade import PAINT as SH_PAINT
from eventspec.scenes.shade import (
    AMBIENT,
    BACK,
    BEAM,
    BOTTOM,
    CROSS_0,
    CROSS_1,
    EXPOSURE,
    FRONT,
    GROUND,
    HAS_JUNCTION,
    LAMPS,
    LEFT,
    LIGHT,
    LOW_R,
    NOISE,
    RIGHT,
    SUN,
    SUN_X,
    SUN_Y,
    TILE,
    TINT_R,
    TOP,
    TOP_R,
    WINDOWS,
    ZEBRA_0,
    ZEBRA_1,
    blend,
    shade_ground,
    shade_part,
    sky,
)
from eventspec.scenes.shapes import Parts, build_parts, linear
from eventspec.scenes.world import FOCAL_WIDTHS, MID_S, World

X, Y, Z0, Z1, HALF_L, HALF_W, HX, HY = _s.X, _s.Y, _s.Z0, _s.Z1, _s.HALF_L, _s.HALF_W, _s.HX, _s.HY
VX, VY, SWING, RATE, PHASE, SHAPE, PAINT, OWNER = _s.VX, _s.VY, _s.SWING, _s.RATE, _s.PHASE, _s.SHAPE, _s.PAINT, _s.OWNER
BOX, ELLIPSOID, RING, BUILDING, CROWN, SHADOW = _s.BOX, _s.ELLIPSOID, _s.RING, _s.BUILDING, _s.CROWN, _s.SHADOW
OWNER_USER, OWNER_ZEBRA = _s.OWNER_USER, _s.OWNER_ZEBRA

LOOK = (PAINT, _s.RED, _s.GREEN, _s.BLUE, HALF_L, HALF_W, Z0, Z1, _s.SEED, OWNER, HX, HY)
"""Columns of the parts table the shader needs, in its own order, then owner and heading."""
LOOK_OWNER, LOOK_HX, LOOK_HY = 9, 10, 11

CAMERA_M = 1.5
NEAR_M = 0.3
RIM = 0.72
"""Inner over outer radius of a bicycle wheel."""
HORIZON = 0.46
GAMMA = _s.GAMMA


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; the focal length follows the width (82 px at 112), the horizon lies at 46 % of the height."""

    width: int = 112
    height: int = 112
    samples: int = 2

    @property
    def focal_px(self) -> float:
        return FOCAL_WIDTHS * self.width


@dataclass(frozen=True)
class Stage:
    """A street as tables: parts float64 [N, PART], face_light float64 [N, 6], light [LIGHT], ground [GROUND], tile [TILE, TILE]."""

    parts: Parts
    face_light: np.ndarray[Any, np.dtype[np.float64]]
    light: np.ndarray[Any, np.dtype[np.float64]]
    ground: np.ndarray[Any, np.dtype[np.float64]]
    tile: np.ndarray[Any, np.dtype[np.float64]]


def build_stage(world: World) -> Stage:
    """Everything that does not change during the clip."""
    rng = np.random.default_rng([world.scenery_seed, 1])
    light = _light(world.light, float(rng.uniform(0, 2 * math.pi)))
    ground = np.zeros(GROUND)
    if world.junction is not None:
        ground[HAS_JUNCTION] = 1.0
        ground[ZEBRA_0], ground[ZEBRA_1] = world.junction.zebra
        ground[CROSS_0], ground[CROSS_1] = world.junction.road
    parts = build_parts(world)
    return Stage(parts, _face_light(parts, light), light, ground, rng.uniform(-1, 1, (TILE, TILE)))


def _light(name: str, sun_angle: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    light = np.zeros(LIGHT)
    light[SUN_X], light[SUN_Y] = math.cos(sun_angle), math.sin(sun_angle)
    ambient, sun, beam, windows, lamps, tint, top, low, exposure, noise = {
        "day": (0.45, 0.60, 0.0, 0.0, 0.75, (1.02, 1.0, 0.96), (96, 146, 214), (206, 222, 240), 1.0, 0.012),
        "dusk": (0.30, 0.26, 0.0, 0.25, 0.8, (1.06, 0.98, 0.92), (142, 132, 168), (236, 172, 142), 1.25, 0.018),
        "night": (0.11, 0.02, 0.55, 0.34, 0.6, (0.96, 0.98, 1.06), (8, 11, 24), (24, 28, 46), 1.6, 0.03),
    }[name]
    light[AMBIENT], light[SUN], light[BEAM], light[WINDOWS], light[LAMPS] = ambient, sun, beam, windows, lamps
    light[TINT_R : TINT_R + 3] = tint
    light[TOP_R : TOP_R + 3] = np.array(linear(*top)) / exposure
    light[LOW_R : LOW_R + 3] = np.array(linear(*low)) / exposure
    light[EXPOSURE], light[NOISE] = exposure, noise
    return light


def _face_light(parts: Parts, light: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64 [N, 6] for front, back, right, left, top, bottom: headings are constant, so is the light on a face."""
    hx, hy = parts[:, HX], parts[:, HY]
    sun = np.stack([light[SUN_X] * hx + light[SUN_Y] * hy, light[SUN_X] * hy - light[SUN_Y] * hx], axis=1)
    sides = np.stack([sun[:, 0], -sun[:, 0], sun[:, 1], -sun[:, 1]], axis=1)
    out = np.empty((len(parts), 6))
    out[:, :4] = light[AMBIENT] + light[SUN] * (0.3 + 0.6 * np.maximum(0.0, sides))
    out[:, TOP] = light[AMBIENT] + light[SUN] * 0.95
    out[:, BOTTOM] = light[AMBIENT] * 0.5
    return out


# ------------------------------------------------------------------------------------------------------ compiled core
@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _span(zbuf, surf, column, top, bottom, depth, code):  # type: ignore[no-untyped-def]
    """A vertical face: constant depth over rows [top, bottom)."""
    for row in range(top, bottom):
        if depth < zbuf[column, row]:
            zbuf[column, row] = depth
            surf[column, row] = code


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _flat(zbuf, surf, column, top, bottom, rise, middle, scale, code):  # type: ignore[no-untyped-def]
    """A level face `rise` metres above the camera (negative: below it) over rows [top, bottom)."""
    for row in range(top, bottom):
        depth = rise * scale / (middle - (row + 0.5))
        if depth < zbuf[column, row]:
            zbuf[column, row] = depth
            surf[column, row] = code


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _row_of(slope, middle, scale, rows):  # type: ignore[no-untyped-def]
    """First sample row whose centre lies below a slope."""
    return max(0, min(rows, int(math.ceil(middle - slope * scale - 0.5))))


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _columns(right, ahead, half_l, half_w, al, aw, bl, bw, columns, scale):  # type: ignore[no-untyped-def]
    """Sample columns [first, last) a footprint can touch; all of them when it reaches behind the near plane."""
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
    first = int(math.floor(low * scale + 0.5 * columns - 0.5))
    last = int(math.ceil(high * scale + 0.5 * columns - 0.5)) + 1
    return max(0, first), min(columns, last)


@njit(cache=True, nogil=True, error_model="numpy")
def _trace_ellipsoid(part, code, right, ahead, first, last, columns, rows, scale, middle, zbuf, surf):  # type: ignore[no-untyped-def]
    rz, zc = 0.5 * (part[Z1] - part[Z0]), 0.5 * (part[Z1] + part[Z0]) - CAMERA_M
    radius = part[HALF_L]
    for column in range(first, last):
        u = (column + 0.5 - 0.5 * columns) / scale
        norm = u * u + 1.0
        depth = (right * u + ahead) / norm
        chord = radius * radius - (right * right + ahead * ahead - depth * depth * norm)
        if chord <= 0.0 or depth <= NEAR_M:
            continue
        chord = math.sqrt(chord)
        half = rz * chord / radius
        top = _row_of((zc + half) / depth, middle, scale, rows)
        bottom = _row_of((zc - half) / depth, middle, scale, rows)
        _span(zbuf, surf, column, top, bottom, max(NEAR_M, depth - chord / math.sqrt(norm)), code)


@njit(cache=True, nogil=True, error_model="numpy")
def _trace(parts, time_s, pose, columns, rows, scale, middle, zbuf, surf):  # type: ignore[no-untyped-def]
    """Fill zbuf float32 and surf int16 [columns, rows] (-1: ground or sky; else part * 8 + face)."""
    zbuf[:] = 1e9
    surf[:] = -1
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    tau = time_s - MID_S
    for index in range(parts.shape[0]):
        part = parts[index]
        hx, hy, shape, hub = part[HX], part[HY], part[SHAPE], 0.0
        swing = part[SWING] * math.sin(part[RATE] * time_s + part[PHASE]) if part[SWING] > 0.0 else 0.0
        dx = part[X] + part[VX] * tau + hx * swing - pose[0]
        dy = part[Y] + part[VY] * tau + hy * swing - pose[1]
        right, ahead = dx * cos + dy * sin, -dx * sin + dy * cos
        # the part's own axes (l along, w to its right) seen from the camera: a = ahead share, b = right share
        al, bl = -hx * sin + hy * cos, hx * cos + hy * sin
        aw, bw = -hy * sin - hx * cos, hy * cos - hx * sin
        half_l, half_w = part[HALF_L], part[HALF_W]
        first, last = _columns(right, ahead, half_l, half_w, al, aw, bl, bw, columns, scale)
        if first >= last:
            continue
        if shape == ELLIPSOID:
            _trace_ellipsoid(part, index * 8 + RIGHT, right, ahead, first, last, columns, rows, scale, middle, zbuf, surf)
            continue
        ol, ow = -(right * bl + ahead * al), -(right * bw + ahead * aw)  # the camera in the part's axes
        z0, z1 = part[Z0] - CAMERA_M, part[Z1] - CAMERA_M
        for column in range(first, last):
            u = (column + 0.5 - 0.5 * columns) / scale
            dl, dw = al + u * bl, aw + u * bw
            if abs(dl) < 1e-9:
                dl = 1e-9
            if abs(dw) < 1e-9:
                dw = 1e-9
            l_in, l_out = (-half_l - ol) / dl, (half_l - ol) / dl
            if l_in > l_out:
                l_in, l_out = l_out, l_in
            w_in, w_out = (-half_w - ow) / dw, (half_w - ow) / dw
            if w_in > w_out:
                w_in, w_out = w_out, w_in
            enter, leave = max(l_in, w_in), min(l_out, w_out)
            if enter >= leave or leave <= NEAR_M:
                continue
            enter = max(enter, NEAR_M)
            if l_in > w_in:
                face = FRONT if dl < 0.0 else BACK
            else:
                face = RIGHT if dw < 0.0 else LEFT
            low, high, hole = z0, z1, 0.0
            if shape != BOX and face >= RIGHT:  # round, seen from the side
                s, hub = ol + enter * dl, 0.5 * (z0 + z1)
                half = math.sqrt(max(0.0, half_l * half_l - s * s))
                low, high = hub - half, hub + half
                if shape == RING:
                    hole = math.sqrt(max(0.0, half_l * half_l * RIM * RIM - s * s))
            top = _row_of(high / enter, middle, scale, rows)
            bottom = _row_of(low / enter, middle, scale, rows)
            if hole > 0.0:
                inner = _row_of((hub + hole) / enter, middle, scale, rows)
                _span(zbuf, surf, column, top, inner, enter, index * 8 + face)
                top = _row_of((hub - hole) / enter, middle, scale, rows)
            _span(zbuf, surf, column, top, bottom, enter, index * 8 + face)
            if shape != BOX:
                continue
            if high < 0.0:
                _flat(zbuf, surf, column, _row_of(high / leave, middle, scale, rows), top, high, middle, scale, index * 8 + TOP)
            if low > 0.0:
                _flat(zbuf, surf, column, bottom, _row_of(low / leave, middle, scale, rows), low, middle, scale, index * 8 + BOTTOM)


@njit(cache=True, nogil=True, error_model="numpy")
def _resolve(looks, face_light, light, ground, tile, moved, pose, size, count, focal, horizon, zbuf, surf, seen, still, rgb):  # type: ignore[no-untyped-def]
    """Shade a traced picture into rgb float32 [H, W, 3]. When we stand (`still`), a pixel of resting parts that are the same as
    in the last picture (`seen`, int32 like surf) keeps its colour. The loop body is long on purpose: see shade.py on calls."""
    width, height = size
    cam_x, cam_y, cos, sin = pose[0], pose[1], math.cos(pose[2]), math.sin(pose[2])
    for px in range(width):
        for py in range(height):
            first = surf[px * count, py * count]
            same, kept, inverse = True, still, 1e-9
            for i in range(count):
                for j in range(count):
                    code = surf[px * count + i, py * count + j]
                    same = same and code == first
                    kept = kept and code == seen[px * count + i, py * count + j]
                    kept = kept and (code < 0 or looks[code >> 3, LOOK_OWNER] < OWNER_USER)
            if kept:
                continue
            if same and first >= 0:
                paint = looks[first >> 3, SH_PAINT]
                same = paint == BUILDING or paint == CROWN or paint == SHADOW
            n = 1 if same else count
            pixel = 1.0 / (focal * n)
            rs, gs, bs = 0.0, 0.0, 0.0
            for sub in range(n * n):
                i, j = sub // n, sub % n
                u = (px + (i + 0.5) / n - 0.5 * width) / focal
                v = (horizon - (py + (j + 0.5) / n)) / focal
                code = surf[px * count + i, py * count + j]
                if code < 0 and v >= 0.0:
                    r, g, b = sky(light, v)
                    rs, gs, bs = rs + r, gs + g, bs + b
                    continue
                dx, dy = cos * u - sin, sin * u + cos
                index, face = code >> 3, code & 7
                shadow = code >= 0 and looks[index, SH_PAINT] == SHADOW
                if code < 0 or shadow:
                    depth = CAMERA_M / max(-v, 1e-6)
                    x, y = cam_x + depth * dx, cam_y + depth * dy
                    across, along = depth * pixel, depth * depth * pixel / CAMERA_M
                    wx = across * abs(cos) + along * abs(dx) + 1e-6
                    wy = across * abs(sin) + along * abs(dy) + 1e-6
                    grain = 1.0
                    if wy < 6.0:  # beyond, the texture is finer than a pixel
                        for octave in range(2):
                            qx, qy, strong = (x * 0.27, y * 0.19, 0.05) if octave == 0 else (x * 1.1, y * 1.1, 0.035)
                            ix, iy = int(math.floor(qx)) & (TILE - 1), int(math.floor(qy)) & (TILE - 1)
                            jx, jy = (ix + 1) & (TILE - 1), (iy + 1) & (TILE - 1)
                            soft = blend(tile[iy, ix], tile[iy, jx], tile[jy, ix], tile[jy, jx], qx, qy)
                            grain += strong * soft / (1.0 + wy * wy * (0.1 if octave == 0 else 3.0))
                    r, g, b = shade_ground(light, ground, grain, x, y, wx, wy, u, v, depth, 0.45 if shadow else 1.0)
                    rs, gs, bs = rs + r, gs + g, bs + b
                    continue
                depth = float(zbuf[px * count + i, py * count + j])
                if n < count:  # the pixel's middle: 1 / depth is linear over a flat face
                    for sample in range(count * count):
                        inverse += 1.0 / zbuf[px * count + sample // count, py * count + sample % count]
                    depth = count * count / inverse
                hx, hy = looks[index, LOOK_HX], looks[index, LOOK_HY]
                x, y = cam_x + depth * dx - moved[index, 0], cam_y + depth * dy - moved[index, 1]
                facing = abs(dx * hx + dy * hy) if face == FRONT or face == BACK else abs(dx * hy - dy * hx)
                part = (
                    looks[index, 0],
                    looks[index, 1],
                    looks[index, 2],
                    looks[index, 3],
                    looks[index, 4],
                    looks[index, 5],
                    looks[index, 6],
                    looks[index, 7],
                    looks[index, 8],
                )
                wz = depth * pixel + 1e-6
                ws = wz / max(facing, 1e-3)
                s, w, z = x * hx + y * hy, x * hy - y * hx, CAMERA_M + depth * v
                r, g, b = shade_part(light, part, face_light[index, face], face, s, w, z, ws, wz, u, v, depth)
                rs, gs, bs = rs + r, gs + g, bs + b
            share = 1.0 / (n * n)
            rgb[py, px, 0], rgb[py, px, 1], rgb[py, px, 2] = rs * share, gs * share, bs * share


@njit(cache=True, nogil=True, error_model="numpy")
def _identify(parts, ground, pose, focal, horizon, count, surf, ids):  # type: ignore[no-untyped-def]
    """Object ids uint8 [rows, columns] of a traced picture; the zebra is ground, so it is found by place."""
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    columns, rows = surf.shape
    for column in range(columns):
        u = ((column + 0.5) / count - 0.5 * columns / count) / focal
        for row in range(rows):
            code = surf[column, row]
            if code >= 0:
                ids[row, column] = int(parts[code >> 3, OWNER])
                continue
            ids[row, column] = 0
            v = (horizon - (row + 0.5) / count) / focal
            if ground[HAS_JUNCTION] > 0.0 and v < 0.0:
                depth = CAMERA_M / -v
                x, y = pose[0] + depth * (cos * u - sin), pose[1] + depth * (sin * u + cos)
                if abs(x) < 3.7 and ground[ZEBRA_0] <= y <= ground[ZEBRA_1]:
                    ids[row, column] = OWNER_ZEBRA


@njit(cache=True, nogil=True, error_model="numpy")
def _render(parts, looks, face_light, light, ground, tile, times, poses, size, count, focal, horizon, want_rgb, want_ids, rgb, luma, ids):  # type: ignore[no-untyped-def]
    """Render all times: every picture's luma, and RGB or ids of those that are wanted (want_* int64: row or -1)."""
    width, height = size
    columns, rows = width * count, height * count
    zbuf = np.empty((columns, rows), np.float32)
    surf, seen = np.empty((columns, rows), np.int32), np.empty((columns, rows), np.int32)
    scratch = np.empty((height, width, 3), np.float32)
    moved = np.empty((parts.shape[0], 2))
    for k in range(len(times)):
        tau = times[k] - MID_S
        for i in range(parts.shape[0]):
            swing = parts[i, SWING] * math.sin(parts[i, RATE] * times[k] + parts[i, PHASE])
            moved[i, 0] = parts[i, X] + parts[i, VX] * tau + parts[i, HX] * swing
            moved[i, 1] = parts[i, Y] + parts[i, VY] * tau + parts[i, HY] * swing
        _trace(parts, times[k], poses[k], columns, rows, focal * count, horizon * count, zbuf, surf)
        still = k > 0 and poses[k, 0] == poses[k - 1, 0] and poses[k, 1] == poses[k - 1, 1] and poses[k, 2] == poses[k - 1, 2]
        _resolve(looks, face_light, light, ground, tile, moved, poses[k], size, count, focal, horizon, zbuf, surf, seen, still, scratch)
        seen, surf = surf, seen
        if want_rgb[k] >= 0:
            rgb[want_rgb[k]] = scratch
        if want_ids[k] >= 0:
            _identify(parts, ground, poses[k], focal, horizon, count, seen, ids[want_ids[k]])
        for y in range(height):
            for x in range(width):
                luma[k, y, x] = 0.299 * scratch[y, x, 0] + 0.587 * scratch[y, x, 1] + 0.114 * scratch[y, x, 2]


@dataclass(frozen=True)
class Shots:
    """Pictures of a clip. luma float32 [T, H, W] and rgb float32 [K, H, W, 3] are linear scene light;
    ids uint8 [M, S*H, S*W] are object ids on the sample grid."""

    luma: np.ndarray[Any, np.dtype[np.float32]]
    rgb: np.ndarray[Any, np.dtype[np.float32]]
    ids: np.ndarray[Any, np.dtype[np.uint8]]


def render(
    world: World, stage: Stage, camera: Camera, times_s: list[float], rgb_at: list[int], ids_at: list[int]
) -> Shots:
    """Render luma at every time, RGB at the indices `rgb_at` and ids at the indices `ids_at` of `times_s`."""
    times = np.array(times_s, np.float64)
    poses = np.array([world.ego.pose(t) for t in times_s], np.float64).reshape(-1, 3)
    want_rgb, want_ids = np.full(len(times), -1, np.int64), np.full(len(times), -1, np.int64)
    want_rgb[rgb_at] = np.arange(len(rgb_at))
    want_ids[ids_at] = np.arange(len(ids_at))
    height, width, count = camera.height, camera.width, camera.samples
    luma = np.empty((len(times), height, width), np.float32)
    rgb = np.empty((len(rgb_at), height, width, 3), np.float32)
    ids = np.empty((len(ids_at), height * count, width * count), np.uint8)
    _render(
        stage.parts,
        np.ascontiguousarray(stage.parts[:, LOOK]),
        stage.face_light,
        tuple(stage.light.tolist()),
        tuple(stage.ground.tolist()),
        stage.tile,
        times,
        poses,
        (width, height),
        count,
        camera.focal_px,
        HORIZON * height,
        want_rgb,
        want_ids,
        rgb,
        luma,
        ids,
    )
    return Shots(luma, rgb, ids)


def develop(
    rgb: np.ndarray[Any, np.dtype[np.float32]], light: np.ndarray[Any, np.dtype[np.float64]], rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Exposure, gamma and sensor noise: linear float32 [K, H, W, 3] to uint8 of the same shape."""
    shown = np.clip(rgb.astype(np.float64) * light[EXPOSURE], 0.0, 1.0) ** (1.0 / GAMMA)
    shown += light[NOISE] * rng.standard_normal(rgb.shape, np.float32)
    return (np.clip(shown, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
