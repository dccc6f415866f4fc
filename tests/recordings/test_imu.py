"""The IMU as a sense: read from AEDAT4 and MVSEC, cut, kept by native folders, and out of what is asked about."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import encoders
import h5py
import numpy as np
import pytest

from eventspec.ask.generation import media_of
from eventspec.cli import run
from eventspec.core import BadInput, Window
from eventspec.imu import ImuStream
from eventspec.recordings import Recording, write_native

CLIP = Path(__file__).parents[2].parent / "shared/recordings/aedat4/davis346_traffic_clip.aedat4"
TRAFFIC = CLIP.with_name("davis346_traffic.aedat4")
needs_clip = pytest.mark.skipif(not CLIP.exists(), reason="shared recordings are not here")
START_US = 1_500_000_000_000_000


def drive(path: Path, samples: Any, times: Any = None, names: tuple[str, str] = ("imu", "imu_ts")) -> Path:
    """An MVSEC file of a moment, with these samples [N, 6]."""
    t = START_US + np.arange(100) * 1000
    path.write_bytes(encoders.mvsec(t * 0 + 3, t * 0 + 4, t, t % 2, frames=3))
    with h5py.File(path, "a") as file:
        file[f"davis/left/{names[0]}"] = samples
        file[f"davis/left/{names[1]}"] = START_US / 1e6 + np.arange(len(samples)) * 1e-3 if times is None else times
    return path


def at_rest(n: int = 50) -> Any:
    rng = np.random.default_rng(0)
    return np.hstack([rng.normal([0, 9.8, 0.5], 0.05, (n, 3)), rng.normal(0, 0.1, (n, 3))])


@needs_clip
def test_aedat4_has_the_samples_in_si_units() -> None:
    recording = Recording.open(TRAFFIC)
    assert recording.imu is not None and len(recording.imu) == 2363
    imu = recording.imu
    assert imu.t[0] == 1589163147369190 and imu.accelerometer.dtype == imu.gyroscope.dtype == np.float32
    # (0.02758789, -0.9951172, 0.2590332) g, (0.7781982, -0.5187988, -0.01525879) degrees a second
    assert imu.accelerometer[0].tolist() == pytest.approx([0.270545, -9.758767, 2.540248], abs=1e-5)
    assert imu.gyroscope[0].tolist() == pytest.approx([0.0135821, -0.0090547, -0.00026632], abs=1e-6)
    assert np.linalg.norm(imu.accelerometer, axis=1).mean() == pytest.approx(9.81, rel=0.06), "a camera at rest shows gravity"


@needs_clip
def test_a_native_folder_keeps_every_sample_and_a_cut_its_own(tmp_path: Path) -> None:
    recording = Recording.open(CLIP)
    assert recording.imu is not None
    for name, kept in (
        ("whole", recording),
        ("cut", recording.slice(Window(recording.span.start_us, recording.span.start_us + 50_000))),
    ):
        write_native(tmp_path / name, kept)
        again = Recording.open(tmp_path / name).imu
        assert again is not None and kept.imu is not None and 0 < len(again) == len(kept.imu)
        for column in ("t", "accelerometer", "gyroscope"):
            own, read = getattr(kept.imu, column), getattr(again, column)
            assert own.dtype == read.dtype and np.array_equal(own, read)
    assert len(recording.slice(Window(0, recording.span.start_us + 50_000)).imu or ()) < len(recording.imu)


@needs_clip
def test_a_torn_file_keeps_the_samples_before_the_tear(tmp_path: Path) -> None:
    (tmp_path / "torn.aedat4").write_bytes(CLIP.read_bytes()[:214_683])
    torn, whole = Recording.open(tmp_path / "torn.aedat4").imu, Recording.open(CLIP).imu
    assert torn is not None and whole is not None
    assert 0 < len(torn) < len(whole) and np.array_equal(torn.t, whole.t[: len(torn)])


@needs_clip
def test_samples_beyond_what_may_be_held_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 100)
    recording = Recording.open(CLIP)
    assert recording.imu is not None and len(recording.imu) <= 100
    assert any("IMU samples are left out" in note for note in recording.notes)


@needs_clip
def test_the_span_and_the_answers_are_those_of_events_and_frames() -> None:
    recording = Recording.open(TRAFFIC)
    assert recording.span == replace(recording, imu=None).span
    assert recording.senses_in(recording.span) == {"events", "frames", "imu"} == set(media_of(recording))
    assert recording.imu is not None and recording.imu.slice(Window(0, 1)).span is None


@needs_clip
def test_events_info_and_convert_say_what_becomes_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["events", "info", str(CLIP)]) == 0 and "160 samples" in capsys.readouterr().out
    assert run(["events", "convert", str(CLIP), str(tmp_path / "native"), "--json"]) == 0
    assert "IMU" not in capsys.readouterr().err
    assert run(["events", "convert", str(CLIP), str(tmp_path / "events.npz"), "--json"]) == 0
    assert "160 IMU samples are not in events.npz" in capsys.readouterr().err
    assert run(["events", "info", str(tmp_path / "native"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["imu"] == 160


@pytest.mark.parametrize("names", [("imu", "imu_ts"), ("imu/data", "imu/ts")])
def test_mvsec_has_the_samples_of_the_camera_that_is_read(tmp_path: Path, names: tuple[str, str]) -> None:
    samples = at_rest()
    recording = Recording.open(drive(tmp_path / "drive_data.hdf5", samples, names=names))
    assert recording.imu is not None and recording.imu.t.tolist() == (START_US + np.arange(50) * 1000).tolist()
    assert np.array_equal(recording.imu.accelerometer, samples[:, :3].astype(np.float32))
    assert np.array_equal(recording.imu.gyroscope, samples[:, 3:].astype(np.float32))


def test_gravity_tells_which_columns_are_acceleration(tmp_path: Path) -> None:
    samples = at_rest()[:, [3, 4, 5, 0, 1, 2]]
    recording = Recording.open(drive(tmp_path / "drive_data.hdf5", samples))
    assert recording.imu is not None and any("last three" in note for note in recording.notes)
    assert np.array_equal(recording.imu.accelerometer, samples[:, 3:].astype(np.float32))


def test_a_file_without_an_imu_has_none(tmp_path: Path) -> None:
    t = START_US + np.arange(9)
    (tmp_path / "drive_data.hdf5").write_bytes(encoders.mvsec(t * 0, t * 0, t, t % 2, frames=1))
    recording = Recording.open(tmp_path / "drive_data.hdf5")
    assert recording.imu is None and "imu" not in recording.streams


@pytest.mark.parametrize(
    ("samples", "times", "told"),
    [
        (at_rest()[:, :5], None, r"imu is float64 of shape \(50, 5\) with 50 times"),
        (at_rest(), np.arange(7.0), "with 7 times"),
        (at_rest().astype(int), None, "imu is int64"),
        (at_rest(), np.full(50, np.nan), "imu_ts holds times that are no numbers"),
    ],
)
def test_samples_that_do_not_fit_are_left_out_and_noted(tmp_path: Path, samples: Any, times: Any, told: str) -> None:
    """No model reads them: events and frames are as good as ever."""
    recording = Recording.open(drive(tmp_path / "drive_data.hdf5", samples, times))
    assert recording.imu is None
    assert recording.events is not None and len(recording.events)
    assert any(re.search(told, note) and note.endswith("the IMU is left out") for note in recording.notes)


def test_more_samples_than_the_file_has_bytes_for_are_refused_unread(tmp_path: Path) -> None:
    path = drive(tmp_path / "drive_data.hdf5", at_rest())
    with h5py.File(path, "a") as file:
        del file["davis/left/imu"]
        del file["davis/left/imu_ts"]
        file.create_dataset("davis/left/imu", ((1 << 24) + 1, 6), "f8", chunks=(1024, 6), compression="gzip")
        file.create_dataset("davis/left/imu_ts", ((1 << 24) + 1,), "f8", chunks=(1024,), compression="gzip")
    with pytest.raises(BadInput, match="claims"):
        Recording.open(path)


def test_an_imu_at_rest_is_packed_well_and_opens_again(tmp_path: Path) -> None:
    """Its samples take far more memory than the file."""
    samples = np.tile(np.array([[0.0, 0.0, 9.81]], np.float32), (400_000, 1))
    imu, _ = ImuStream.checked(np.arange(400_000) * 1000, samples, samples * 0)
    t = np.arange(5) * 1000
    events = (t * 0, t * 0, t, t % 2)
    whole = replace(Recording.from_arrays(events=events, sensor=(8, 8)), imu=imu)
    write_native(tmp_path / "own", whole)
    assert (tmp_path / "own/imu.h5").stat().st_size * 40 < imu.t.nbytes + 2 * samples.nbytes
    again = Recording.open(tmp_path / "own").imu
    assert again is not None and np.array_equal(again.t, imu.t)


def test_a_native_folder_with_a_damaged_imu_is_refused(tmp_path: Path) -> None:
    t = np.arange(5) * 1000
    imu, _ = ImuStream.checked(t, np.ones((5, 3)), np.ones((5, 3)))
    own = Recording.from_arrays(events=(t % 4, t % 4, t, t % 2), sensor=(8, 8))
    write_native(tmp_path / "whole", replace(own, imu=imu))
    assert np.array_equal(Recording.open(tmp_path / "whole").imu.t, t)  # type: ignore[union-attr]
    place = tmp_path / "whole/imu.h5"
    place.write_bytes(place.read_bytes()[:-100])
    with pytest.raises(BadInput, match="damaged or cut short"):
        Recording.open(tmp_path / "whole")
    place.unlink()
    with pytest.raises(BadInput, match=r"imu.file names 'imu.h5', which is not there"):
        Recording.open(tmp_path / "whole")


def test_the_imu_moves_with_the_events(tmp_path: Path) -> None:
    recording = Recording.open(drive(tmp_path / "drive_data.hdf5", at_rest()))
    moved = recording.with_event_offset(7_000)
    assert moved.imu is not None and recording.imu is not None
    assert np.array_equal(moved.imu.t, recording.imu.t + 7_000)
