"""The ray caster: a street and a camera in, pictures and object ids out. One thread, no GIL.

Visibility is found for S x S samples a pixel (trace.py); a pixel whose samples all see one smooth surface is shaded once
(shade.py), because that is cheaper and the surfaces filter themselves.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from eventspec.scenes import shapes as _s
from eventspec.scenes.shade import BACK, BOTTOM, FRONT, TOP, Eye, Ground, Hit, Light, Look, shade_ground, shade_part, sky
from eventspec.scenes.shapes import GAMMA, Solids, build_parts, linear
from eventspec.scenes.trace import Raster, identify, trace
from eventspec.scenes.world import FOCAL_WIDTHS, MID_S, World

X, Y, HX, HY, VX, VY, SWING, RATE, PHASE = _s.X, _s.Y, _s.HX, _s.HY, _s.VX, _s.VY, _s.SWING, _s.RATE, _s.PHASE
HALF_L, HALF_W, Z0, Z1, RED, GREEN, BLUE, SEED = _s.HALF_L, _s.HALF_W, _s.Z0, _s.Z1, _s.RED, _s.GREEN, _s.BLUE, _s.SEED
PAINT, BUILDING, CROWN, SHADOW, OWNER, OWNER_USER = _s.PAINT, _s.BUILDING, _s.CROWN, _s.SHADOW, _s.OWNER, _s.OWNER_USER

HORIZON = 0.46
SHADE = 0.45
"""How much skylight is left under a road user."""
LIGHTS = {
    "day": Light(0.45, 0.60, 0, 0, 0.0, 0.0, 0.75, (1.02, 1.0, 0.96), (96, 146, 214), (206, 222, 240), 1.0, 0.012),
    "dusk": Light(0.30, 0.26, 0, 0, 0.0, 0.25, 0.8, (1.06, 0.98, 0.92), (142, 132, 168), (236, 172, 142), 1.25, 0.018),
    "night": Light(0.11, 0.02, 0, 0, 0.55, 0.34, 0.6, (0.96, 0.98, 1.06), (8, 11, 24), (24, 28, 46), 1.6, 0.03),
}
"""Without the way to the sun, and with the sky's colours as they are displayed."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Camera(NamedTuple):
    """A pinhole camera; the focal length follows the width (82 px at 112), the horizon lies at 46 % of the height."""

    width: int = 112
    height: int = 112
    samples: int = 2


class Stage(NamedTuple):
    """A street as compiled functions read it: parts float64 [N, PART], face_light float64 [N, 6], light and ground."""

    parts: Solids
    face_light: Floats
    light: Light
    ground: Ground


@dataclass(frozen=True)
class Shots:
    """Pictures of a clip. luma float32 [T, H, W] and rgb float32 [K, H, W, 3] are linear scene light;
    ids uint8 [M, S*H, S*W] are object ids on the sample grid."""

    luma: np.ndarray[Any, np.dtype[np.float32]]
    rgb: np.ndarray[Any, np.dtype[np.float32]]
    ids: np.ndarray[Any, np.dtype[np.uint8]]


# --------------------------------------------------------------------------------------------------------------- the stage
def build_stage(world: World) -> Stage:
    """Everything that does not change during the clip."""
    rng = np.random.default_rng([world.scenery_seed, 1])
    kind, sun_angle = LIGHTS[world.light], float(rng.uniform(0, 2 * math.pi))
    top, low = (tuple(np.array(linear(*colour)) / kind.exposure) for colour in (kind.top, kind.low))
    light = kind._replace(sun_x=math.cos(sun_angle), sun_y=math.sin(sun_angle), top=top, low=low)
    road = world.junction
    ground = Ground(False, (0.0, 0.0), (0.0, 0.0)) if road is None else Ground(True, road.zebra, road.road)
    parts = build_parts(world)
    return Stage(parts, _face_light(parts, light), light, ground)


def _face_light(parts: Solids, light: Light) -> Floats:
    """float64 [N, 6] for front, back, right, left, top, bottom: headings are constant, so is the light on a face."""
    hx, hy = parts[:, HX], parts[:, HY]
    along, across = light.sun_x * hx + light.sun_y * hy, light.sun_x * hy - light.sun_y * hx
    out = np.empty((len(parts), 6))
    out[:, :4] = np.stack([along, -along, across, -across], axis=1)
    out[:, :4] = light.ambient + light.sun * (0.3 + 0.6 * np.maximum(0.0, out[:, :4]))
    out[:, TOP] = light.ambient + light.sun * 0.95
    out[:, BOTTOM] = light.ambient * 0.5
    return out


# ------------------------------------------------------------------------------------------------------ compiled core
@njit(nogil=True, error_model="numpy")
def _resolve(stage, camera, places, eye, raster, seen, still, rgb):  # type: ignore[no-untyped-def]
    """Shade a traced picture into rgb float32 [H, W, 3]. When we stand (`still`), a pixel of resting parts that are the same
    as in the last picture (`seen`, like surf) keeps its colour."""
    width, height, count = camera
    horizon, focal = HORIZON * height, FOCAL_WIDTHS * width
    parts, face_light, light, ground = stage
    zbuf, surf = raster.zbuf, raster.surf
    cx, cy, cos, sin = eye
    for px in range(width):
        for py in range(height):
            first = surf[px * count, py * count]
            same, kept, inverse = True, still, 0.0
            for sub in range(count * count):
                i, j = px * count + sub // count, py * count + sub % count
                code = surf[i, j]
                same = same and code == first
                kept = kept and code == seen[i, j] and (code < 0 or parts[code >> 3, OWNER] < OWNER_USER)
                inverse += 1.0 / zbuf[i, j]
            if kept:
                continue
            if same and first >= 0:
                same = parts[first >> 3, PAINT] in (BUILDING, CROWN, SHADOW)
            n = 1 if same else count
            pixel, share = 1.0 / (focal * n), 1.0 / (n * n)
            rs, gs, bs = 0.0, 0.0, 0.0
            for sub in range(n * n):
                u = (px + (sub // n + 0.5) / n - 0.5 * width) / focal
                v = (horizon - (py + (sub % n + 0.5) / n)) / focal
                code = surf[px * count + sub // n, py * count + sub % n]
                index, face = code >> 3, code & 7
                if code < 0 and v >= 0.0:
                    r, g, b = sky(light, v)
                elif code < 0 or parts[index, PAINT] == SHADOW:
                    r, g, b = shade_ground(light, ground, eye, u, v, pixel, 1.0 if code < 0 else SHADE)
                else:
                    t = float(zbuf[px * count + sub // n, py * count + sub % n])
                    if n < count:  # the pixel's middle: 1 / depth is linear over a flat face
                        t = count * count / inverse
                    row = parts[index]
                    hx, hy, dx, dy = row[HX], row[HY], cos * u - sin, sin * u + cos
                    x, y = cx + t * dx - places[index, 0], cy + t * dy - places[index, 1]
                    facing = abs(dx * hx + dy * hy) if face in (FRONT, BACK) else abs(dx * hy - dy * hx)
                    colour, size = (row[RED], row[GREEN], row[BLUE]), (row[HALF_L], row[HALF_W], row[Z0], row[Z1])
                    part = Look(row[PAINT], colour, *size, row[SEED])
                    s, w, wz = x * hx + y * hy, x * hy - y * hx, t * pixel + 1e-6
                    hit = Hit(face, s, w, wz / max(facing, 1e-3), wz, u, v, t)
                    r, g, b = shade_part(light, part, face_light[index, face], hit)
                rs, gs, bs = rs + r * share, gs + g * share, bs + b * share
            rgb[py, px, 0], rgb[py, px, 1], rgb[py, px, 2] = rs, gs, bs


def _compile(sources: int) -> Any:
    """The compiled loop over pictures. numba's cache looks at the file of the function alone; `sources` makes a change in any
    of the scene files a new entry, so that an update never runs the old pictures."""

    @njit(cache=True, nogil=True, error_model="numpy")
    def pictures(stage, camera, times, poses, wanted, luma, rgb, ids):  # type: ignore[no-untyped-def]
        """Every picture's luma; RGB and ids go to row wanted[k, 0] and wanted[k, 1], or nowhere when that is -1."""
        width, height, count = camera
        parts = stage.parts
        zbuf = np.empty((width * count, height * count), np.float32)
        surf, seen = np.empty(zbuf.shape, np.int32), np.empty(zbuf.shape, np.int32)
        picture, places = np.empty((height, width, 3), np.float32), np.empty((parts.shape[0], 2))  # places float64 [N, 2]
        for k in range(len(times) if sources >= 0 else 0):
            still = k > 0 and np.all(poses[k] == poses[k - 1])
            swing = parts[:, SWING] * np.sin(parts[:, RATE] * times[k] + parts[:, PHASE])
            places[:, 0] = parts[:, X] + parts[:, VX] * (times[k] - MID_S) + parts[:, HX] * swing
            places[:, 1] = parts[:, Y] + parts[:, VY] * (times[k] - MID_S) + parts[:, HY] * swing
            eye = Eye(poses[k, 0], poses[k, 1], math.cos(poses[k, 2]), math.sin(poses[k, 2]))
            raster = Raster(zbuf, surf, HORIZON * height * count, FOCAL_WIDTHS * width * count)
            trace(parts, places, eye, raster)
            _resolve(stage, camera, places, eye, raster, seen, still, picture)
            if wanted[k, 0] >= 0:
                rgb[wanted[k, 0]] = picture
            if wanted[k, 1] >= 0:
                identify(parts, stage.ground, eye, raster, ids[wanted[k, 1]])
            luma[k] = 0.299 * picture[:, :, 0] + 0.587 * picture[:, :, 1] + 0.114 * picture[:, :, 2]
            seen, surf = surf, seen

    return pictures


_pictures = _compile(
    zlib.crc32(b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in ("world", "shapes", "shade", "trace")))
)


# --------------------------------------------------------------------------------------------------------------- pictures
def render(world: World, stage: Stage, camera: Camera, times_s: list[float], rgb_at: list[int], ids_at: list[int]) -> Shots:
    """Render luma at every time, RGB at the indices `rgb_at` and ids at the indices `ids_at` of `times_s`."""
    poses = np.array([world.ego.pose(t) for t in times_s], np.float64).reshape(-1, 3)
    wanted = np.full((len(times_s), 2), -1, np.int64)
    wanted[rgb_at, 0], wanted[ids_at, 1] = np.arange(len(rgb_at)), np.arange(len(ids_at))
    width, height, count = camera
    luma = np.empty((len(times_s), height, width), np.float32)
    rgb = np.empty((len(rgb_at), height, width, 3), np.float32)
    ids = np.empty((len(ids_at), height * count, width * count), np.uint8)
    _pictures(stage, camera, np.array(times_s, np.float64), poses, wanted, luma, rgb, ids)
    return Shots(luma, rgb, ids)


def develop(
    rgb: np.ndarray[Any, np.dtype[np.float32]], light: Light, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Exposure, gamma and sensor noise: linear float32 [K, H, W, 3] to uint8 of the same shape."""
    shown: Floats = np.clip(rgb.astype(np.float64) * light.exposure, 0.0, 1.0) ** (1.0 / GAMMA)
    shown += light.noise * rng.standard_normal(rgb.shape, np.float32)
    return np.asarray(np.clip(shown, 0.0, 1.0) * 255.0 + 0.5, np.uint8)
