"""A clip from a seed: reproducible, and its facts, labels and events agree."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from eventspec.core import BadInput
from eventspec.scenes.clip import KIND_GREEN, KIND_RED, KIND_ZEBRA, PIXELS, SPLITS, SceneClip, film, make_clip, split_seed
from eventspec.scenes.facts import ACTIONS, COLOURS, DISTANCES_M, KINDS
from eventspec.scenes.world import Ego, Mover, World

MIDDLE = 2
NOISE = np.random.SeedSequence(1)


@pytest.fixture(scope="module")
def clips() -> list[SceneClip]:
    return [make_clip(seed) for seed in range(40)]


def digest(clip: SceneClip) -> str:
    seen = clip.events
    parts = (clip.frames, clip.frame_times_us, seen.x, seen.y, seen.t, seen.p, clip.frame_labels, clip.window_labels)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts) + repr(clip.facts).encode()).hexdigest()


def label_of(kind: str, action: str, colour: str | None, distance_m: int) -> tuple[int, int, int, int]:
    shade = 0 if colour is None else 1 + COLOURS.index(colour)
    return 1 + KINDS.index(kind), 1 + ACTIONS.index(action), shade, 1 + DISTANCES_M.index(distance_m)


def street(ego: Ego, *movers: Mover) -> World:
    return World(ego, "day", None, None, movers, scenery_seed=4)


STOPPED = Ego("stopped", 0.0, 0.0, 1.9, 0.0, 0.0)
PARKED = Mover("car", "parked", "blue", 4.9, 12.0, 0.0, 0.0, 0.0, 1.0, 10, 0.3)


def test_the_same_seed_gives_the_same_bytes_in_another_process(clips: list[SceneClip]) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import test_scene_clip as t; print(t.digest(t.make_clip(7)))"
    folder = __file__.rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(clips[7])
    assert digest(clips[7]) != digest(clips[8])


def test_shapes_and_types(clips: list[SceneClip]) -> None:
    clip = clips[0]
    assert (clip.frames.shape, clip.frames.dtype) == ((8, 112, 112, 3), np.uint8)
    assert clip.frame_times_us.tolist() == [62500 + 125000 * i for i in range(8)]
    assert (clip.frame_labels.shape, clip.window_labels.shape) == ((8, 4, 8, 8), (5, 4, 8, 8))
    seen = clip.events
    assert [column.dtype for column in (seen.x, seen.y, seen.t, seen.p)] == [np.uint16, np.uint16, np.int64, np.uint8]
    assert (np.diff(seen.t) >= 0).all() and seen.t[0] >= 0 and seen.t[-1] < 1_000_000


def test_labels_at_mid_clip_are_the_facts(clips: list[SceneClip]) -> None:
    told = found = missed = 0
    for clip in clips:
        planes = clip.window_labels[MIDDLE].reshape(4, -1).T
        users = {label_of(u.kind, u.action, u.colour, u.distance_m) for u in clip.facts.users}
        seen = {(a, b, c, d) for a, b, c, d in planes.tolist() if b > 0}
        assert seen <= users
        told, found = told + len(users), found + len(seen)
        lamps = {"red": KIND_RED, "green": KIND_GREEN}
        shining = {name for name, kind in lamps.items() if kind in planes[:, 0]}
        assert shining <= {clip.facts.signal}
        missed += clip.facts.signal != "none" and not shining
        assert clip.facts.junction or KIND_ZEBRA not in planes[:, 0]
    assert found >= 0.9 * told > 30  # two small ones in one patch: one of them has no label
    assert missed <= 1


def test_facts_are_nearest_first_and_large_enough(clips: list[SceneClip]) -> None:
    for clip in clips:
        distances = [user.distance_m for user in clip.facts.users]
        assert distances == sorted(distances)
        assert all(user.pixels >= 14 for user in clip.facts.users)


def test_facts_tell_where_road_users_come_from_and_go_to() -> None:
    """Depths are those of the nearest corner: a car of 4.2 m whose middle is 12 m away is 10 m away."""

    def facts(ego: Ego, **moved: float | str) -> tuple[str, str, str, int, int]:
        user = film(street(ego, replace(PARKED, **moved)), NOISE).facts.users[0]  # type: ignore[arg-type]
        return user.trend, user.side_first, user.side_last, user.first_m, user.last_m

    assert facts(STOPPED) == ("steady", "right", "right", 10, 10)
    assert facts(STOPPED, action="oncoming", x=1.9, vy=-6.0) == ("much closer", "ahead", "ahead", 15, 5)
    assert facts(STOPPED, action="leading", x=1.9, vy=4.0) == ("farther", "ahead", "ahead", 10, 10)
    crossing = {"action": "crossing left", "hx": -1.0, "hy": 0.0, "x": 1.9, "vx": -7.0}
    assert facts(STOPPED, **crossing) == ("steady", "right", "left", 10, 10)
    assert facts(replace(STOPPED, state="fast", speed=10.0), y=8.0) == ("passed", "right", "right", 10, 5)
    assert facts(replace(STOPPED, state="slow", speed=3.0)) == ("closer", "right", "right", 10, 10)


def test_an_empty_street_works() -> None:
    clip = film(street(STOPPED), NOISE)
    assert clip.facts.users == ()
    assert clip.facts.as_json()["signal"] == "none"
    assert not clip.frame_labels[:, 1:].any()


def test_a_parked_car_is_invisible_to_events_while_we_stand_and_a_moving_one_is_not() -> None:
    noise = PIXELS.noise_hz * 112 * 112
    parked = film(street(STOPPED, PARKED), NOISE)
    assert [user.action for user in parked.facts.users] == ["parked"]
    assert len(parked.events.t) < noise + 5 * noise**0.5
    moving = film(street(STOPPED, replace(PARKED, action="leading", x=1.9, vy=4.0)), NOISE)
    assert len(moving.events.t) > noise + 500
    driving = film(street(replace(STOPPED, state="fast", speed=10.0), PARKED), NOISE)
    assert len(driving.events.t) > 8 * noise


def test_splits_are_disjoint_for_every_seed_and_index() -> None:
    drawn = [split_seed(split, seed, index) for split in SPLITS for seed in (0, 1, -5, 123456789) for index in range(2000)]
    assert len(set(drawn)) == len(drawn)
    ranges = {split: {split_seed(split, seed, i) >> 40 for seed in range(50) for i in (0, 7, 2**40 - 1)} for split in SPLITS}
    assert ranges == {"train": {0}, "calibration": {1}, "test": {2}}


def test_split_seeds_are_fixed_for_ever() -> None:
    """A published split must stay what it is: these numbers never change."""
    assert [split_seed(split, 0, 3) for split in SPLITS] == [709039848784, 1808551476560, 2908063104336]


def test_a_wrong_split_is_refused() -> None:
    with pytest.raises(BadInput, match="train, calibration, test"):
        split_seed("validation", 0, 0)
    with pytest.raises(BadInput, match="outside"):
        split_seed("train", 0, -1)
    for seed in (2**63, 2**64, -(2**63) - 1):  # their low bits are another seed's
        with pytest.raises(BadInput, match="another seed's clips"):
            split_seed("train", seed, 0)
