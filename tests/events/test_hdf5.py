"""DSEC and MVSEC HDF5: offsets, indices that lie, packed columns, and files that claim what they do not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events import EventStream
from eventspec.events.formats import dsec_h5, hdf5, open_events, read_events

COLUMNS = encoders.street(3000, 640, 480, longest_step_us=40)
DAVIS = {**encoders.street(500, 346, 260), "t": encoders.street(500, 1, 1)["t"] + 1_506_117_901_000_123}


def same(stream: EventStream, columns: dict[str, Any]) -> None:
    for name in "xytp":
        assert np.array_equal(getattr(stream, name), columns[name]), name


def edited(path: Path, data: bytes, change: Any) -> Path:
    path.write_bytes(data)
    with h5py.File(path, "a") as file:
        change(file)
    return path


# -------------------------------------------------------------------------------------------------------------------- DSEC
def test_the_offset_is_added_and_the_sensor_is_dsecs(tmp_path: Path) -> None:
    offset_us = 51_836_949_776
    columns = {**COLUMNS, "t": COLUMNS["t"] + offset_us}
    (tmp_path / "e").write_bytes(encoders.dsec(**columns, offset_us=offset_us))
    found = open_events(tmp_path / "e")
    assert found.events is not None and found.format == "dsec-h5" and found.events.width == 640
    same(found.events, columns)
    assert found.notes == ("sensor size 640x480 (DSEC) is assumed: the file does not say, and every event fits",)


def test_without_an_offset_times_stand_as_they_are(tmp_path: Path) -> None:
    path = edited(tmp_path / "e", encoders.dsec(**COLUMNS), lambda file: file.__delitem__("t_offset"))
    found = open_events(path, (640, 480))
    assert found.notes == ("times are taken as they stand: there is no t_offset",)
    assert found.events is not None and found.events.t[-1] == COLUMNS["t"][-1]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(-50, 70_000),
    length=st.integers(1, 30_000),
    index=st.sampled_from(["right", "none", "wrong", "short", "late", "early"]),
)
def test_a_window_is_exact_whatever_the_index_says(tmp_path: Path, start: int, length: int, index: str) -> None:
    def change(file: Any) -> None:
        right = file["ms_to_idx"][...]
        if index != "right":
            del file["ms_to_idx"]
        if index == "wrong":
            file["ms_to_idx"] = right[::-1] + np.uint64(7)
        if index == "short":
            file["ms_to_idx"] = right[:3]
        if index in ("late", "early"):  # of another cut of the file: in order, and each millisecond longer than a chunk
            file["ms_to_idx"] = np.clip(right.astype(np.int64) + (300 if index == "late" else -300), 0, 3000)

    path = edited(tmp_path / "e", encoders.dsec(**COLUMNS, chunks=(128,)), change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "BLOCK", 50)
        patch.setattr(hdf5, "CHUNK", 16)
        patch.setattr("eventspec.events.stored.HELD_EVENTS", 10)
        patch.setattr("eventspec.events.stored.LEAST_HELD", 10)
        stream = read_events(path)
        part = stream.slice(Window(start, start + length))
    inside = (COLUMNS["t"] >= start) & (COLUMNS["t"] < start + length)
    same(part, {name: values[inside] for name, values in COLUMNS.items()})
    assert stream.span == Window(int(COLUMNS["t"][0]), int(COLUMNS["t"][-1]) + 1) and len(stream) == 3000


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 49), st.integers(0, 3000), st.integers(0, 1)), max_size=30))
def test_what_is_written_is_read_back_and_indexed(tmp_path: Path, drawn: list[tuple[int, int, int, int]]) -> None:
    t = np.cumsum([event[2] for event in drawn], dtype=np.int64) + 77_000_000_123
    stream = EventStream.checked(*([event[k] for event in drawn] for k in (0, 1)), t, [event[3] for event in drawn], 100, 50)
    dsec_h5.write(tmp_path / "e", stream)
    found = open_events(tmp_path / "e")
    assert found.events is not None and found.notes == () and found.events.height == 50
    same(found.events, {name: getattr(stream, name) for name in "xytp"})
    with h5py.File(tmp_path / "e") as file:
        times, index = file["events/t"][...], file["ms_to_idx"][...]
        assert (file["events/x"].dtype, times.dtype, index.dtype) == (np.uint16, np.uint32, np.uint64)
        assert np.array_equal(index, np.searchsorted(times, np.arange(len(index)) * 1000))
        assert not len(times) or len(index) == times[-1] // 1000 + 1


def test_what_the_layout_has_no_room_for_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has room for 4294967296: write cuts of it"):
        dsec_h5.write(tmp_path / "e", EventStream.checked([1, 1], [1, 1], [0, 1 << 32], [1, 1], 4, 4))
    with pytest.raises(BadInput, match="needs events in order of time"):
        dsec_h5.write(tmp_path / "e", EventStream.checked([1, 1], [1, 1], [2, 1], [1, 1], 4, 4, monotonic="keep"))


def test_columns_are_read_in_blocks_and_wider_ones_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of 64 bits would need more memory beside the events than the events."""
    monkeypatch.setattr(hdf5, "BLOCK", 700)
    (tmp_path / "narrow").write_bytes(encoders.dsec(**COLUMNS))
    same(read_events(tmp_path / "narrow"), COLUMNS)
    with h5py.File(tmp_path / "wide", "w") as file:
        for name in "xytp":
            file[f"events/{name}"] = np.asarray(COLUMNS[name], np.int64)
    same(read_events(tmp_path / "wide"), COLUMNS)


def test_blosc_is_read_where_hdf5plugin_is_installed(tmp_path: Path) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    (tmp_path / "e").write_bytes(encoders.dsec(**COLUMNS, **plugin.Blosc(cname="zstd", shuffle=plugin.Blosc.SHUFFLE)))
    same(read_events(tmp_path / "e"), COLUMNS)


def test_a_filter_that_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        del file["events/t"]
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((3000,))
        plan.set_filter(32099 + 1, h5py.h5z.FLAG_OPTIONAL, ())  # nobody has it
        space = h5py.h5s.create_simple((3000,))
        made = h5py.h5d.create(file.id, b"events/t", h5py.h5t.STD_U32LE, space, plan)
        made.write_direct_chunk((0,), b"packed", 0)

    path = edited(tmp_path / "e", encoders.dsec(**COLUMNS), change)
    with pytest.raises(BadInput, match=r"events/t is compressed with a filter \(filter 32100\): install hdf5plugin \(pip"):
        read_events(path)


def remade(name: str, data: Any = None, **options: Any) -> Any:
    """A change that replaces one dataset, or a part of one matrix."""

    def change(file: Any) -> None:
        del file[name]
        if options:
            file.create_dataset(name, data=data, **options)
        else:
            file[name] = data

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file["events/t"].__setitem__(5, 9_000_000), "t[6] is"),
        (lambda file: file["events/x"].__setitem__(5, 640), "x[5] is 640: outside the sensor (width 640)"),
        (lambda file: file["events"].move("y", "z"), "looks like an HDF5 file with another layout"),
        (remade("events/y", [1]), "the columns differ in length"),
        (remade("t_offset", "1"), "t_offset is object of shape ()"),
        (remade("t_offset", np.int64(-99_999)), "t[0] is -"),
        (remade("events/p", h5py.SoftLink("/events/x")), "events/p is not a dataset stored in the file itself"),
        (remade("events/p", shape=(10**12,), dtype="u1", chunks=(999,)), "claims 1000000000000 bytes but stores 0"),
        (remade("events/p", shape=(3000,), dtype="u1", chunks=(10**8,), maxshape=(None,)), "in chunks of (100000000,)"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, change: Any, words: str) -> None:
    path = edited(tmp_path / "e", encoders.dsec(**COLUMNS), change)
    with pytest.raises(BadInput) as refused:
        read_events(path)
    assert words in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (48, 0x74, "asks for a driver of several files"),  # HDF5 would read a gigabyte for it
        (40, 1 << 40, "it should have 1099511627776 bytes"),
        (24, 512, "it should have"),
        (8, 9, "superblock version 9"),
        (13, 4, "width of addresses is unknown"),
    ],
)
def test_a_superblock_that_no_single_file_has_is_refused_unopened(tmp_path: Path, place: int, value: int, words: str) -> None:
    data = bytearray(encoders.dsec(**COLUMNS))
    width = 8 if place >= 24 else 1
    data[place : place + width] = value.to_bytes(8, "little")[:width]
    (tmp_path / "e").write_bytes(data)
    with pytest.raises(BadInput, match=words):
        read_events(tmp_path / "e")


@pytest.mark.parametrize("version", [("earliest", "v108"), ("v110", "v110"), ("v112", "v112"), "latest"])
def test_files_of_every_version_of_hdf5_are_read(tmp_path: Path, version: Any) -> None:
    with h5py.File(tmp_path / "e", "w", libver=version) as file:
        for name in "xytp":
            file[f"events/{name}"] = COLUMNS[name]
    same(read_events(tmp_path / "e"), COLUMNS)


# ------------------------------------------------------------------------------------------------------------------- MVSEC
def test_unix_seconds_become_microseconds_to_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(encoders.mvsec(**DAVIS, frames=3))
    found = open_events(tmp_path / "e")
    assert found.events is not None and found.format == "mvsec-hdf5" and (found.events.width, found.events.height) == (346, 260)
    same(found.events, DAVIS)
    assert encoders.frames_of(found) is not None and encoders.frames_of(found).shape == (3, 26, 34, 3)
    assert found.frames is not None
    assert (found.frames[2] - DAVIS["t"][0]).tolist() == [0, 20_000, 40_000]


def test_the_other_camera_is_told_of(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        file.copy("davis/left", "davis/right")

    found = open_events(edited(tmp_path / "e", encoders.mvsec(**DAVIS, frames=3), change))
    assert found.notes[0] == "two event cameras: only davis/left is read"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file["davis/left/events"].__setitem__((4, 2), np.nan), "time 4 is nan s: mend or remove the event"),
        (lambda file: file["davis/left/events"].__setitem__((4, 2), 1.0), "t[4] is 1000000, before t[3]"),
        (lambda file: file["davis/left/events"].__setitem__((4, 0), 1.5), "x[4] is 1.5"),
        (remade("davis/left/events", np.zeros((3, 5))), "events is float64 of shape (3, 5)"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_events(edited(tmp_path / "e", encoders.mvsec(**DAVIS), change))
    assert words in str(refused.value)
