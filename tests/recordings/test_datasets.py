"""Data sets as they lie on disk: what is read of them, and what is told of what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events.stored import StoredStream
from eventspec.recordings import Recording, datasets, dsec, mvsec
from eventspec.video import stored
from eventspec.video.stored import StoredFrames

KINDS = sorted(trees.TREES)


@pytest.fixture
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The miniature tree of the parameter's kind."""
    found: Path = trees.TREES[request.param](tmp_path / "data")
    return found


@pytest.fixture
def sequence(tmp_path: Path) -> Path:
    return trees.dsec_sequence(tmp_path / "interlaken_00_c")


@pytest.fixture
def long_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as too long to be held in memory."""
    monkeypatch.setattr(stored, "HELD_BYTES", 1000)
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 100)
    monkeypatch.setattr("eventspec.events.stored.LEAST_HELD", 100)


def refused(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(BadInput) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ------------------------------------------------------------------------------------------------------------ every layout
@pytest.mark.parametrize(("root", "kind"), [(kind, kind) for kind in KINDS], indirect=["root"])
def test_a_tree_is_known_by_its_content_and_no_other(root: Path, kind: str) -> None:
    assert [name for name, layout in datasets.LAYOUTS.items() if layout.matches(root)] == [kind]
    assert datasets.layout_of(root).name == kind == datasets.layout_of(root, kind).name


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_folder_is_nothing_and_lacks_everything(tmp_path: Path, kind: str) -> None:
    assert "is none of DSEC (dsec), MVSEC" in refused(datasets.layout_of, tmp_path)
    report = datasets.LAYOUTS[kind].inspect(tmp_path)
    assert report.parts == () and report.wrong == () and report.missing
    assert "no such file or folder" in refused(datasets.layout_of, tmp_path / "none", kind)
    assert "kind 'coco' is unknown: choose one of dsec, mvsec" in refused(datasets.layout_of, tmp_path, "coco")


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_tree_with_anything_lost_or_torn_is_reported_and_never_fails(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    """Whole trees lack what their builders leave out. The last bytes of a file may matter to nobody, its second half does."""
    place = tmp_path_factory.mktemp("tree") / "data"
    trees.TREES[kind](place)
    layout = datasets.LAYOUTS[kind]
    whole = layout.inspect(place)
    assert not whole.wrong and len(whole.missing) == (0 if kind in ("dsec", "mvsec") else 1)
    unread = ("disparity", "rectify", "_gt")
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and not any(word in str(path) for word in unread)]
    victim = data.draw(st.sampled_from(files))
    unopened = (".mp4", ".npy", *([".png"] if kind == "llava" else []))
    if data.draw(st.booleans()) or victim.suffix in unopened:
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[: data.draw(st.integers(0, victim.stat().st_size // 2))])
    report = layout.inspect(place)
    assert report != whole
    assert all("\n" not in line for line in (*report.missing, *report.wrong))


# -------------------------------------------------------------------------------------------------------------------- DSEC
def test_a_sequence_has_events_and_frames_on_the_images_clock(sequence: Path) -> None:
    recording = Recording.open(sequence)
    assert (recording.name, recording.source_format) == ("interlaken_00_c", "dsec")
    assert recording.events is not None and recording.video is not None
    assert (recording.events.width, recording.events.height) == (640, 480)
    assert recording.events.t.tolist() == trees.EVENTS["t"].tolist()  # t_offset is added
    assert recording.video.times_us.tolist() == [trees.START_US + trees.FRAME_US * index for index in range(4)]
    assert recording.video.frames[2][0, 0].tolist() == [40, 40, 90]
    assert any("pixels do not lie on each other" in note for note in recording.notes)


@pytest.mark.usefixtures("long_clips")
def test_a_long_sequence_is_opened_without_its_frames_and_events(sequence: Path) -> None:
    damaged = sequence / "images/left/rectified/000003.png"
    damaged.write_bytes(damaged.read_bytes()[:-25])
    recording = Recording.open(sequence)
    assert recording.video is not None and isinstance(recording.video.frames, StoredFrames)
    assert isinstance(recording.events, StoredStream)
    cut = recording.slice(Window(trees.START_US + 40_000, trees.START_US + 110_000))
    assert cut.video is not None and cut.events is not None
    assert cut.video.frames[np.array([0, 1])][:, 0, 0, 0].tolist() == [20, 40]
    inside = (trees.EVENTS["t"] >= trees.START_US + 40_000) & (trees.EVENTS["t"] < trees.START_US + 110_000)
    assert len(cut.events) == inside.sum() > 0
    assert "000003.png: not a readable image" in refused(lambda: recording.video.frames[3])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "moves",
    [
        {"images/timestamps.txt": "images/left/timestamps.txt"},
        {"images/timestamps.txt": "images/left/rectified/timestamps.txt"},
        {
            "events/left": "SEQ_events_left",
            "images/left/rectified": "SEQ_images_rectified_left",
            "images/timestamps.txt": "SEQ_image_timestamps.txt",
        },
        {"images/left/rectified": "images/left/distorted"},
    ],
    ids=["times beside the images", "times among the images", "archives side by side", "the event camera's view"],
)
def test_a_sequence_may_lie_as_its_archives_unpack(sequence: Path, moves: dict[str, str]) -> None:
    whole = Recording.open(sequence)
    for old, new in moves.items():
        target = sequence / new.replace("SEQ", sequence.name)
        target.parent.mkdir(exist_ok=True)
        (sequence / old).rename(target)
    again = Recording.open(sequence)
    assert again.span == whole.span and again.video is not None and len(again.video) == 4
    assert any("pixels do not lie" in note for note in again.notes) == ("images/left/rectified" not in moves or len(moves) > 1)


def test_half_a_sequence_is_a_recording_and_a_note_says_what_is_missing(sequence: Path) -> None:
    shutil.copytree(sequence, sequence.parent / "deaf")
    shutil.rmtree(sequence / "images")
    shutil.rmtree(sequence.parent / "deaf/events")
    blind, deaf = Recording.open(sequence), Recording.open(sequence.parent / "deaf")
    assert blind.video is None and "images/left/rectified is not there: the recording has events only" in blind.notes
    assert deaf.events is None and "events/left/events.h5 is not there: the recording has frames only" in deaf.notes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: (folder / "images/timestamps.txt").unlink(), "has images but no images/timestamps.txt"),
        (lambda folder: trees.times(folder / "images/timestamps.txt", 3), "timestamps.txt: 3 times for 4 images"),
        (lambda folder: trees.times(folder / "images/timestamps.txt", 4, 7), "do not overlap: give files of one recording"),
        (lambda folder: (folder / "images/timestamps.txt").write_text("1.5\n"), "timestamps.txt: line 1 is '1.5'"),
        (lambda folder: (folder / "images/timestamps.txt").write_text("4\n3\n2\n1\n"), "times_us[1] is 3, before 4"),
        (lambda folder: (folder / "events/left/events.h5").write_bytes(b"\x89HDF\r\n\x1a\n"), "events.h5"),
        (lambda folder: trees.images(folder / "images/left/rectified/deep", 1), ""),
    ],
)
def test_a_sequence_whose_files_do_not_fit_is_refused(sequence: Path, change: Any, told: str) -> None:
    change(sequence)
    if not told:
        assert len(Recording.open(sequence).video or ()) == 4  # folders among the images are not looked into
        return
    assert told in refused(Recording.open, sequence)
    report = dsec.inspect(sequence.parent)
    assert any(told in line for line in (*report.wrong, *report.missing)) and report.parts[0].facts == {}


def test_a_folder_of_sequences_is_told_from_a_recording(tmp_path: Path) -> None:
    trees.dsec(tmp_path / "DSEC")
    told = refused(Recording.open, tmp_path / "DSEC")
    assert "is a folder of DSEC sequences: open one of them, such as test/thun_01_a" in told
    found = [path.relative_to(tmp_path).as_posix() for path in dsec.sequences(tmp_path)]
    assert found == ["DSEC/test/thun_01_a", "DSEC/train/interlaken_00_c"]


def test_the_report_names_each_missing_part_by_its_sequence(tmp_path: Path) -> None:
    root = trees.dsec(tmp_path / "DSEC")
    shutil.rmtree(root / "test/thun_01_a/images")
    report = dsec.inspect(root)
    assert report.missing == ("test/thun_01_a/images/left/rectified", "test/thun_01_a/images/timestamps.txt")
    assert not report.wrong and [part.facts["frames"] for part in report.parts] == [None, 4]


# ------------------------------------------------------------------------------------------------------------------- MVSEC
def test_a_data_file_has_events_and_frames_in_unix_microseconds(tmp_path: Path) -> None:
    root = trees.mvsec(tmp_path / "MVSEC")
    names = [path.name for path in mvsec.data_files(root)]
    assert names == ["outdoor_day1_data.hdf5", "indoor_flying1_data.hdf5"]  # not _gt.hdf5, which is HDF5 too
    recording = Recording.open(root / "indoor_flying/indoor_flying1_data.hdf5")
    assert (recording.name, recording.source_format) == ("indoor_flying1_data", "mvsec-hdf5")
    assert recording.events is not None and recording.video is not None
    assert len(recording.events) == 300 and recording.events.t[0] == recording.video.times_us[0] > 15e14
    assert recording.video.frames.shape == (3, 26, 34, 3)


@pytest.mark.usefixtures("long_clips")
def test_frames_of_a_long_drive_stay_in_the_file_in_order_of_time(tmp_path: Path) -> None:
    path = trees.mvsec(tmp_path / "MVSEC") / "indoor_flying/indoor_flying1_data.hdf5"
    with h5py.File(path, "r+") as file:
        times = file["davis/left/image_raw_ts"][...]
        file["davis/left/image_raw_ts"][...] = times[[0, 2, 1]]  # the second and third come in the wrong order
        file["davis/left/image_raw"][...] = np.array([10, 20, 30], np.uint8)[:, None, None]
    video = Recording.open(path).video
    assert video is not None and isinstance(video.frames, StoredFrames)
    assert np.asarray(video.frames)[:, 0, 0].tolist() == [[10] * 3, [30] * 3, [20] * 3]
    assert (np.diff(video.times_us) > 0).all()


def test_a_drive_without_frames_is_a_recording_and_reported(tmp_path: Path) -> None:
    path = trees.mvsec(tmp_path / "MVSEC") / "outdoor_day1_data.hdf5"
    with h5py.File(path, "r+") as file:
        del file["davis/left/image_raw_ts"]
    recording = Recording.open(path)
    assert recording.video is None and recording.notes[-1].endswith("the recording has events only")
    assert mvsec.inspect(path).missing == ("outdoor_day1_data.hdf5/davis/left/image_raw_ts",)


def test_more_frame_times_than_the_file_has_bytes_are_refused_unread(tmp_path: Path) -> None:
    path = trees.mvsec(tmp_path / "MVSEC") / "outdoor_day1_data.hdf5"
    with h5py.File(path, "r+") as file:
        del file["davis/left/image_raw"], file["davis/left/image_raw_ts"]
        file.create_dataset("davis/left/image_raw", (1 << 20, 1, 1), "u1", chunks=(4096, 1, 1))  # neither is ever written
        file.create_dataset("davis/left/image_raw_ts", (1 << 20,), "f8", chunks=(4096,))
    assert "image_raw is uint8 of shape (1048576, 1, 1)" in refused(Recording.open, path)


def test_frames_of_another_day_are_refused(tmp_path: Path) -> None:
    path = trees.mvsec(tmp_path / "MVSEC") / "outdoor_day1_data.hdf5"
    with h5py.File(path, "r+") as file:
        file["davis/left/image_raw_ts"][...] += 86400.0
    assert "outdoor_day1_data.hdf5: events [" in refused(Recording.open, path)
    assert "do not overlap" in mvsec.inspect(path.parent).wrong[0]
