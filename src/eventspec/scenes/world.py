"""Draws one street from a seed: how we move, the light, the junction, and who is on the road. It knows no pixels.

World frame, metres: x to the right, y along our road, z up, origin on the road's centre line abreast of the camera at
mid-clip. Angles are radians, counter-clockwise; heading 0 looks along +y. Traffic keeps to the right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from eventspec.scenes.facts import COLOURS, KINDS

CLIP_S = 1.0
MID_S = CLIP_S / 2
FOCAL_WIDTHS = 82 / 112
"""Focal length as a share of the picture's width: 82 px at 112 px."""

ROAD_M, STRIP_M, KERB_M, PAVING_M = 3.8, 6.0, 6.25, 8.8
"""|x| where the driving lanes, the parking strip, the kerb and the pavement end."""
PARKED_X_M = 4.9
BANDS_M = ((4.0, 6.9), (8.1, 11.9), (13.1, 16.9), (18.1, 21.9))
"""Where mid-clip distances may lie: at least 0.6 m inside the borders 7.5, 12.5, 17.5 and 22.5 m of the words."""
SIDE_BORDERS = (0.4, 0.6)
SIDE_GUARD = 0.03
"""Sides are read off the middle of a road user's visible width, as a share of the picture; no road user is within the guard."""

SIZES_M = {
    "car": (4.2, 1.8, 1.45),
    "truck": (7.2, 2.4, 3.2),
    "bus": (9.5, 2.5, 3.1),
    "pedestrian": (0.6, 0.7, 1.9),
    "cyclist": (1.8, 0.7, 1.85),
}
"""Length, width, height."""


@dataclass(frozen=True)
class Ego:
    """Our vehicle at mid-clip: m/s, rad/s, position x, heading, and the camera's own yaw against the heading."""

    state: str
    speed: float
    turn_rate: float
    x: float
    heading: float
    mount_yaw: float

    def pose(self, time_s: float) -> tuple[float, float, float]:
        """Camera x, y and yaw at a clip time; a turn is a circular arc."""
        tau = time_s - MID_S
        heading = self.heading + self.turn_rate * tau
        if self.turn_rate == 0.0:
            x, y = self.x - math.sin(heading) * self.speed * tau, math.cos(heading) * self.speed * tau
        else:
            radius = self.speed / self.turn_rate
            x = self.x + radius * (math.cos(heading) - math.cos(self.heading))
            y = radius * (math.sin(heading) - math.sin(self.heading))
        return x, y, heading + self.mount_yaw


@dataclass(frozen=True)
class Junction:
    """A zebra across our road at y in [zebra_y, zebra_y + 3] and a 7 m wide crossing road behind it."""

    zebra_y: float

    @property
    def zebra(self) -> tuple[float, float]:
        return self.zebra_y, self.zebra_y + 3.0

    @property
    def road(self) -> tuple[float, float]:
        return self.zebra_y + 3.6, self.zebra_y + 10.6


@dataclass(frozen=True)
class Signal:
    """A traffic light pole at the right edge of the road, "red" or "green"."""

    colour: str
    x: float
    y: float


@dataclass(frozen=True)
class Mover:
    """A road user: position of its middle at mid-clip, constant velocity, unit heading; `look` in [0, 1) varies paint."""

    kind: str
    action: str
    colour: str | None
    x: float
    y: float
    vx: float
    vy: float
    hx: float
    hy: float
    distance_m: int
    look: float

    def bounds(self, time_s: float, margin: float = 0.0) -> tuple[float, float, float, float]:
        """Footprint (x low, y low, x high, y high) at a clip time; headings are along an axis, so this is exact."""
        length, width, _ = SIZES_M[self.kind]
        along_x = abs(self.hx) > 0.5
        half_x, half_y = (length / 2, width / 2) if along_x else (width / 2, length / 2)
        tau = time_s - MID_S
        x, y = self.x + self.vx * tau, self.y + self.vy * tau
        return x - half_x - margin, y - half_y - margin, x + half_x + margin, y + half_y + margin

    def corners(self, ego: Ego, time_s: float) -> list[tuple[float, float]]:
        """The footprint's corners, metres (right of, ahead of) the camera."""
        x0, y0, x1, y1 = self.bounds(time_s)
        return [to_camera(ego.pose(time_s), x, y) for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))]

    def nearest_m(self, ego: Ego, time_s: float = MID_S) -> float:
        """Depth of the nearest footprint corner, metres ahead of the camera: what its ground contact shows in the picture."""
        return min(ahead for _, ahead in self.corners(ego, time_s))


@dataclass(frozen=True)
class World:
    """One street. `scenery_seed` feeds buildings, trees and textures, so that they cannot disturb the road users."""

    ego: Ego
    light: str
    junction: Junction | None
    signal: Signal | None
    movers: tuple[Mover, ...]
    scenery_seed: int


def make_world(rng: np.random.Generator) -> World:
    """Draw a street; a pure function of the generator's state."""
    ego = _ego(rng)
    light = str(rng.choice(("day", "dusk", "night"), p=(0.5, 0.2, 0.3)))
    junction = Junction(float(rng.uniform(0.8, 13.0))) if rng.random() < 0.5 else None
    signal = _signal(rng, ego, junction)
    world = World(ego, light, junction, signal, (), 0)
    for _ in range(int(rng.choice(5, p=(0.08, 0.27, 0.32, 0.22, 0.11)))):
        world = replace(world, movers=(*world.movers, *_place(rng, world)))
    return replace(world, scenery_seed=int(rng.integers(2**62)))


def _ego(rng: np.random.Generator) -> Ego:
    state = str(rng.choice(("stopped", "slow", "fast", "turning left", "turning right"), p=(0.22, 0.22, 0.22, 0.17, 0.17)))
    x, mount = float(rng.uniform(1.5, 2.2)), float(rng.uniform(-0.06, 0.06))
    if not state.startswith("turning"):
        speed = 0.0 if state == "stopped" else float(rng.uniform(*((2.5, 4.5) if state == "slow" else (8.5, 12.0))))
        return Ego(state, speed, 0.0, x, 0.0, mount)
    sign = 1.0 if state == "turning left" else -1.0
    rate = sign * float(rng.uniform(0.25, 0.42))
    return Ego(state, float(rng.uniform(3.0, 5.0)), rate, x, sign * float(rng.uniform(0.0, 0.15)), mount)


def _signal(rng: np.random.Generator, ego: Ego, junction: Junction | None) -> Signal | None:
    """A pole before the zebra, or after the junction when we are on the zebra already; its lamp is in view at mid-clip."""
    present, colour = rng.random() < 0.45, "red" if rng.random() < 0.5 else "green"
    y = float(rng.uniform(6.0, 14.0))
    if not present:
        return None
    if junction is not None:
        near, far = junction.zebra[0] - 0.6, junction.road[1] + 0.6
        y = near if near >= 5.5 else far
    x = 4.4
    right, ahead = to_camera(ego.pose(MID_S), x, y)
    if not 0.04 < 0.5 + FOCAL_WIDTHS * right / ahead < 0.94:
        return None
    return Signal(colour, x, y)


def to_camera(pose: tuple[float, float, float], x: float, y: float) -> tuple[float, float]:
    """A ground point as metres (right of, ahead of) the camera."""
    dx, dy = x - pose[0], y - pose[1]
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    return dx * cos + dy * sin, -dx * sin + dy * cos


# ---------------------------------------------------------------------------------------------------------- road users
_VEHICLE_ACTIONS = (("parked", "oncoming", "leading", "crossing left", "crossing right"), (0.3, 0.22, 0.2, 0.14, 0.14))
VEHICLES = ("car", "truck", "bus")
_ACTIONS = {
    **dict.fromkeys(VEHICLES, _VEHICLE_ACTIONS),
    "pedestrian": (("standing", "crossing left", "crossing right"), (0.36, 0.32, 0.32)),
    "cyclist": (("oncoming", "leading", "crossing left", "crossing right"), (0.26, 0.28, 0.23, 0.23)),
}


def _place(rng: np.random.Generator, world: World) -> tuple[Mover, ...]:
    """One more road user that fits, or none when the street is too full for its kind.

    The kind is kept through all tries, so that crowded streets do not turn trucks into pedestrians.
    """
    kind = str(rng.choice(KINDS, p=(0.40, 0.10, 0.08, 0.27, 0.15)))
    colour = str(rng.choice(COLOURS)) if kind == "car" else None
    look = float(rng.random())
    for _ in range(12):
        action = _action(rng, kind, world.junction)
        band = int(rng.integers(4))
        someone = Mover(kind, action, colour, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5 * (band + 1), look)
        for _ in range(12):
            mover = _draw(rng, someone, band, world)
            if mover is not None and _fits(mover, world):
                return (mover,)
    return ()


def _action(rng: np.random.Generator, kind: str, junction: Junction | None) -> str:
    names, weights = _ACTIONS[kind]
    action = str(rng.choice(names, p=weights))
    while junction is None and kind in VEHICLES and action.startswith("crossing"):
        action = str(rng.choice(names, p=weights))
    return action


def _draw(rng: np.random.Generator, someone: Mover, band: int, world: World) -> Mover | None:
    """One try: a lane and a heading by action, then slid along the lane until the nearest corner is at a drawn depth."""
    kind, action, ego = someone.kind, someone.action, world.ego
    low, high = BANDS_M[band]
    if kind in ("pedestrian", "cyclist") and band == 3:
        high = 19.6  # beyond, a walker or rider can have fewer than 14 pixels
    depth = float(rng.uniform(low, high))
    speed = _speed(rng, kind, action, ego)
    if action.startswith("crossing"):
        sign = -1.0 if action == "crossing left" else 1.0
        share = float(rng.uniform(0.06, 0.94))
        jitter = float(rng.uniform(-0.5, 0.5))
        x, y = _on_ray(ego, share, depth + SIZES_M[kind][1] / 2)
        if kind in VEHICLES:
            assert world.junction is not None, "elsewhere no vehicle crosses (see `_action`)"
            y = world.junction.road[0] + (5.25 if sign < 0 else 1.75) + jitter
        mover = replace(someone, x=x, y=y, vx=sign * speed, hx=sign)
        on_road = abs(x) < (5.8 if kind == "pedestrian" else 14.0)
        return mover if on_road and low <= mover.nearest_m(ego) <= high else None
    x, facing = _lane(rng, kind, action)
    mover = replace(someone, x=x, y=depth, vy=facing * speed, hy=facing)
    for _ in range(3):  # the depth of the nearest corner is nearly linear in y
        mover = replace(mover, y=mover.y + (depth - mover.nearest_m(ego)) / math.cos(ego.pose(MID_S)[2]))
    return mover


def _speed(rng: np.random.Generator, kind: str, action: str, ego: Ego) -> float:
    """Metres per second. One that leads keeps near our own pace and never below 2.5 m/s, so that it is seen to move."""
    if action in ("parked", "standing"):
        return 0.0
    if kind == "pedestrian":
        return float(rng.uniform(1.2, 2.2))
    if action == "leading":
        near, drawn = float(rng.uniform(-2.0, 2.0)) + ego.speed, float(rng.uniform(3.0, 5.5))
        return drawn if ego.speed == 0.0 or kind == "cyclist" else max(2.5, near)
    if kind == "cyclist":
        return float(rng.uniform(3.0, 5.5))
    return float(rng.uniform(5.0, 10.0)) if action == "oncoming" else float(rng.uniform(4.0, 8.0))


def _lane(rng: np.random.Generator, kind: str, action: str) -> tuple[float, float]:
    """(x, facing): facing is +1 along our way, -1 against it."""
    jitter = float(rng.uniform(-0.25, 0.25))
    side = 1.0 if rng.random() < 0.6 else -1.0
    if action == "parked":
        return side * PARKED_X_M + jitter * 0.4, side
    if action == "standing":
        return side * float(rng.uniform(4.0, 7.8)), side
    x = 2.9 if kind == "cyclist" else 1.9
    return (x + jitter, 1.0) if action == "leading" else (jitter - x, -1.0)


def _on_ray(ego: Ego, share: float, depth: float) -> tuple[float, float]:
    """The ground point at a share of the picture's width and a depth, at mid-clip."""
    x, y, yaw = ego.pose(MID_S)
    right = (share - 0.5) / FOCAL_WIDTHS * depth
    return x + right * math.cos(yaw) - depth * math.sin(yaw), y + right * math.sin(yaw) + depth * math.cos(yaw)


def screen_span(mover: Mover, ego: Ego, time_s: float = MID_S) -> tuple[float, float]:
    """(left, right) edge as shares of the picture's width, not clipped; needs every corner ahead of the camera."""
    shares = [0.5 + FOCAL_WIDTHS * right / max(ahead, 0.3) for right, ahead in mover.corners(ego, time_s)]
    return min(shares), max(shares)


def side_share(mover: Mover, ego: Ego, time_s: float = MID_S) -> float:
    """The middle of the visible width, as a share of the picture's width; outside [0, 1] when nothing is visible."""
    left, right = screen_span(mover, ego, time_s)
    return (max(left, 0.0) + min(right, 1.0)) / 2


_CHECK_S = tuple(i / 8 for i in range(9))
_OUR_WAY = (-1.2, -3.0, 1.2, 1.5)
"""From the camera (right low, ahead low, right high, ahead high): 2.4 m wide, from 3 m behind to 1.5 m before."""


def _fits(mover: Mover, world: World) -> bool:
    ego, junction, signal = world.ego, world.junction, world.signal
    left, right = screen_span(mover, ego)
    inside = min(right, 1.0) - max(left, 0.0)
    if inside < 0.5 * (right - left):
        return False
    if any(abs(side_share(mover, ego) - border) < SIDE_GUARD for border in SIDE_BORDERS):
        return False
    if mover.action == "parked" and junction is not None:
        _, low, _, high = mover.bounds(MID_S, margin=1.0)
        if high > junction.zebra[0] and low < junction.road[1]:
            return False
    if any(_hides(mover, other, ego) for other in world.movers):
        return False
    for t in _CHECK_S:
        if signal is not None and _overlap(mover.bounds(t, 0.4), (signal.x, signal.y) * 2):
            return False
        rights, aheads = zip(*mover.corners(ego, t), strict=True)
        if _overlap((min(rights), min(aheads), max(rights), max(aheads)), _OUR_WAY):
            return False
        if any(_overlap(mover.bounds(t, 0.25), other.bounds(t, 0.25)) for other in world.movers):
            return False
    return True


def _hides(one: Mover, other: Mover, ego: Ego) -> bool:
    """True when, at mid-clip, the nearer one covers more than 45 % of the farther one's visible width."""
    near, far = sorted((one, other), key=lambda mover: mover.nearest_m(ego))
    a, b = screen_span(near, ego)
    c, d = screen_span(far, ego)
    c, d = max(c, 0.0), min(d, 1.0)
    return min(b, d) - max(a, c) > 0.45 * (d - c)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether two rectangles (x low, y low, x high, y high) share area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
