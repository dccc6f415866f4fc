"""The drawn street keeps its promises: guard bands, no collisions, possible actions."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from eventspec.scenes.facts import ACTIONS, COLOURS, DISTANCES_M, EGO, KINDS, LIGHTS
from eventspec.scenes.world import MID_S, SIDE_BORDERS, SIDE_GUARD, World, make_world, side_share

TIMES_S = (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [make_world(np.random.default_rng(seed)) for seed in range(600)]


def test_the_same_generator_state_gives_the_same_street() -> None:
    assert make_world(np.random.default_rng(5)) == make_world(np.random.default_rng(5))
    assert make_world(np.random.default_rng(5)) != make_world(np.random.default_rng(6))


def test_every_word_of_the_vocabulary_is_drawn(worlds: list[World]) -> None:
    movers = [mover for world in worlds for mover in world.movers]
    assert {world.ego.state for world in worlds} == set(EGO)
    assert {world.light for world in worlds} == set(LIGHTS)
    assert {mover.kind for mover in movers} == set(KINDS)
    assert {mover.action for mover in movers} == set(ACTIONS)
    assert {mover.colour for mover in movers} == {None, *COLOURS}
    assert {mover.distance_m for mover in movers} == set(DISTANCES_M)
    counts = Counter(len(world.movers) for world in worlds)
    assert set(counts) == {0, 1, 2, 3, 4}


def test_distances_keep_away_from_the_borders_between_words(worlds: list[World]) -> None:
    for world in worlds:
        for mover in world.movers:
            depth = mover.nearest_m(world.ego)
            assert all(abs(depth - border) >= 0.59 for border in (7.5, 12.5, 17.5, 22.5))
            assert min(DISTANCES_M, key=lambda word: abs(word - depth)) == mover.distance_m


def test_sides_keep_away_from_the_borders_between_words(worlds: list[World]) -> None:
    for world in worlds:
        for mover in world.movers:
            share = side_share(mover, world.ego)
            assert 0.0 < share < 1.0
            assert all(abs(share - border) >= SIDE_GUARD for border in SIDE_BORDERS)


def test_nobody_drives_through_anybody(worlds: list[World]) -> None:
    for world in worlds:
        for one, other in itertools.combinations(world.movers, 2):
            for time_s in TIMES_S:
                a, b = one.bounds(time_s), other.bounds(time_s)
                assert not (a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


def test_actions_are_what_the_words_say(worlds: list[World]) -> None:
    for world in worlds:
        for mover in world.movers:
            if mover.action in ("parked", "standing"):
                assert (mover.vx, mover.vy) == (0.0, 0.0)
                assert (mover.action == "standing") == (mover.kind == "pedestrian")
            elif mover.action in ("leading", "oncoming"):
                assert mover.vx == 0.0
                assert (mover.vy > 0.0) == (mover.action == "leading")
            else:
                assert mover.vy == 0.0
                assert (mover.vx < 0.0) == (mover.action == "crossing left")
                assert world.junction is not None or mover.kind in ("pedestrian", "cyclist")
            assert (mover.colour is not None) == (mover.kind == "car")


def test_a_turn_is_an_arc_that_passes_the_pose_at_mid_clip(worlds: list[World]) -> None:
    turning = next(world.ego for world in worlds if world.ego.state == "turning left")
    x, y, yaw = turning.pose(MID_S)
    assert (x, y) == (turning.x, 0.0)
    steps = np.array([turning.pose(t) for t in np.linspace(0.0, 1.0, 1001)])
    travelled = np.hypot(*np.diff(steps[:, :2], axis=0).T).sum()
    assert travelled == pytest.approx(turning.speed, rel=1e-4)
    assert turning.pose(1.0)[2] - turning.pose(0.0)[2] == pytest.approx(turning.turn_rate)
    assert turning.pose(1.0)[2] > yaw
