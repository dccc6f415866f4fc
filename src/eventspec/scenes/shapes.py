"""Turns a street into solid parts the ray caster can hit: boxes, discs and rings (wheels), ellipsoids (heads, tree crowns).

One row of the parts table, float64 [N, PART], is one solid; the columns are the constants below. Parts stand upright, so a
row needs one heading only. Colours are linear reflectances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eventspec.scenes.world import PAVING_M, SIZES_M, Mover, Signal, World

Solids = np.ndarray[tuple[int, int], np.dtype[np.float64]]

X, Y, Z0, Z1, HALF_L, HALF_W, HX, HY, VX, VY, SWING, RATE, PHASE, SHAPE, PAINT, RED, GREEN, BLUE, OWNER, SEED = range(20)
"""Middle at mid-clip, z range, half length and width, unit heading, velocity, swing along the heading (m, rad/s, rad)."""
PART = 20
BOX, DISC, ELLIPSOID, RING = range(4)
PLAIN, BUILDING, CAR_BODY, CAR_CABIN, TRUCK_LOAD, TRUCK_CAB, BUS, LAMP, CROWN, SHADOW, GLOW = range(11)

NOBODY, OWNER_BUILDING, OWNER_TREE, OWNER_RED, OWNER_GREEN, OWNER_ZEBRA, OWNER_POLE, OWNER_USER = 0, 1, 2, 3, 4, 5, 6, 8
"""Object ids: road user i is OWNER_USER + i."""

GAMMA = 1.8


def linear(red: float, green: float, blue: float) -> tuple[float, float, float]:
    """Display values 0-255 as linear reflectance."""
    return (red / 255) ** GAMMA, (green / 255) ** GAMMA, (blue / 255) ** GAMMA


def _linear(*colours: tuple[float, float, float]) -> tuple[tuple[float, float, float], ...]:
    return tuple(linear(*colour) for colour in colours)


CAR_PAINT = {
    "red": linear(215, 30, 35),
    "blue": linear(35, 80, 225),
    "green": linear(25, 155, 60),
    "yellow": linear(245, 205, 30),
    "white": linear(240, 240, 240),
    "black": linear(30, 30, 34),
}
_WALLS = _linear((196, 178, 152), (168, 160, 152), (176, 138, 118), (150, 152, 160), (188, 182, 160))
_COATS = _linear((214, 78, 66), (84, 128, 214), (224, 224, 220), (226, 196, 96), (176, 92, 190), (70, 176, 136))
_HEADS = _linear((240, 196, 168), (196, 142, 108), (222, 172, 136))
_TROUSERS = _linear((48, 56, 92), (84, 70, 58), (56, 56, 62))
_LOADS = _linear((206, 206, 200), (170, 172, 178), (196, 182, 150))
_CABS = _linear((96, 112, 140), (128, 122, 84), (124, 72, 62))
_BUSES = _linear((228, 140, 40), (60, 160, 170), (170, 60, 120))
_DARK = linear(34, 34, 38)


def build_parts(world: World) -> Solids:
    """All solids of the street, float64 [N, PART]."""
    rng = np.random.default_rng(world.scenery_seed)
    rows: list[list[float]] = []
    _buildings(rng, world, rows)
    _trees(rng, world, rows)
    if world.signal is not None:
        _signal(world.signal, rows)
    for index, mover in enumerate(world.movers):
        {"pedestrian": _pedestrian, "cyclist": _cyclist}.get(mover.kind, _vehicle)(mover, OWNER_USER + index, rows)
    return np.array(rows, np.float64).reshape(-1, PART)


@dataclass(frozen=True)
class Solid:
    """A part wherever it stands: z range, half length and width, colour, object id, paint and shape."""

    z: tuple[float, float]
    half: tuple[float, float]
    colour: tuple[float, float, float]
    owner: int
    paint: int = PLAIN
    shape: int = BOX


def _row(at: tuple[float, float], solid: Solid, heading: tuple[float, float] = (0.0, 1.0), seed: float = 0.0) -> list[float]:
    row = [0.0] * PART
    row[X], row[Y], row[Z0], row[Z1], row[HALF_L], row[HALF_W], row[HX], row[HY] = *at, *solid.z, *solid.half, *heading
    row[SHAPE], row[PAINT], row[RED], row[GREEN], row[BLUE] = solid.shape, solid.paint, *solid.colour
    row[OWNER], row[SEED] = solid.owner, seed
    return row


def _blocked(world: World, low: float, high: float, margin: float) -> bool:
    if world.junction is None:
        return False
    return high > world.junction.road[0] - margin and low < world.junction.road[1] + margin


def _buildings(rng: np.random.Generator, world: World, rows: list[list[float]]) -> None:
    for side in (-1.0, 1.0):
        y = float(rng.uniform(-8.0, 0.0))
        while y < 85.0:
            length, gap = float(rng.uniform(6.0, 14.0)), float(rng.choice((0.0, 0.0, 2.5, 5.0)))
            height, back = float(rng.uniform(5.0, 15.0)), float(rng.uniform(9.6, 12.5))
            wall, seed = _WALLS[int(rng.integers(len(_WALLS)))], float(rng.integers(1 << 16))
            if not _blocked(world, y, y + length, 2.2):
                at = (side * (back + 4.0), y + length / 2)
                rows.append(_row(at, Solid((0.0, height), (length / 2, 4.0), wall, OWNER_BUILDING, paint=BUILDING), seed=seed))
            y += length + gap
    if rng.random() < 0.6:  # a house closes the street far away
        at, wall = (float(rng.uniform(-6, 6)), 105.0), _WALLS[int(rng.integers(len(_WALLS)))]
        house = Solid((0.0, float(rng.uniform(8, 18))), (4.0, 16.0), wall, OWNER_BUILDING, BUILDING)
        rows.append(_row(at, house, seed=7.0))


def _trees(rng: np.random.Generator, world: World, rows: list[list[float]]) -> None:
    for side in (-1.0, 1.0):
        y = float(rng.uniform(4.0, 14.0))
        while y < 60.0:
            x = side * float(rng.uniform(7.0, PAVING_M + 0.4))
            trunk, top, wide = float(rng.uniform(1.9, 2.6)), float(rng.uniform(4.2, 6.5)), float(rng.uniform(1.0, 1.7))
            shade = float(rng.uniform(0.8, 1.2))
            if rng.random() < 0.6 and not _blocked(world, y, y, 2.0):
                rows.append(_row((x, y), Solid((0.0, trunk + 0.6), (0.16, 0.16), linear(92, 70, 50), OWNER_TREE)))
                red, green, blue = linear(62, 118, 48)
                leaf = (red * shade, green * shade, blue * shade)
                rows.append(_row((x, y), Solid((trunk, top), (wide, wide), leaf, OWNER_TREE, paint=CROWN, shape=ELLIPSOID)))
            y += float(rng.uniform(6.0, 14.0))


def _signal(signal: Signal, rows: list[list[float]]) -> None:
    """Pole, head, and two lamps of which one shines; oversized, so that the lit one covers pixels at 15 m."""
    x, y = signal.x, signal.y
    rows.append(_row((x, y), Solid((0.0, 2.4), (0.07, 0.07), linear(70, 72, 76), OWNER_POLE)))
    rows.append(_row((x, y), Solid((2.4, 3.9), (0.12, 0.36), linear(36, 38, 40), OWNER_POLE)))
    for name, low, owner in (("red", 3.22, OWNER_RED), ("green", 2.55, OWNER_GREEN)):
        lit = signal.colour == name
        colour = ((1.0, 0.06, 0.05) if name == "red" else (0.05, 0.95, 0.42)) if lit else linear(58, 56, 56)
        whose, paint = (owner, LAMP) if lit else (OWNER_POLE, PLAIN)
        rows.append(_row((x, y - 0.14), Solid((low, low + 0.52), (0.04, 0.27), colour, whose, paint=paint)))


# ---------------------------------------------------------------------------------------------------------- road users
def _part(mover: Mover, along: float, across: float, solid: Solid) -> list[float]:
    at = (mover.x + along * mover.hx + across * mover.hy, mover.y + along * mover.hy - across * mover.hx)
    row = _row(at, solid, (mover.hx, mover.hy), mover.look)
    row[VX], row[VY] = mover.vx, mover.vy
    return row


def _pick(choices: tuple[tuple[float, float, float], ...], look: float) -> tuple[float, float, float]:
    return choices[int(look * len(choices)) % len(choices)]


def _shadow(mover: Mover, rows: list[list[float]], grow: float = 0.15) -> None:
    length, width, _ = SIZES_M[mover.kind]
    half = (length / 2 + grow, width / 2 + grow)
    rows.append(_part(mover, 0.0, 0.0, Solid((0.0, 0.02), half, (0.0, 0.0, 0.0), NOBODY, SHADOW)))


_VEHICLES = {
    "car": ((-1.3, 1.3), 0.33),
    "truck": ((-2.6, -1.5, 2.6), 0.48),
    "bus": ((-3.0, 3.0), 0.47),
}
"""Where along it the axles are, and the radius of the wheels."""


def _vehicle(mover: Mover, owner: int, rows: list[list[float]]) -> None:
    _shadow(mover, rows)
    look = mover.look
    if mover.kind == "car":
        colour = CAR_PAINT[mover.colour or "white"]
        rows.append(_part(mover, 0.0, 0.0, Solid((0.22, 0.86), (2.1, 0.88), colour, owner, CAR_BODY)))
        rows.append(_part(mover, -0.25, 0.0, Solid((0.86, 1.45), (1.15, 0.78), colour, owner, CAR_CABIN)))
    elif mover.kind == "truck":
        rows.append(_part(mover, -0.85, 0.0, Solid((0.75, 3.2), (2.7, 1.2), _pick(_LOADS, look), owner, TRUCK_LOAD)))
        rows.append(_part(mover, 2.75, 0.0, Solid((0.45, 2.55), (0.8, 1.1), _pick(_CABS, look * 7 % 1), owner, TRUCK_CAB)))
        rows.append(_part(mover, -0.4, 0.0, Solid((0.45, 0.75), (3.0, 0.6), _DARK, owner)))
    else:
        rows.append(_part(mover, 0.0, 0.0, Solid((0.32, 3.1), (4.72, 1.22), _pick(_BUSES, look), owner, BUS)))
    axles, radius = _VEHICLES[mover.kind]
    across = SIZES_M[mover.kind][1] / 2 - 0.08
    wheel = Solid((0.0, 2 * radius), (radius, 0.1), linear(24, 24, 26), owner, PLAIN, DISC)
    rows += [_part(mover, along, side, wheel) for along in axles for side in (-across, across)]


def _pedestrian(mover: Mover, owner: int, rows: list[list[float]]) -> None:
    """Legs and arms swing in antiphase about once a second when walking."""
    coat, trousers = _pick(_COATS, mover.look), _pick(_TROUSERS, mover.look * 5 % 1)
    speed = math.hypot(mover.vx, mover.vy)
    _shadow(mover, rows, 0.0)
    for side, phase in ((-1.0, 0.0), (1.0, math.pi)):
        leg = _part(mover, 0.0, side * 0.13, Solid((0.0, 0.9), (0.15, 0.11), trousers, owner))
        arm = _part(mover, 0.0, side * 0.28, Solid((0.85, 1.45), (0.1, 0.06), coat, owner))
        for limb, reach, offset in ((leg, 0.26, phase), (arm, 0.2, phase + math.pi)):
            if speed > 0:
                limb[SWING], limb[RATE], limb[PHASE] = reach, 2 * math.pi * (0.55 + 0.4 * speed), offset + 6.28 * mover.look
            rows.append(limb)
    rows.append(_part(mover, 0.0, 0.0, Solid((0.85, 1.5), (0.21, 0.23), coat, owner)))
    head = Solid((1.48, 1.9), (0.19, 0.19), _pick(_HEADS, mover.look * 3 % 1), owner, PLAIN, ELLIPSOID)
    rows.append(_part(mover, 0.0, 0.0, head))


def _cyclist(mover: Mover, owner: int, rows: list[list[float]]) -> None:
    """Two wheels, a frame, pedalling legs, a leaning rider, a white front and a red rear light."""
    coat = _pick(_COATS, mover.look)
    _shadow(mover, rows, 0.0)
    for along in (-0.55, 0.55):
        rows.append(_part(mover, along, 0.0, Solid((0.0, 0.7), (0.35, 0.05), linear(28, 28, 30), owner, PLAIN, RING)))
    rows.append(_part(mover, 0.0, 0.0, Solid((0.55, 0.7), (0.45, 0.04), linear(200, 200, 196), owner)))
    for side, phase in ((-1.0, 0.0), (1.0, math.pi)):
        leg = _part(mover, 0.0, side * 0.14, Solid((0.3, 0.95), (0.13, 0.1), _pick(_TROUSERS, mover.look * 5 % 1), owner))
        leg[SWING], leg[RATE], leg[PHASE] = 0.14, 2 * math.pi * 1.4, phase + 6.28 * mover.look
        rows.append(leg)
    rows.append(_part(mover, -0.05, 0.0, Solid((0.9, 1.52), (0.27, 0.26), coat, owner)))
    rows.append(_part(mover, 0.38, 0.0, Solid((1.02, 1.18), (0.22, 0.3), coat, owner)))
    rows.append(_part(mover, 0.12, 0.0, Solid((1.49, 1.85), (0.19, 0.18), linear(236, 236, 230), owner, PLAIN, ELLIPSOID)))
    rows.append(_part(mover, 0.62, 0.0, Solid((0.85, 1.0), (0.04, 0.08), (1.0, 1.0, 0.92), owner, GLOW)))
    rows.append(_part(mover, -0.45, 0.0, Solid((0.7, 0.86), (0.04, 0.08), (1.0, 0.04, 0.03), owner, GLOW)))
