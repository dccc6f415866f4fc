"""Events and frames on one clock: what opens, what a window is, and when two files belong together."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import eventspec
from eventspec.core import BadInput, Window
from eventspec.events import EventStream
from eventspec.events.formats import npz
from eventspec.pairs import load_folders
from eventspec.recordings import Recording, eventgpt_json, write_native
from eventspec.recordings.qa import read_questions
from eventspec.video import VideoClip

SHARED = Path(__file__).parents[2].parent / "shared"
AEDAT4 = SHARED / "recordings/aedat4/davis346_traffic.aedat4"
NPY = SHARED / "recordings/eventgpt_npy/eventgpt_dsec_interlaken_00_d_000089.npy"
BUNDLED = Path(str(files("eventspec"))) / "data/clips/davis346_traffic_1s"

with_shared = pytest.mark.skipif(not SHARED.exists(), reason="shared recordings are not here")


def events_at(*times: int) -> EventStream:
    zeros = [0] * len(times)
    return EventStream.checked(zeros, zeros, times, zeros, 4, 3)


def video_at(*times: int) -> VideoClip:
    return VideoClip.checked(np.zeros((len(times), 3, 4, 3), np.uint8), np.array(times, np.int64))


def events_file(path: Path, *times: int) -> Path:
    with path.open("wb"):
        npz.write(path, events_at(*times))
    return path


def image_folder(folder: Path, *times: int) -> Path:
    folder.mkdir()
    for index in range(len(times)):
        Image.new("RGB", (4, 3)).save(folder / f"{index}.png")
    (folder / "timestamps.txt").write_text("\n".join(map(str, times)))
    return folder


# ------------------------------------------------------------------------------------------------------------------ opening
@with_shared
def test_an_aedat4_recording_has_events_and_frames_on_one_clock() -> None:
    recording = eventspec.Recording.open(AEDAT4)
    assert recording.events is not None and recording.video is not None
    assert (len(recording.events), len(recording.video), recording.source_format) == (78830, 59, "aedat4")
    assert recording.video.times_us[0] == 1589163147365215 and recording.name == "davis346_traffic"
    assert recording.span == Window(1589163147365215, 1589163149728814)
    assert "frame times are the middle of the exposure" in recording.notes


@with_shared
def test_a_second_of_traffic_shows_its_motion_in_both_sensors() -> None:
    """Where the frames change, the events are: the two streams are synchronised and aligned."""
    recording = Recording.open(BUNDLED)
    assert recording.events is not None and recording.video is not None
    change = np.zeros((260, 346))
    counts = np.zeros((260, 346))
    np.add.at(counts, (recording.events.y, recording.events.x), 1)
    grey = recording.video.frames[..., 0].astype(float)
    change = np.abs(grey[1:] - grey[:-1]).mean(axis=0)
    coarse = [plane.reshape(26, 10, 346)[:, :, :340].reshape(26, 10, 34, 10).mean(axis=(1, 3)) for plane in (change, counts)]
    assert np.corrcoef(coarse[0].ravel(), coarse[1].ravel())[0, 1] > 0.5


@with_shared
def test_the_bundled_clip_is_a_cut_of_the_real_recording() -> None:
    bundled, whole = Recording.open(BUNDLED), Recording.open(AEDAT4)
    cut = whole.slice(Window(1589163147365215, 1589163148365215))
    assert bundled.events is not None and cut.events is not None and bundled.video is not None and cut.video is not None
    for name in ("x", "y", "t", "p"):
        assert np.array_equal(getattr(bundled.events, name), getattr(cut.events, name))
    assert np.array_equal(bundled.video.frames, cut.video.frames)
    assert np.array_equal(bundled.video.times_us, cut.video.times_us)


def test_the_bundled_clip_is_small_and_says_where_it_comes_from() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()) < 2_500_000
    assert "MIT License" in (BUNDLED / "LICENSE.MIT").read_text()
    assert "aedat 2.3.0" in (BUNDLED / "recording.toml").read_text()
    recording = Recording.open(BUNDLED)
    assert recording.events is not None and len(recording.events) == 35433
    assert recording.video is not None and recording.video.frames.shape == (25, 260, 346, 3)


@with_shared
def test_an_eventgpt_file_has_only_events() -> None:
    recording = Recording.open(NPY)
    assert recording.video is None and recording.source_format == "eventgpt-npy"
    assert recording.span == Window(51836949776, 51836999776)


def test_events_images_and_folders_open_by_their_content(tmp_path: Path) -> None:
    assert Recording.open(events_file(tmp_path / "e.bin", 1, 2)).source_format == "npz"
    recording = Recording.open(image_folder(tmp_path / "images", 5, 9))
    assert (recording.name, recording.source_format, recording.events) == ("images", "images", None)
    assert recording.span == Window(5, 10)


@pytest.mark.parametrize("name", ["nothing.aedat4", "nothing.mp4", "nothing"])
def test_a_missing_recording_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="no such file"):
        Recording.open(tmp_path / name)


def test_an_empty_folder_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"the folder is empty: give a recording"):
        Recording.open(tmp_path)
    (tmp_path / "v.mp4").write_bytes(b"")
    with pytest.raises(BadInput, match="the file is empty"):
        Recording.open(tmp_path / "v.mp4")


# ------------------------------------------------------------------------------------------------------------------ windows
@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 60))
def test_a_window_cuts_both_parts_and_none_outside(start: int, length: int) -> None:
    recording = Recording("r", events_at(10, 20, 20, 40), video_at(15, 30))
    window = Window(start, start + length)
    if window.end_us <= 10 or window.start_us >= 41:
        with pytest.raises(BadInput, match=r"the window \[.*\) us is outside the recording \[10, 41\) us"):
            recording.slice(window)
        return
    cut = recording.slice(window)
    assert cut.events is not None and cut.video is not None
    assert cut.events.t.tolist() == [t for t in (10, 20, 20, 40) if start <= t < start + length]
    assert cut.video.times_us.tolist() == [t for t in (15, 30) if start <= t < start + length]
    assert (start < 10 or start + length > 41) == any("reaches beyond" in note for note in cut.notes)


def test_no_window_is_the_whole_recording() -> None:
    recording = Recording("r", events_at(1), None)
    assert recording.slice(None) is recording


def test_a_recording_of_nothing_has_no_span() -> None:
    with pytest.raises(BadInput, match="neither events nor frames"):
        _ = Recording("r", EventStream.empty(4, 3), None).span
    assert Recording("r", EventStream.empty(4, 3), video_at(7)).span == Window(7, 8)


# -------------------------------------------------------------------------------------------------------------- two files
@pytest.mark.parametrize(
    ("event_times", "frame_times", "moved_events", "moved_frames", "words"),
    [
        ((10, 90), (15, 95), 10, 15, None),
        ((0, 100), (90, 190), 0, 90, "share only 11%"),
        (
            (51_836_949_776, 51_836_999_775),
            (0, 40_000),
            51_836_949_776,
            51_836_949_776,
            "the frames are moved by 51836949776 us",
        ),
        (
            (0, 40_000),
            (51_836_949_776, 51_836_999_775),
            51_836_949_776,
            51_836_949_776,
            "the events are moved by 51836949776 us",
        ),
    ],
    ids=["one clock", "little overlap", "frames from zero", "events from zero"],
)
def test_two_files_come_on_one_clock_and_a_note_says_how(
    tmp_path: Path, event_times: Any, frame_times: Any, moved_events: int, moved_frames: int, words: str | None
) -> None:
    video = image_folder(tmp_path / "images", *frame_times)
    recording = Recording.open_pair(events=events_file(tmp_path / "e.npz", *event_times), video=video)
    assert recording.events is not None and recording.video is not None
    assert (recording.events.t[0], recording.video.times_us[0]) == (moved_events, moved_frames)
    assert recording.source_format == "npz+images"
    assert recording.notes == () if words is None else words in recording.notes[-1]


def test_events_that_cover_little_of_the_frames_time_are_noted(tmp_path: Path) -> None:
    video = image_folder(tmp_path / "images", 0, 1_000_000)
    found = Recording.open_pair(events=events_file(tmp_path / "e.npz", 0, 3_000), video=video)
    told = "events cover only 0.3% of the frames' time: the events are from [0, 3001) us, the frames from [0, 1000001) us"
    assert found.notes == (told,)
    write_native(tmp_path / "native", found)
    assert Recording.open(tmp_path / "native").notes == (told,)
    assert Recording.open_pair(events=events_file(tmp_path / "f.npz", 0, 600_000), video=video).notes == ()
    columns = ([], [], [], [])
    none = Recording.from_arrays(events=columns, sensor=(4, 3), frames=np.zeros((2, 3, 4), np.uint8), times_us=[0, 9])
    assert none.notes == ("there are frames, and not one event",)


def test_two_running_clocks_that_do_not_meet_are_refused(tmp_path: Path) -> None:
    video = image_folder(tmp_path / "images", 5_000_000, 6_000_000)
    with pytest.raises(BadInput, match=r"events \[2000000, 3000001\) us and frames \[5000000, 6000001\) us do not overlap"):
        Recording.open_pair(events=events_file(tmp_path / "e.npz", 2_000_000, 3_000_000), video=video)


def test_each_of_two_files_must_hold_its_part(tmp_path: Path) -> None:
    events, video = events_file(tmp_path / "e.npz", 1), image_folder(tmp_path / "images", 1)
    with pytest.raises(BadInput, match="holds no event stream"):
        Recording.open_pair(events=video, video=video)
    with pytest.raises(BadInput, match="holds no frames"):
        Recording.open_pair(events=events, video=events)


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000], ids=["name", "path"])
def test_names_that_no_file_can_have_are_refused_wherever_they_stand(tmp_path: Path, name: str) -> None:
    native = tmp_path / "native"
    write_native(native, Recording("r", events_at(1, 2), None))
    (native / "recording.toml").write_text((native / "recording.toml").read_text().replace("events.h5", name))
    (tmp_path / "qa.jsonl").write_text(json.dumps({"recording": name, "question": "q", "answer": "a"}))
    (tmp_path / "pair.toml").write_text(f'format = "eventspec-pair"\nversion = 1\n[heads]\na = "{name}"\n')
    row = {"event_data": name, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    (tmp_path / "e.json").write_text(json.dumps([row]))
    asked: list[Callable[[], object]] = [
        lambda: eventgpt_json.KIND.questions(tmp_path / "e.json"),
        lambda: Recording.open(name),
        lambda: Recording.open(native),
        lambda: read_questions(tmp_path / "qa.jsonl"),
        lambda: write_native(tmp_path / name, Recording("r", events_at(1, 2), None)),
        lambda: eventspec.load_pair(name),
        lambda: eventspec.load_pair(tmp_path),
        lambda: load_folders(tmp_path / name),
    ]
    for ask in asked:
        with pytest.raises(BadInput, match="no such file, the name is too long: check the path"):
            ask()


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, name: str) -> None:
    row = {"event_data": name, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    (tmp_path / "e.json").write_text(json.dumps([row]))
    with pytest.raises(BadInput, match=r"record 0: event_data is .*: name a file inside it"):
        eventgpt_json.KIND.questions(tmp_path / "e.json")


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    with pytest.raises(BadInput) as refused:
        Recording.open("no\nsuch\rfile")
    assert str(refused.value) == "no such file: no such file: check the path"


def test_an_empty_path_is_not_the_working_folder() -> None:
    with pytest.raises(BadInput, match="path is empty"):
        Recording.open("")
