"""One second of street from one seed: frames, events, facts and dense labels. The same seed gives the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.errors import BadSetting
from eventspec.events.simulate import EventSensor, PixelModel
from eventspec.events.stream import EventStream
from eventspec.scenes.facts import ACTIONS, COLOURS, DISTANCES_M, KINDS, Facts, RoadUser
from eventspec.scenes.render import Camera, build_stage, develop, render
from eventspec.scenes.shapes import OWNER_BUILDING, OWNER_GREEN, OWNER_RED, OWNER_TREE, OWNER_USER, OWNER_ZEBRA
from eventspec.scenes.world import CLIP_S, MID_S, SIDE_BORDERS, Ego, Mover, World, make_world, side_share

FRAMES, WINDOWS, SUBFRAMES = 8, 5, 100
CLIP_US = int(CLIP_S * 1_000_000)
PIXELS = PixelModel(threshold=0.25, spread=0.02, noise_hz=0.1, refractory_us=500, floor=0.03)  # published clips depend on it
SPLITS = ("train", "calibration", "test")
_RANGE = 1 << 40

PATCHES = 8
KIND_BUILDING, KIND_TREE, KIND_RED, KIND_GREEN, KIND_ZEBRA = (len(KINDS) + 1 + i for i in range(5))
"""Values of the kind plane after 0 (background) and 1.. (KINDS)."""
PIXELS_USER, PIXELS_LAMP, PIXELS_ZEBRA = 14, 4, 40
"""Smallest visible size at mid-clip that the facts mention, in 112 x 112 pixels (samples / S^2, rounded)."""
OWNERS = 16
_TAKES = 0.25
"""The share of a patch that a road user must cover to be its label."""

U8 = np.ndarray[Any, np.dtype[np.uint8]]
I8 = np.ndarray[Any, np.dtype[np.int8]]
I64 = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class SceneClip:
    """frames uint8 [8, 112, 112, 3] at frame_times_us int64 [8]; events in [0, 1 000 000) us; frame_labels int8
    [8, 4, 8, 8] and window_labels int8 [5, 4, 8, 8] (middle of each 200 ms) hold the planes kind, action, colour and distance
    of 14 x 14 pixel patches; 0 means background or none."""

    seed: int
    frames: U8
    frame_times_us: I64
    events: EventStream
    facts: Facts
    frame_labels: I8
    window_labels: I8


def make_clip(seed: int) -> SceneClip:
    """Draw, render and sense one clip; a pure function of the seed."""
    scene, film_seed = np.random.SeedSequence(seed).spawn(2)
    return film(make_world(np.random.default_rng(scene)), film_seed, seed)


def film(world: World, noise: np.random.SeedSequence, seed: int = 0) -> SceneClip:
    """Render and sense a street; `noise` draws the grain of the frames and the event sensor's pixels, `seed` is its label."""
    grain, sensor = noise.spawn(2)
    stage, camera = build_stage(world), Camera()
    frame_us = [int((i + 0.5) * CLIP_US / FRAMES) for i in range(FRAMES)]
    window_at = [round((i + 0.5) * SUBFRAMES / WINDOWS) for i in range(WINDOWS)]
    times = [CLIP_S * k / SUBFRAMES for k in range(SUBFRAMES + 1)] + [us / 1e6 for us in frame_us]
    frame_at = list(range(SUBFRAMES + 1, SUBFRAMES + 1 + FRAMES))
    shots = render(world, stage, camera, times, frame_at, frame_at + window_at)
    pictures = shots.luma[: SUBFRAMES + 1]
    eye = EventSensor(pictures.shape[2], pictures.shape[1], PIXELS, np.random.default_rng(sensor))
    codes = [
        (KINDS.index(m.kind), ACTIONS.index(m.action), (None, *COLOURS).index(m.colour) - 1, DISTANCES_M.index(m.distance_m))
        for m in world.movers
    ]
    looks = np.array(codes, np.int8).reshape(-1, 4) + np.int8(1)  # 0 means none
    labels = label_planes(shots.ids, looks, camera.samples)
    middle = shots.ids[FRAMES + WINDOWS // 2]
    return SceneClip(
        seed,
        develop(shots.rgb, stage.light, np.random.default_rng(grain)),
        np.array(frame_us, np.int64),
        eye.see(pictures, 0, CLIP_US),
        _facts(world, pixel_counts(middle, camera.samples)),
        labels[:FRAMES],
        labels[FRAMES:],
    )


def _facts(world: World, pixels: I64) -> Facts:
    """What a careful viewer can tell: only what covers enough pixels at mid-clip is mentioned."""
    users = []
    for index, mover in sorted(enumerate(world.movers), key=lambda one: one[1].nearest_m(world.ego)):
        seen = int(pixels[OWNER_USER + index])
        if seen < PIXELS_USER:
            continue
        side, first, last = (_side(mover, world.ego, time_s) for time_s in (MID_S, 0.0, CLIP_S))
        metres = (max(5, 5 * round(mover.nearest_m(world.ego, time_s) / 5)) for time_s in (0.0, CLIP_S))
        look = (mover.kind, mover.action, mover.colour, mover.distance_m, side, seen, _trend(mover, world.ego))
        users.append(RoadUser(*look, first, last, *metres))
    signal = "none"
    if world.signal is not None and pixels[OWNER_RED if world.signal.colour == "red" else OWNER_GREEN] >= PIXELS_LAMP:
        signal = world.signal.colour
    junction = world.junction is not None and bool(pixels[OWNER_ZEBRA] >= PIXELS_ZEBRA)
    return Facts(world.ego.state, world.light, signal, junction, tuple(users))


def _side(mover: Mover, ego: Ego, time_s: float) -> str:
    share = side_share(mover, ego, time_s)
    return "left" if share < SIDE_BORDERS[0] else "right" if share > SIDE_BORDERS[1] else "ahead"


def _trend(mover: Mover, ego: Ego) -> str:
    before, after = mover.nearest_m(ego, 0.0), mover.nearest_m(ego, CLIP_S)
    if after < 1.0:
        return "passed"
    if before - after > 1.0:
        return "much closer" if before - after > 5.0 else "closer"
    return "farther" if after - before > 1.0 else "steady"


# ------------------------------------------------------------------------------------------------------------- dense labels
def pixel_counts(ids: U8, samples: int) -> I64:
    """int64 [OWNERS]: visible pixels by object id of one id map uint8 [S*H, S*W]."""
    counts = np.bincount(ids.ravel(), minlength=OWNERS)
    return np.asarray((counts + samples * samples // 2) // (samples * samples), np.int64)


def label_planes(ids: U8, looks: I8, samples: int) -> I8:
    """int8 [M, 4, 8, 8] (kind, action, colour, distance) from ids uint8 [M, S*H, S*W] and road users' codes int8 [U, 4].

    A road user or a shining lamp that is large enough for the facts also takes the patch that shows most of it: small things
    would otherwise never be a label.
    """
    out = np.zeros((len(ids), 4, PATCHES, PATCHES), np.int8)
    rows, columns = (np.arange(size) * PATCHES // size for size in ids.shape[1:])
    first = (rows[:, None] * PATCHES + columns) * OWNERS  # where the counts of a sample's patch begin
    for picture, planes in zip(ids, out, strict=True):
        counts = np.bincount((first + picture).ravel(), minlength=PATCHES * PATCHES * OWNERS)
        _label(counts.reshape(PATCHES, PATCHES, OWNERS), looks, samples * samples, planes)
    return out


def _label(counts: I64, looks: I8, per_pixel: int, planes: I8) -> None:
    """Fill planes int8 [4, 8, 8] of one picture."""
    names = np.zeros(OWNERS, np.int8)
    names[[OWNER_BUILDING, OWNER_TREE, OWNER_ZEBRA]] = KIND_BUILDING, KIND_TREE, KIND_ZEBRA
    planes[0] = names[np.argmax(counts[:, :, :OWNER_USER], axis=2)]
    owner = np.full(counts.shape[:2], -1)  # index of the road user that takes the patch
    if len(looks):
        users = counts[:, :, OWNER_USER : OWNER_USER + len(looks)]
        owner = np.where(np.max(users, axis=2) >= _TAKES * counts.sum(2), np.argmax(users, axis=2), -1)
        seen = users.sum((0, 1))
        for user in np.argsort(-seen, kind="stable"):  # the smallest last: it has but one patch to show itself
            best = np.unravel_index(np.argmax(users[:, :, user]), owner.shape)
            small = seen[user] < 2 * PIXELS_USER * per_pixel
            if seen[user] >= PIXELS_USER * per_pixel and (owner[best] < 0 or small):
                owner[best] = user
        for plane in range(4):
            planes[plane][owner >= 0] = looks[owner[owner >= 0], plane]
    for lamp, kind in ((OWNER_RED, KIND_RED), (OWNER_GREEN, KIND_GREEN)):
        shows = counts[:, :, lamp]
        best = np.unravel_index(np.argmax(shows), shows.shape)
        spare = owner[best] < 0 or (owner == owner[best]).sum() > 1
        if shows.sum() >= PIXELS_LAMP * per_pixel and spare:
            planes[:, best[0], best[1]] = kind, 0, 0, 0


# ------------------------------------------------------------------------------------------------------------------- splits
def check_split(split: str) -> None:
    if split not in SPLITS:
        raise BadInput(f"split {split!r} does not exist: choose one of {', '.join(SPLITS)}")


def split_seed(split: str, seed: int, index: int) -> int:
    """The clip seed of one clip of a split. Splits are disjoint ranges for every user seed, and within a split and seed no two
    indices share a clip: the map of the index is a bijection of 2**40 values."""
    check_split(split)
    if not -(2**63) <= seed < 2**63:
        raise BadSetting("seed", f"{seed} would give another seed's clips: choose one in [-2**63, 2**63)")
    if not 0 <= index < _RANGE:
        raise BadInput(f"clip index {index} is outside [0, 2**40): a split has no more clips")
    mask, value = _RANGE - 1, index
    key = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for round_ in range(3):
        value = (value + (key >> (8 * round_))) & mask
        value = (value * 0x5851F42D4C957F2D) & mask  # odd, so invertible mod 2**40
        value ^= value >> 19
    return SPLITS.index(split) * _RANGE + value
