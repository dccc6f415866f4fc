"""The offset between the clocks of events and frames: it is found where there is one, and nothing is found in what does not
belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.events import EventStream
from eventspec.events.simulate import EventSensor
from eventspec.recordings import Recording, estimate_event_offset, write_native
from eventspec.recordings import offset as rules
from eventspec.scenes.clip import PIXELS, make_clip
from eventspec.video.clip import VideoClip

TRAFFIC = Path(__file__).parents[2].parent / "shared/recordings/aedat4/davis346_traffic.aedat4"
LONG = pytest.mark.long


@cache
def street(seed: int) -> Recording:
    clip = make_clip(seed)
    return Recording("street", clip.events, VideoClip(clip.frames, clip.frame_times_us))


@cache
def panned(seed: int, seconds: int = 2) -> Recording:
    """A random picture that a camera passes at changing speed: 20 frames a second, and what an event sensor made of it."""
    rng, ticks = np.random.default_rng(seed), 100 * seconds + 1
    picture = rng.random((12, 64)).repeat(4, 0).repeat(4, 1) * 0.8 + 0.1
    speed = 1.2 * np.abs(np.convolve(rng.normal(size=ticks + 19), np.ones(20) / 20**0.5, "valid"))
    at = np.arange(64) + np.cumsum(speed)[:, None]
    left, share = np.floor(at).astype(int), (at % 1)[:, None]
    shots = picture[:, left % 256].swapaxes(0, 1) * (1 - share) + picture[:, (left + 1) % 256].swapaxes(0, 1) * share
    events = EventSensor(64, 48, PIXELS, rng).see(shots.astype(np.float32), 0, seconds * 1_000_000)
    grey = np.round(255 * shots[::5] ** (1 / 2.2)).astype(np.uint8)
    return Recording("panned", events, VideoClip(grey[..., None].repeat(3, 3), np.arange(len(grey)) * 50_000))


def found(recording: Recording) -> tuple[int, int]:
    offset = estimate_event_offset(recording.events, recording.video)
    assert offset.error_us is not None
    return offset.us, offset.error_us


def late(recording: Recording, us: int) -> Recording:
    """The same with events whose clock is so far ahead."""
    assert recording.events is not None
    return replace(recording, events=recording.events.shifted(us))


def noisy(recording: Recording, times: int, kept: float = 1.0) -> Recording:
    """A share of the events, and so many times as many at random pixels and moments."""
    events, rng = recording.events, np.random.default_rng(times)
    assert events is not None
    own = np.flatnonzero(rng.random(len(events)) < kept)
    n = times * len(own)
    x, y, t = rng.integers(0, events.width, n), rng.integers(0, events.height, n), rng.integers(0, 1_000_000, n)
    columns = (events.x[own], x), (events.y[own], y), (events.t[own], t), (events.p[own], rng.integers(0, 2, n))
    both = [np.concatenate(column) for column in columns]
    order = np.argsort(both[2], kind="stable")
    return replace(recording, events=EventStream.checked(*(column[order] for column in both), events.width, events.height))


@pytest.mark.parametrize(
    "seed", [100, 104, 108, *(pytest.param(seed, marks=LONG) for seed in (101, 102, 103, 105, 107, 109, 110))]
)
def test_an_offset_of_a_street_is_found_within_the_error_that_is_told(seed: int) -> None:
    for shift in (0, 120_000, -250_000):
        us, error = found(late(street(seed), shift))
        assert abs(us + shift) <= error <= 20_000


@pytest.mark.parametrize(("times", "kept"), [(4, 1.0), pytest.param(16, 1.0, marks=LONG), pytest.param(1, 0.05, marks=LONG)])
def test_noise_and_missing_events_cost_little(times: int, kept: float) -> None:
    us, error = found(late(noisy(street(104), times, kept), -90_000))
    assert abs(us - 90_000) <= error <= 30_000


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=LONG) for seed in (1, 2, 4, 7))])
def test_two_cameras_with_other_views_are_compared_by_their_rates(seed: int) -> None:
    recording = panned(seed)
    assert recording.video is not None
    upside_down = VideoClip(np.asarray(recording.video.frames)[:, ::-1, ::-1], recording.video.times_us)
    us, error = found(late(replace(recording, video=upside_down), 60_000))
    assert abs(us + 60_000) <= error + rules.LEAST_ERROR_US


def wrong_ones() -> Iterator[Recording]:
    """Recordings of which no offset can be told."""
    own = street(104)
    assert own.events is not None
    yield replace(own, events=street(100).events)
    yield replace(own, events=street(108).events)
    yield replace(panned(0), events=panned(1).events)
    rng, n = np.random.default_rng(0), len(own.events)
    x, y = rng.integers(0, 112, n).astype(np.uint16), rng.integers(0, 112, n).astype(np.uint16)
    yield replace(own, events=replace(own.events, x=x, y=y))
    yield replace(own, events=replace(own.events, p=rng.permutation(own.events.p)))
    yield replace(own, events=replace(own.events, p=1 - own.events.p))
    yield late(own, 900_000)


def test_events_of_something_else_are_refused() -> None:
    for recording in wrong_ones():
        with pytest.raises(BadInput, match=r"cannot be estimated|too few") as refused:
            found(recording)
        assert "\n" not in str(refused.value)


@LONG
def test_events_of_another_street_are_never_taken_for_its_own() -> None:
    seeds = (100, 101, 102, 103, 104, 105, 107, 108, 109, 110)
    for seed in seeds:
        for other in seeds:
            if other != seed:
                with pytest.raises(BadInput):
                    found(replace(street(seed), events=street(other).events))


def test_what_there_is_nothing_to_estimate_from_is_refused_in_one_line() -> None:
    own = panned(0)
    assert own.events is not None and own.video is not None
    still = VideoClip(np.full_like(own.video.frames[:8], 9), own.video.times_us[:8])
    seldom = VideoClip(own.video.frames[:3], np.array([0, 10_000_000, 20_000_000]))
    for changed, told in (
        (replace(own, video=own.video.slice(Window(0, 60_000))), "2 frames are too few"),
        (replace(own, events=own.events.take(slice(0, 50))), "50 events near its frames are too few"),
        (replace(own, video=still), "nothing moves in the frames"),
        (replace(own, video=seldom), "more than 2 s apart"),
        (replace(own, events=None), "one of them is missing"),
    ):
        with pytest.raises(BadInput, match=told):
            found(changed)


def test_of_a_long_recording_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    sliced = EventStream.slice

    def counted(self: EventStream, window: Window) -> EventStream:
        part = sliced(self, window)
        read.append(len(part))
        return part

    own = panned(3, seconds=24)
    assert own.events is not None
    monkeypatch.setattr(EventStream, "slice", counted)
    whole = found(late(own, -30_000))
    assert abs(whole[0] - 30_000) <= whole[1] and sum(read) < 0.75 * len(own.events)
    monkeypatch.setattr(rules, "MOST_EVENTS", 1)
    read.clear()
    short = found(late(own, -30_000))
    assert abs(short[0] - 30_000) <= short[1] and sum(read) < 0.12 * len(own.events)


@pytest.mark.skipif(not TRAFFIC.exists(), reason="shared recordings are not here")
def test_a_real_recording_is_on_one_clock_but_for_the_lag_of_its_events() -> None:
    recording = Recording.open(TRAFFIC)
    none, error = found(recording)
    assert abs(none) <= 20_000 and error <= 20_000
    for shift in (130_000, -300_000):
        assert abs(found(late(recording, shift))[0] - (none - shift)) <= 1_000


# ---------------------------------------------------------------------------------------------------- what a recording does
def test_events_move_and_frames_stay() -> None:
    own = late(street(104), 120_000)
    moved, aligned = own.with_event_offset(-120_000), own.with_event_offset("auto")
    assert own.events is not None and moved.events is not None and moved.video is own.video
    assert np.array_equal(moved.events.t, own.events.t - 120_000)
    assert moved.notes == ("the events are moved by -120000 us relative to the frames",)
    assert moved.event_offset is not None and (moved.event_offset.us, moved.event_offset.error_us) == (-120_000, None)
    assert aligned.event_offset is not None and abs(aligned.event_offset.us + 120_000) <= 10_000
    assert "as estimated" in aligned.notes[0] and len(aligned.notes) == 1
    twice = moved.with_event_offset(5_000).event_offset
    assert twice is not None and twice.us == -115_000


def test_a_given_offset_that_seems_wrong_is_noted() -> None:
    own = street(104)
    behind, ahead, right = (own.with_event_offset(us).notes for us in (-120_000, 120_000, 0))
    assert behind[-1].startswith("the event clock seems 117 ms (+-15) behind the frames'") and "auto" in behind[-1]
    assert ahead[-1].startswith("the event clock seems 123 ms (+-15) ahead of the frames'")
    assert right == ()


def test_clocks_that_do_not_meet_are_joined_by_an_offset(tmp_path: Path) -> None:
    own = street(104)
    assert own.events is not None and own.video is not None
    far = 5_000_000_000
    write_native(tmp_path / "events", Recording("e", own.events.shifted(2 * far), None))
    write_native(tmp_path / "frames", Recording("f", None, own.video.shifted(far)))
    places = {"events": tmp_path / "events", "video": tmp_path / "frames"}
    with pytest.raises(BadInput, match="do not overlap"):
        Recording.open_pair(**places)
    joined = Recording.open_pair(**places, event_offset=-far)
    assert joined.events is not None and joined.events.t[0] == own.events.t[0] + far
    with pytest.raises(BadInput, match="do not overlap"):
        Recording.open_pair(**places, event_offset=far)


@pytest.mark.parametrize("us", [True, 1.5, "soon", 10**18])
def test_what_is_no_offset_is_refused(us: object) -> None:
    with pytest.raises(BadInput, match="the event offset is"):
        panned(0).with_event_offset(us)  # type: ignore[arg-type]


def test_what_has_no_frames_or_no_events_has_no_offset() -> None:
    for changed, lacks in ((replace(panned(0), video=None), "frames"), (replace(panned(0), events=None), "events")):
        with pytest.raises(BadInput, match=f"has no {lacks}"):
            changed.with_event_offset(0)


def test_events_before_zero_are_not_written(tmp_path: Path) -> None:
    moved = street(104).with_event_offset(-120_000)
    with pytest.raises(BadInput, match=r"begin at -1.* us, and times in files count from 0"):
        write_native(tmp_path / "moved", moved)
    write_native(tmp_path / "cut", moved.slice(Window(0, 800_000)))
    assert Recording.open(tmp_path / "cut").span.start_us >= 0


def test_whole_numbers_of_numpy_are_offsets() -> None:
    """Differences of times are such."""
    moved = panned(0).with_event_offset(np.int64(1000))  # type: ignore[arg-type]
    assert moved.event_offset is not None and type(moved.event_offset.us) is int and moved.event_offset.us == 1000
