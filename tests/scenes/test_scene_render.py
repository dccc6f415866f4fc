"""The column-wise ray caster against a plain ray-box test, and the pictures' light."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eventspec.scenes import shapes
from eventspec.scenes.render import HORIZON, Camera, Stage, build_stage, develop, render
from eventspec.scenes.shade import CAMERA_M
from eventspec.scenes.world import FOCAL_WIDTHS, MID_S, World, make_world


def world_where(**wanted: object) -> World:
    """The first drawn street whose fields are as wanted; `movers` is their least number."""
    for seed in range(1000):
        world = make_world(np.random.default_rng(seed))
        least = int(str(wanted.get("movers", 0)))
        if world.ego.state == wanted.get("ego", world.ego.state) and len(world.movers) >= least:
            return world
    raise AssertionError("no such street")


def owner_by_brute_force(stage: Stage, pose: tuple[float, float, float], u: float, v: float) -> int:
    """The owner of the first box a single ray hits: three slabs a box, no shortcuts."""
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    ray = np.array([cos * u - sin, sin * u + cos, v])
    best, owner = np.inf, 0
    for part in stage.parts:
        hx, hy = part[shapes.HX], part[shapes.HY]
        axes = np.array([[hx, hy, 0.0], [hy, -hx, 0.0], [0.0, 0.0, 1.0]])
        middle = np.array([part[shapes.X], part[shapes.Y], (part[shapes.Z0] + part[shapes.Z1]) / 2])
        half = np.array([part[shapes.HALF_L], part[shapes.HALF_W], (part[shapes.Z1] - part[shapes.Z0]) / 2])
        origin, slope = axes @ (np.array([pose[0], pose[1], CAMERA_M]) - middle), axes @ ray
        bounds = np.sort(np.stack([(-half - origin) / slope, (half - origin) / slope]), axis=0)
        enter, leave = bounds[0].max(), bounds[1].min()
        if 0.3 < enter < leave and enter < best:
            best, owner = enter, int(part[shapes.OWNER])
    return owner


def test_the_ray_caster_sees_what_a_plain_ray_box_test_sees() -> None:
    world = replace(world_where(ego="turning left", movers=3), junction=None)
    whole, camera, rng = build_stage(world), Camera(), np.random.default_rng(0)
    boxes = whole.parts[:, shapes.SHAPE] == shapes.BOX
    still = whole.parts[:, shapes.SWING] == 0.0
    kept = boxes & still
    stage = whole._replace(parts=whole.parts[kept], face_light=whole.face_light[kept])
    ids = render(world, stage, camera, [MID_S], [], [0]).ids[0]
    count, focal = camera.samples, FOCAL_WIDTHS * camera.width
    checked = 0
    for row, column in zip(rng.integers(0, ids.shape[0], 600), rng.integers(0, ids.shape[1], 600), strict=True):
        u = ((column + 0.5) / count - camera.width / 2) / focal
        v = (HORIZON * camera.height - (row + 0.5) / count) / focal
        expected = owner_by_brute_force(stage, world.ego.pose(MID_S), u, v)
        assert ids[row, column] == expected
        checked += expected != 0
    assert checked > 60  # the test must have met parts, not only sky and ground


def test_a_resting_picture_is_reused_without_a_trace() -> None:
    world = world_where(ego="stopped", movers=2)
    stage, times = build_stage(world), [0.0, 0.1, 0.2, 0.9]
    together = render(world, stage, Camera(), times, [], []).luma
    alone = np.concatenate([render(world, stage, Camera(), [time_s], [], []).luma for time_s in times])
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(together[0], together[3])


def test_night_is_dark_and_noisy_and_day_is_bright() -> None:
    world = world_where(movers=1)
    frames = {}
    for light in ("day", "dusk", "night"):
        stage = build_stage(replace(world, light=light))
        shots = render(world, stage, Camera(), [MID_S], [0], [])
        frames[light] = develop(shots.rgb, stage.light, np.random.default_rng(0))[0].astype(float)
        clean = develop(shots.rgb, stage.light._replace(noise=0.0), np.random.default_rng(0))[0]
        frames[light, "noise"] = np.abs(frames[light] - clean)
    assert frames["day"].mean() > 1.1 * frames["dusk"].mean() > 1.5 * frames["night"].mean()
    assert frames["night", "noise"].mean() > 1.5 * frames["day", "noise"].mean()
    sky = frames["dusk"][:30, 40:70].mean((0, 1))
    assert sky[0] > sky[1]  # a red evening


def test_other_resolutions_show_the_same_view() -> None:
    world = world_where(movers=2)
    stage = build_stage(world)
    small = render(world, stage, Camera(), [MID_S], [0], [0])
    large = render(world, stage, Camera(224, 224, 1), [MID_S], [0], [0])
    wide = render(world, stage, Camera(160, 120, 3), [MID_S], [0], [0])
    np.testing.assert_array_equal(large.ids, small.ids)
    assert wide.rgb.shape == (1, 120, 160, 3)
    assert wide.ids.shape == (1, 360, 480)
    halved = large.rgb.reshape(1, 112, 2, 112, 2, 3).mean((2, 4))
    assert np.abs(halved - small.rgb).mean() < 0.01
