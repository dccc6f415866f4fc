"""Event pictures against plain Python loops that follow the definitions event by event."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput
from eventspec.events import EventStream
from eventspec.events.formats import read_events
from eventspec.events.pictures import pictures, tinted
from eventspec.events.representations import (
    PALETTE,
    Image,
    bounded,
    coarser,
    count_image,
    histogram,
    red_blue,
    red_blue_classes,
    time_surface,
    voxel_grid,
)

SHARED = Path(__file__).parents[2].parent / "shared"
DSEC = SHARED / "recordings/eventgpt_npy/eventgpt_dsec_interlaken_00_d_000089.npy"


def stream_of(events: list[tuple[int, int, int, int]], width: int = 6, height: int = 5) -> EventStream:
    rows = sorted(events, key=lambda event: event[2])
    x, y, t, p = (np.array([row[k] for row in rows], np.int64) for k in range(4))
    return EventStream.checked(x, y, t, p, width, height)


streams = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 30), st.integers(0, 1)), max_size=40).map(
    stream_of
)


def ranges(events: int, n: int) -> list[range]:
    each = events // n
    return [range(i * each, (i + 1) * each if i < n - 1 else events) for i in range(n)]


def loop_red_blue(stream: EventStream, places: range, height: int, width: int) -> Image:
    """EventGPT's generate_event_image, event by event."""
    image = np.full((height, width, 3), 255, np.uint8)
    for i in places:
        image[stream.y[i], stream.x[i]] = (0, 0, 255) if stream.p[i] == 0 else (255, 0, 0)
    return image


@settings(deadline=None)
@given(streams, st.integers(1, 7))
def test_red_blue_is_the_event_loop(stream: EventStream, n: int) -> None:
    images = red_blue(stream, n)
    wanted = [loop_red_blue(stream, places, 5, 6) for places in ranges(len(stream), n)]
    assert images.dtype == np.uint8 and images.shape == (n, 5, 6, 3)
    assert np.array_equal(images, wanted)
    assert np.array_equal(PALETTE[red_blue_classes(stream, n)], images)


@settings(deadline=None)
@given(streams, st.integers(1, 7))
def test_compatible_images_end_at_the_largest_coordinate_of_their_slice(stream: EventStream, n: int) -> None:
    for image, whole, places in zip(red_blue(stream, n, compat=True), red_blue(stream, n), ranges(len(stream), n), strict=True):
        height = max((int(stream.y[i]) + 1 for i in places), default=5)
        width = max((int(stream.x[i]) + 1 for i in places), default=6)
        assert np.array_equal(image, whole[:height, :width])


def test_the_last_event_at_a_pixel_wins_even_at_equal_times() -> None:
    stream = EventStream.checked([2, 2, 2], [1, 1, 1], [7, 7, 7], [1, 0, 1], 6, 5)
    assert red_blue(stream, 1)[0, 1, 2].tolist() == [255, 0, 0]
    assert red_blue_classes(stream.take(slice(0, 2)), 1)[0, 1, 2] == 1


def test_slices_have_equal_counts_and_the_last_takes_the_remainder() -> None:
    stream = stream_of([(i % 6, i // 6, i, 1) for i in range(13)])
    drawn = (red_blue_classes(stream, 5) > 0).sum(axis=(1, 2))
    assert drawn.tolist() == [2, 2, 2, 2, 5]


@pytest.mark.parametrize("events", [[], [(5, 4, 9, 1)], [(0, 0, 3, 0), (5, 4, 3, 1)]], ids=["empty", "one", "equal times"])
def test_every_representation_takes_few_and_simultaneous_events(events: list[tuple[int, int, int, int]]) -> None:
    stream = stream_of(events)
    assert red_blue(stream).shape == (5, 5, 6, 3)
    assert count_image(stream).sum() == histogram(stream).sum() == len(events)
    signs = sum(2 * event[3] - 1 for event in events)
    assert voxel_grid(stream).sum() == signs and np.isfinite(voxel_grid(stream)).all()
    assert time_surface(stream).sum() == len(events)


@settings(deadline=None)
@given(streams)
def test_counts_are_the_event_loop(stream: EventStream) -> None:
    wanted = np.zeros((2, 5, 6), np.int64)
    for i in range(len(stream)):
        wanted[stream.p[i], stream.y[i], stream.x[i]] += 1
    assert count_image(stream).dtype == np.int64 and np.array_equal(count_image(stream), wanted)


@settings(deadline=None)
@given(streams, st.integers(1, 6), st.sampled_from([None, 1, 2]))
def test_a_histogram_is_the_event_loop_with_a_clamp(stream: EventStream, bins: int, clamp: int | None) -> None:
    wanted = np.zeros((bins, 2, 5, 6), np.int64)
    for i in range(len(stream)):
        elapsed, duration = int(stream.t[i] - stream.t[0]), max(int(stream.t[-1] - stream.t[0]), 1)
        wanted[min(elapsed * bins // duration, bins - 1), stream.p[i], stream.y[i], stream.x[i]] += 1
    assert np.array_equal(histogram(stream, bins, clamp), wanted if clamp is None else np.minimum(wanted, clamp))


@settings(deadline=None)
@given(streams, st.integers(1, 6))
def test_a_voxel_grid_shares_each_event_between_two_bins(stream: EventStream, bins: int) -> None:
    wanted = np.zeros((bins, 5, 6))
    for i in range(len(stream)):
        duration = int(stream.t[-1] - stream.t[0])
        place = (bins - 1) * int(stream.t[i] - stream.t[0]) / duration if duration else 0.0
        for b in range(bins):
            wanted[b, stream.y[i], stream.x[i]] += (2 * int(stream.p[i]) - 1) * max(0.0, 1 - abs(b - place))
    grid = voxel_grid(stream, bins)
    assert grid.dtype == np.float32 and np.allclose(grid, wanted, atol=1e-5)


@settings(deadline=None)
@given(streams, st.sampled_from([None, 0, 15, 40]))
def test_a_time_surface_decays_from_the_last_event_before_the_reference(stream: EventStream, reference: int | None) -> None:
    wanted = np.zeros((2, 5, 6))
    now = reference if reference is not None else (int(stream.t[-1]) if len(stream) else 0)
    for i in range(len(stream)):
        if stream.t[i] <= now:
            wanted[stream.p[i], stream.y[i], stream.x[i]] = math.exp((int(stream.t[i]) - now) / 10)
    assert np.allclose(time_surface(stream, reference, tau_us=10), wanted, atol=1e-6)


def test_wrong_options_are_refused() -> None:
    stream = stream_of([(0, 0, 0, 0)])
    for call in (
        lambda: red_blue(stream, 0),
        lambda: red_blue_classes(stream, -1),
        lambda: histogram(stream, 0),
        lambda: voxel_grid(stream, 0),
        lambda: time_surface(stream, tau_us=0),
        lambda: pictures(stream, "sepia"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput):
            call()


@pytest.mark.parametrize("representation", ["red-blue", "count", "time-surface"])
def test_pictures_are_red_for_on_blue_for_off_white_for_nothing(representation: str) -> None:
    stream = EventStream.checked([0, 5], [0, 4], [7, 7], [0, 1], 6, 5)
    images = pictures(stream, representation, 1).images  # type: ignore[arg-type]
    assert images.shape == (1, 5, 6, 3)
    assert [images[0, y, x].tolist() for y, x in ((0, 0), (4, 5), (2, 2))] == [[0, 0, 255], [255, 0, 0], [255, 255, 255]]
    assert pictures(EventStream.empty(6, 5), representation, 2).images.min() == 255  # type: ignore[arg-type]
    assert tinted(np.zeros((2, 5, 6)), 1.0).min() == 255


def test_counts_have_one_scale_over_all_slices_that_a_hot_pixel_does_not_spoil() -> None:
    usual = [(x, y, t, 1) for t in range(4) for x in range(5) for y in range(5)]
    drawn = pictures(stream_of([*usual, *[(5, 4, 9, 0)] * 60]), "count", 2)
    assert drawn.full == 4.0
    assert drawn.images[1, 4, 5].tolist() == [0, 0, 255]
    assert pictures(stream_of([(0, 0, 0, 1)]), "count", 1).full == 1.0
    both = tinted(np.ones((2, 1, 1)), 1.0)
    assert both.tolist() == [[[0, 0, 0]]] and tinted(np.full((2, 1, 1), 9.0), 1.0).tolist() == both.tolist()


def test_coarser_pixels_hold_the_events_of_several() -> None:
    stream = stream_of([(0, 0, 0, 1), (1, 1, 1, 0), (5, 4, 2, 1)])
    small = coarser(stream, 2)
    assert (small.width, small.height) == (3, 3) and small.x.tolist() == [0, 0, 2] and small.y.tolist() == [0, 0, 2]
    assert len(coarser(EventStream.empty(6, 5), 4)) == 0


def test_a_sensor_larger_than_any_is_seen_on_a_coarser_one() -> None:
    usual = EventStream.checked([1279], [719], [0], [1], 1280, 720)
    assert bounded(usual) is usual
    for width, height in ((16_000, 16_000), (65_536, 65_536), (65_536, 200)):
        seen = bounded(EventStream.checked([width - 1], [height - 1], [0], [1], width, height))
        assert seen.width * seen.height <= 1 << 23 and len(red_blue_classes(seen).nonzero()[0]) == 1


@pytest.mark.skipif(not DSEC.exists(), reason="shared recordings are not here")
def test_red_blue_on_real_driving_equals_eventgpts_loop() -> None:
    stream = read_events(DSEC)
    images = red_blue(stream, 5, compat=True)
    for image, places in zip(images, ranges(len(stream), 5), strict=True):
        height, width = int(stream.y[places].max()) + 1, int(stream.x[places].max()) + 1
        assert np.array_equal(image, loop_red_blue(stream, places, height, width))


@pytest.mark.parametrize("draw", [count_image, histogram, voxel_grid, time_surface, red_blue])
@pytest.mark.parametrize(("x", "y", "told"), [([0, 6], [0, 0], r"x\[1\] is 6"), ([0, 0], [5, 0], r"y\[0\] is 5")])
def test_an_event_outside_the_sensor_is_refused_and_not_drawn_elsewhere(
    draw: Callable[[EventStream], object], x: list[int], y: list[int], told: str
) -> None:
    stream = EventStream(np.array(x, np.uint16), np.array(y, np.uint16), np.arange(2), np.zeros(2, np.uint8), 6, 5)
    with pytest.raises(BadInput, match=f"{told}, outside the sensor \\(6x5\\)"):
        draw(stream)
    with pytest.raises(BadInput, match=r"x\[0\] is -1"):
        draw(EventStream(np.array([-1]), np.array([0]), np.arange(1), np.zeros(1, np.uint8), 6, 5))  # type: ignore[arg-type]


def test_a_normalised_voxel_grid_has_mean_0_and_deviation_1_where_events_are() -> None:
    stream = stream_of([(0, 0, 0, 1), (1, 0, 3, 1), (1, 0, 10, 1), (4, 4, 10, 0)])
    plain, grid = voxel_grid(stream, 3), voxel_grid(stream, 3, normalised=True)
    cells = grid[plain != 0]
    assert abs(cells.mean()) < 1e-6 and cells.std() == pytest.approx(1, abs=1e-6) and not grid[plain == 0].any()
    assert not voxel_grid(stream_of([(2, 2, 5, 1)]), 3, normalised=True).any()  # one cell is its own mean
    assert not voxel_grid(EventStream.empty(6, 5), 3, normalised=True).any()


def test_a_time_surface_of_times_that_go_back_shows_the_latest_event() -> None:
    column = np.zeros(2, np.int64)
    stream = EventStream.checked(column, column, [40, 10], column, 2, 1, monotonic="keep")
    assert time_surface(stream, 40, 30.0)[0, 0, 0] == 1.0
    with pytest.raises(BadInput, match="tau_us is nan"):
        time_surface(stream, tau_us=math.nan)


def test_bool_polarity_draws_as_numbers_do() -> None:
    rng = np.random.default_rng(0)
    x, y, p = rng.integers(0, 6, 50), rng.integers(0, 5, 50), rng.integers(0, 2, 50)
    numbers = EventStream.checked(x, y, np.arange(50), p, 6, 5)
    bools = EventStream(numbers.x, numbers.y, numbers.t, p.astype(bool), 6, 5)  # type: ignore[arg-type]
    for draw in (red_blue, red_blue_classes, count_image, histogram, voxel_grid, time_surface):
        assert np.array_equal(draw(bools), draw(numbers))
