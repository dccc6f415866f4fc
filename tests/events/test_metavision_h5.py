"""Metavision's HDF5, as the SDK lays it out, with and without its own compression."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from eventspec.core import BadInput, Window
from eventspec.events.formats import SizeUnknown, open_events

RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
ECF = 36559


def records(count: int = 50) -> np.ndarray[Any, np.dtype[Any]]:
    rows = np.zeros(count, RECORD)
    rows["x"], rows["y"] = np.arange(count) % 1280, np.arange(count) % 720
    rows["t"], rows["p"] = np.arange(count) * 7 + 11_000_000, np.arange(count) % 2
    return rows


def write(path: Path, rows: Any, attributes: dict[str, Any] | None = None, **packing: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("CD/events", data=rows, **packing)
        file.create_dataset("CD/indexes", data=np.zeros(1, [("id", "<u8"), ("ts", "<i8")]))
        file.attrs.update({"geometry": "1280x720", "format": "ECF"} if attributes is None else attributes)
    return path


@pytest.mark.parametrize("packing", [{}, {"chunks": (16,)}, {"chunks": (16,), "compression": "gzip", "shuffle": True}])
def test_plain_and_deflated_files_open(tmp_path: Path, packing: dict[str, Any]) -> None:
    rows = records()
    found = open_events(write(tmp_path / "e.hdf5", rows, **packing))
    assert found.format == "metavision-h5" and found.events is not None and found.notes == ()
    assert (found.events.width, found.events.height) == (1280, 720)
    for name in "xytp":
        assert np.array_equal(getattr(found.events, name), rows[name])


def test_a_long_file_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 10)
    rows = records()
    events = open_events(write(tmp_path / "e.hdf5", rows)).events
    assert events is not None and "StoredStream" in repr(events)
    cut = events.slice(Window(int(rows["t"][20]), int(rows["t"][30])))
    assert np.array_equal(cut.t, rows["t"][20:30])


def ecf(path: Path) -> Path:
    """Sixteen events that no plugin unpacks."""
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((16,))
        plan.set_filter(ECF, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((16,))
        made = h5py.h5d.create(file.create_group("CD").id, b"events", h5py.h5t.py_create(RECORD), space, plan)
        made.write_direct_chunk((0,), b"packed by the camera")
        file.attrs["geometry"] = "1280x720"
    return path


without_plugin = pytest.mark.skipif(h5py.h5z.filter_avail(ECF), reason="Prophesee's plugin is installed here")


class Column:
    """As much of a polars column as is used."""

    def __init__(self, values: Any) -> None:
        self.values, self.dt = values, self

    def to_numpy(self) -> Any:
        return self.values

    def total_microseconds(self) -> Column:
        return self


def evlib_of(rows: Any) -> Any:
    """A module that decodes any file to these rows, as evlib does: polarity -1 or 1."""
    columns = {"x": rows["x"], "y": rows["y"], "t": rows["t"], "polarity": rows["p"] * 2 - 1}
    frame = {name: Column(values.copy()) for name, values in columns.items()}
    return SimpleNamespace(load_events=lambda path: SimpleNamespace(collect=lambda: frame))


@without_plugin
def test_ecf_without_any_decoder_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evlib", None)
    with pytest.raises(BadInput, match=r"Prophesee's ECF .* 'eventspec\[ecf\]', or set HDF5_PLUGIN_PATH") as refusal:
        open_events(ecf(tmp_path / "e.hdf5"))
    assert "\n" not in str(refusal.value)


@without_plugin
def test_ecf_is_decoded_by_evlib_and_checked_like_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = records(16)
    monkeypatch.setitem(sys.modules, "evlib", evlib_of(rows))
    found = open_events(ecf(tmp_path / "e.hdf5"))
    assert found.events is not None and found.notes == ("the events are decoded by evlib, all of them at once",)
    for name in "xytp":
        assert np.array_equal(getattr(found.events, name), rows[name])
    monkeypatch.setitem(sys.modules, "evlib", evlib_of(rows[:15]))
    with pytest.raises(BadInput, match="evlib decodes 15 of 16 events"):
        open_events(tmp_path / "e.hdf5")
    rows["x"][3] = 2000
    monkeypatch.setitem(sys.modules, "evlib", evlib_of(rows))
    with pytest.raises(BadInput, match=r"x\[3\] is 2000: outside the sensor"):
        open_events(tmp_path / "e.hdf5")
    monkeypatch.setitem(sys.modules, "evlib", SimpleNamespace())
    with pytest.raises(BadInput, match="evlib cannot decode the events"):
        open_events(tmp_path / "e.hdf5")


def test_the_size_comes_from_the_attributes_or_the_caller(tmp_path: Path) -> None:
    named = write(tmp_path / "a.hdf5", records(), {"plugin_name": "hal_plugin_imx636_evk4"})
    found = open_events(named)
    assert found.events is not None and found.events.width == 1280 and "header's sensor, imx636" in found.notes[0]
    bare = write(tmp_path / "b.hdf5", records(), {})
    with pytest.raises(SizeUnknown):
        open_events(bare)
    events = open_events(bare, (1280, 720)).events
    assert events is not None and len(events) == 50


def test_triggers_are_noted_and_other_columns_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", records())
    with h5py.File(path, "a") as file:
        file["EXT_TRIGGER/events"] = np.zeros(2, [("p", "<i2"), ("t", "<i8"), ("id", "<i2")])
    assert open_events(path).notes == ("external trigger events are not read",)
    for other in (
        np.zeros(5),
        np.zeros(5, [("x", "<u2"), ("y", "<u2"), ("t", "<i8")]),
        np.zeros(5, [(n, "<f4") for n in "xypt"]),
    ):
        with pytest.raises(BadInput, match=r"CD/events is .* it must be 1-dimensional records with whole numbers x, y, p, t"):
            open_events(write(tmp_path / "b.hdf5", other))
