"""The event camera model on signals whose events can be counted by hand, on any video, and beside a real event camera."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput
from eventspec.events import EventStream, simulate
from eventspec.events.formats import open_events
from eventspec.events.simulate import EventSensor, PixelModel
from eventspec.events.simulate import simulate as simulated

SIDE = 20
SECOND_US = 1_000_000
MODEL = PixelModel()
QUIET = PixelModel(noise_hz=0.0)
EXACT = PixelModel(noise_hz=0.0, spread=0.0, refractory_us=0)
REAL = Path(__file__).parents[2].parent / "shared/recordings/aedat4/davis346_traffic.aedat4"


def sense(luma: Any, seed: int, model: PixelModel = MODEL, start_us: int = 0) -> EventStream:
    sensor = EventSensor(luma.shape[2], luma.shape[1], model, np.random.default_rng(seed))
    return sensor.see(luma, start_us, start_us + SECOND_US)


def ramp(change: float, steps: int = 101) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
    """Luminance float32 [steps, SIDE, SIDE] whose logarithm changes evenly by `change` in all."""
    log = np.log(0.2 + MODEL.floor) + change * np.linspace(0.0, 1.0, steps)
    return np.broadcast_to((np.exp(log) - MODEL.floor)[:, None, None], (steps, SIDE, SIDE)).astype(np.float32)


def same(one: EventStream, other: EventStream) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("x", "y", "t", "p"))


def logs(frames: Any) -> Any:
    """The logarithm each pixel sees, float64 [K, H, W]."""
    return np.log(np.stack([simulate._luminance(frame) for frame in frames]).astype(float) + MODEL.floor)


# ------------------------------------------------------------------------------------------------------------------ pixels
def test_a_still_scene_gives_background_noise_only() -> None:
    seen = sense(ramp(0.0), 0)
    expected = MODEL.noise_hz * SIDE * SIDE
    assert abs(len(seen) - expected) < 5 * expected**0.5 + 1
    assert {0, 1} == set(seen.p.tolist())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_steady_change_gives_one_event_a_threshold(sign: float) -> None:
    seen = sense(ramp(sign * 1.0), 0, QUIET)
    counts = np.bincount(seen.y.astype(int) * SIDE + seen.x, minlength=SIDE * SIDE)
    assert abs(counts.mean() - 1.0 / MODEL.threshold) < 0.6  # 1 / 0.25 crossings; the last may just be missed
    assert set(seen.p.tolist()) == {int(sign > 0)}
    first = np.array([seen.t[(seen.x == px) & (seen.y == 3)].min() for px in range(SIDE)])
    assert abs(first.mean() - MODEL.threshold * SECOND_US) < 0.1 * MODEL.threshold * SECOND_US  # not at sub-frame ends
    assert len(np.unique(seen.t % 10_000)) > 50


def test_events_are_sorted_in_range_and_keep_the_refractory_time() -> None:
    rng = np.random.default_rng(1)
    luma = rng.uniform(0.01, 1.0, (101, SIDE, SIDE)).astype(np.float32)  # every pixel jumps all the time
    seen = sense(luma, 2)
    assert len(seen) > 20_000
    assert (np.diff(seen.t) >= 0).all()
    assert seen.t[0] >= 0 and seen.t[-1] < SECOND_US
    assert seen.x.max() < SIDE and seen.y.max() < SIDE and seen.p.max() <= 1
    assert least_gap(seen) >= MODEL.refractory_us


def least_gap(seen: EventStream) -> int:
    """The least time between two events of a pixel."""
    pixel = seen.y.astype(np.int64) * seen.width + seen.x
    order = np.lexsort((seen.t, pixel))
    gaps = np.diff(seen.t[order])[np.diff(pixel[order]) == 0]
    return int(gaps.min()) if len(gaps) else 1 << 60


def test_the_generator_alone_decides() -> None:
    one, again, other = (sense(ramp(0.7), seed) for seed in (3, 3, 4))
    assert same(one, again) and not np.array_equal(one.t, other.t)


def test_a_sensor_goes_on_where_it_stopped() -> None:
    """In two halves it sees what it sees at once: pixels remember their level and their last event."""
    luma = np.random.default_rng(5).uniform(0.01, 1.0, (101, 6, 7)).astype(np.float32)
    model = PixelModel(noise_hz=0.0, refractory_us=20_000)
    sensor = EventSensor(7, 6, model, np.random.default_rng(0))
    halves = [sensor.see(luma[:51], 0, SECOND_US // 2), sensor.see(luma[50:], SECOND_US // 2, SECOND_US)]
    whole = sense(luma, 0, model)
    assert len(whole) > 500 and same(EventStream.joined(halves, 7, 6), whole)


# ------------------------------------------------------------------------------------------------------------------ videos
@settings(deadline=None, max_examples=30)
@given(
    st.integers(2, 5),
    st.lists(st.integers(1, 200_000), min_size=5, max_size=5),
    st.integers(0, 2**60),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32),
)
def test_any_video_gives_ordered_events_that_keep_up_with_the_light(
    count: int, steps: list[int], start: int, subframes: int, seed: int
) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 3), np.uint8)
    times = start + np.cumsum([0, *steps[: count - 1]])
    events, notes = simulated(frames, times, EXACT, seed, subframes)
    EventStream.checked(events.x, events.y, events.t, events.p, 4, 3)  # order, sensor, polarity
    assert not len(events) or (events.t[0] >= start and events.t[-1] < times[-1])
    level = logs(frames)[0].copy()
    np.add.at(level, (events.y, events.x), (events.p.astype(float) * 2 - 1) * EXACT.threshold)
    assert np.abs(level - logs(frames)[-1]).max() < EXACT.threshold + 1e-4  # what the events say is what is seen
    assert notes[0].startswith("the events are simulated") and f"seed {seed}" in notes[0]
    assert any("blended in 3 steps" in note for note in notes) == (subframes == 3)


def test_the_refractory_time_holds_across_frames_and_chance_is_seeded() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), np.uint8)
    times = np.arange(6) * 10_000
    one, again, other = (simulated(frames, times, PixelModel(refractory_us=3000), seed)[0] for seed in (1, 1, 2))
    assert least_gap(one) >= 3000 and len(one) > 100
    assert same(one, again) and not same(one, other)
    raised = simulated(frames, times, PixelModel(threshold=0.5, refractory_us=3000), 1)[0]
    assert len(raised) < len(one)


def test_frames_of_one_time_count_once_and_progress_is_told() -> None:
    frames = np.zeros((4, 2, 2, 3), np.uint8)
    frames[1], frames[2:] = 255, 128
    told: list[int] = []
    events, notes = simulated(frames, np.array([0, 5000, 5000, 9000]), QUIET, 0, progress=told.append)
    assert notes[-1] == "1 frame is left out: the next one has the same time" and told == [2, 3]
    assert set(events.p.tolist()) == {1}  # the flash to white has no duration


def test_a_long_video_is_read_frame_by_frame() -> None:
    from eventspec.video.stored import StoredFrames

    read: list[int] = []

    def one(place: int) -> Any:
        read.append(place)
        return np.full((2, 3, 3), 40 * place, np.uint8)

    assert len(simulated(StoredFrames(one, 5, 2, 3), np.arange(5) * 1000, EXACT, 0)[0])
    assert read == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not REAL.exists(), reason="shared recordings are not here")
def test_simulated_traffic_resembles_what_the_event_camera_beside_it_saw() -> None:
    """DAVIS346, 59 frames 40 ms apart: 95,000 simulated events for 78,830 real ones, signed correlation 0.915 in cells of
    5x5 pixels between two frames. The control, the events of the frame before, has 0.27."""
    found = open_events(REAL)
    assert found.events is not None and encoders.frames_of(found) is not None and found.frames is not None
    times = found.frames[2]
    events = simulated(encoders.frames_of(found), times, QUIET, 0)[0]
    assert 0.7 < len(events) / len(found.events) < 1.6
    ours, real = cells(events, times), cells(found.events, times)
    assert np.corrcoef(ours.ravel(), real.ravel())[0, 1] > 0.85
    assert np.corrcoef(ours[1:].ravel(), real[:-1].ravel())[0, 1] < 0.4


def cells(events: EventStream, times_us: Any) -> Any:
    """ON minus OFF float64 [K - 1, 52, 69] between two frames in cells of 5x5 pixels."""
    bins = np.searchsorted(times_us, events.t, side="right") - 1
    inside = (bins >= 0) & (bins < len(times_us) - 1) & (events.x < 345)
    found = np.zeros((len(times_us) - 1, 52, 69))
    np.add.at(found, (bins[inside], events.y[inside] // 5, events.x[inside] // 5), events.p[inside] * 2.0 - 1)
    return found


# ---------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threshold", 0.0),
        ("threshold", float("nan")),
        ("spread", -1.0),
        ("noise_hz", 1e9),
        ("refractory_us", -1),
        ("floor", 0.0),
    ],
)
def test_a_model_that_no_pixel_has_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{field} is {value}: it must be"):
        PixelModel(**{field: value})


def test_what_cannot_be_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, times = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), np.uint8), np.array([0, 1000, 2000])
    with pytest.raises(BadInput, match="1 frame with different times: events need at least two"):
        simulated(frames[:1], times[:1], MODEL, 0)
    with pytest.raises(BadInput, match="1 frame with different times"):
        simulated(frames, np.array([7, 7, 7]), MODEL, 0)
    with pytest.raises(BadInput, match="subframes is 0"):
        simulated(frames, times, MODEL, 0, subframes=0)
    with pytest.raises(BadInput, match="seed is -1"):
        simulated(frames, times, MODEL, -1)
    with pytest.raises(BadInput, match="noise events are too many"):
        simulated(frames, np.array([0, 10**13, 10**14]), MODEL, 0)
    monkeypatch.setattr(simulate, "LARGEST_EVENTS", 10)
    with pytest.raises(BadInput, match="more than 10 events after 2 frames: cut the video, or raise the threshold"):
        simulated(frames, times, MODEL, 0)


@pytest.mark.parametrize("words", [["events", "simulate", "x.mp4", "--out", "y"], ["scenes", "make", "--out", "y"]])
def test_without_numba_a_command_ends_in_one_line(tmp_path: Path, words: list[str]) -> None:
    program = f"import sys; sys.modules['numba'] = None\nfrom eventspec import cli\nsys.exit(cli.run({words}))"
    around = {**os.environ, "PYTHONPATH": str(Path(simulate.__file__).parents[2])}  # this checkout, whatever is installed
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=around)
    told = "eventspec: numba, which makes events from pictures, is not installed: pip install 'eventspec[scenes]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert list(tmp_path.iterdir()) == []
