"""One rule for the names, the order and the unit of columns, and for the sensor's size, whatever file they stand in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import eventspec as es
from eventspec.core import BadInput
from eventspec.events.formats import SizeUnknown, open_events

COUNT = 50
NS = 1_600_000_000_000_000_000 + 1_000_000 * np.arange(COUNT)  # 49 ms
X, Y, P = (np.arange(COUNT) * 7 % 9).astype("u2"), (np.arange(COUNT) % 7).astype("u2"), (np.arange(COUNT) % 2).astype("u1")
RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
NOTE = "times are taken for nanoseconds: they are whole numbers, too large for microseconds"


def records(t: Any) -> Any:
    rows = np.zeros(COUNT, RECORD)
    rows["x"], rows["y"], rows["p"], rows["t"] = X, Y, P, t
    return rows


def h5(path: Path, t: Any, group: str = "events/", size: dict[str, Any] | None = None, **attributes: Any) -> None:
    with h5py.File(path, "w") as file:
        columns = (
            {"CD/events": records(t)}
            if group == "CD"
            else {f"{group}{k}": v for k, v in zip("xytp", (X, Y, t, P), strict=True)}
        )
        for name, values in {**columns, **(size or {})}.items():
            file[name] = values
        file.attrs.update(attributes)


WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    "npz": lambda path, t: np.savez(path.open("wb"), x=X, y=Y, t=t, p=P),
    "matrix": lambda path, t: np.save(path.open("wb"), np.stack([X, Y, t, P], 1)),
    "records": lambda path, t: np.save(path.open("wb"), records(t)),
    "EventGPT": lambda path, t: np.save(path.open("wb"), np.array({"x": X, "y": Y, "t": t, "p": P})),
    "DSEC": h5,
    "native": lambda path, t: h5(path, t, ""),
    "Metavision": lambda path, t: h5(path, t, "CD"),
    "text": lambda path, t: np.savetxt(path, np.stack([t, X, Y, P], 1), "%d"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_nanoseconds_are_seen_in_every_file(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / "ns", NS)
    WRITERS[kind](tmp_path / "us", NS // 1000)
    found, usual = open_events(tmp_path / "ns", (640, 480)), open_events(tmp_path / "us", (640, 480))
    assert found.events is not None and usual.events is not None and NOTE in found.notes and NOTE not in usual.notes
    assert np.array_equal(found.events.t, NS // 1000) and np.array_equal(usual.events.t, NS // 1000)
    assert found.events.slice(es.Window(int(NS[3]) // 1000, int(NS[5]) // 1000)).t.tolist() == (NS[3:5] // 1000).tolist()


def test_arrays_of_a_program_are_read_by_the_same_rule() -> None:
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    both = es.Recording.from_arrays(events=(X, Y, NS, P), sensor=(9, 7), frames=frames, times_us=NS[:2])
    assert both.span.duration_us == 49_001 and both.notes[:2] == (NOTE, f"of the frames, {NOTE}")
    stated = es.Recording.from_arrays(events={"x": X, "y": Y, "t_s": np.arange(COUNT) / 4, "p": P}, sensor=(9, 7))
    assert stated.span.end_us == 49 * 250_000 + 1 and "seconds" in stated.notes[0]


def test_a_name_states_the_unit_and_one_damaged_time_changes_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", x=X, y=Y, timestamps_ns=np.arange(COUNT) * 5000, polarity=P)
    named = open_events(tmp_path / "e.npz", (9, 7))
    assert named.events is not None and named.events.t.tolist() == list(range(0, 250, 5))
    np.savez(tmp_path / "f.npz", x=X, y=Y, t=np.arange(COUNT) / 8, p=P)
    seconds = open_events(tmp_path / "f.npz", (9, 7))
    assert seconds.events is not None and seconds.events.t[-1] == 6_125_000
    assert seconds.notes == ("times are taken for seconds: they have fractions",)
    us = np.append(np.arange(COUNT - 1), 1 << 60)
    h5(tmp_path / "us.h5", us)
    damaged = open_events(tmp_path / "us.h5").events
    assert damaged is not None and damaged.t.tolist() == us.tolist()


@pytest.mark.parametrize(
    ("group", "size", "attributes"),
    [
        ("events/", {"events/width": 1280, "events/height": 720}, {}),
        ("events/", {"width": np.array([1280]), "height": np.array([720.0])}, {}),
        ("events/", {"events/resolution": np.array([1280, 720])}, {}),
        ("events/", {"resolution": np.array([720, 1280])}, {}),
        ("events/", {"geometry": "1280x720"}, {}),
        ("events/", None, {"width": 1280, "height": 720}),
        ("events/", None, {"sensor_resolution": (720, 1280)}),
        ("", None, {"geometry": "1280,720"}),
        ("", {"sensor_size": np.array([1280, 720])}, {}),
        ("CD", {"CD/width": 1280, "CD/height": 720}, {}),
        ("CD", None, {"geometry": np.array([1280, 720])}),
    ],
)
def test_a_sensor_size_is_found_wherever_it_stands(tmp_path: Path, group: str, size: Any, attributes: Any) -> None:
    h5(tmp_path / "e", np.arange(COUNT), group, size, **attributes)
    found = open_events(tmp_path / "e")
    assert found.events is not None and (found.events.width, found.events.height) == (1280, 720)
    assert not any("assumed" in note for note in found.notes)
    with pytest.raises(BadInput, match="the file says 1280x720"):
        open_events(tmp_path / "e", (640, 480))


def test_two_sizes_are_refused_until_one_is_asked_for(tmp_path: Path) -> None:
    h5(tmp_path / "e", np.arange(COUNT), size={"width": 1280, "height": 720, "events/resolution": np.array([640, 480])})
    with pytest.raises(BadInput, match=r"1280x720 \(in /\) and 640x480 \(in /events\): say which it is by sensor_size"):
        open_events(tmp_path / "e")
    chosen = open_events(tmp_path / "e", (1280, 720)).events
    assert chosen is not None and chosen.width == 1280
    h5(tmp_path / "f", np.arange(COUNT), width="wide", height=720)
    with pytest.raises(BadInput, match="width is not one whole number but wide"):
        open_events(tmp_path / "f")


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt"])
@pytest.mark.parametrize("text", [False, True])
def test_columns_without_names_are_told_by_their_values(tmp_path: Path, order: str, text: bool) -> None:
    columns = {"x": X, "y": Y, "t": np.arange(COUNT) * 900, "p": P}
    rows = np.stack([columns[name] for name in order], 1)
    if text:
        np.savetxt(tmp_path / "e", rows, "%d", ",")
    else:
        np.save((tmp_path / "e").open("wb"), rows.astype(float))
    found = open_events(tmp_path / "e", (9, 7))
    assert found.events is not None and f"taken for {' '.join(order)}: " in found.notes[0]
    assert all(np.array_equal(getattr(found.events, name), column) for name, column in columns.items())


def test_columns_that_may_be_any_are_refused_or_the_likely_order_is_named(tmp_path: Path) -> None:
    rising = np.arange(COUNT)
    np.save(tmp_path / "e.npy", np.stack([rising, Y, rising, P], 1))
    with pytest.raises(
        BadInput, match="its values do not tell which columns are x, y, t and p: save the columns by their names"
    ):
        open_events(tmp_path / "e.npy", (640, 480))
    (tmp_path / "e.txt").write_text("5 2 700 1\n3 2 800 1\n4 2 900 1\n")
    with pytest.raises(BadInput, match="look like x y t p: if they are others, name them in a first line such as x,y,t,p"):
        open_events(tmp_path / "e.txt", (640, 480))
    np.save(tmp_path / "none.npy", np.zeros((0, 4)))
    assert len(open_events(tmp_path / "none.npy", (4, 4)).events or ()) == 0
    np.save(tmp_path / "one.npy", np.arange(9))
    with pytest.raises(BadInput, match=r"a int64 array of shape \(9,\): events are numbers \[E, 4\], or records"):
        open_events(tmp_path / "one.npy", (4, 4))
    with pytest.raises(SizeUnknown):
        WRITERS["matrix"](tmp_path / "m.npy", NS)
        open_events(tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("header", "held"),
    [
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (-1, -4)}", 16),
        ("{'descr': '|S0', 'fortran_order': False, 'shape': (4,)}", 0),
        ("{'descr': ('<i4', (2,)), 'fortran_order': False, 'shape': (4,)}", 32),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 4)}", 31),
    ],
)
def test_a_header_of_no_array_is_refused(tmp_path: Path, header: str, held: int) -> None:
    (tmp_path / "e").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n" + bytes(held))
    with pytest.raises(BadInput, match=r"is no readable numpy array|claims 32 bytes but holds 31"):
        open_events(tmp_path / "e", (4, 4))


@pytest.mark.parametrize(
    "comment",
    [
        "%geometry:1280,720",
        "% geometry 1280x720",
        "# resolution: (1280, 720)",
        "# width 1280\n# height: 720",
        "# Sensor size = 1280 720",
        "# height=720, width=1280",
    ],
)
def test_comments_state_the_size_of_the_sensor(tmp_path: Path, comment: str) -> None:
    (tmp_path / "e").write_text(
        f"{comment}\n" + "".join(f"{x},{y},{p},{9 * t}\n" for t, (x, y, p) in enumerate(zip(X, Y, P, strict=True)))
    )
    found = open_events(tmp_path / "e").events
    assert found is not None and (found.width, found.height, found.t[-1]) == (1280, 720, 441)


@pytest.mark.parametrize("unit", ["ns", "NS", "nanoseconds", b"ns", "nsec since the start", np.array([b"ns"])])
@pytest.mark.parametrize("kind", ["h5", "npz"])
def test_a_unit_that_a_file_states_is_taken_at_its_word(tmp_path: Path, kind: str, unit: Any) -> None:
    path, t = tmp_path / f"e.{kind}", 1_000_000 * np.arange(COUNT)

    def written(stated: Any) -> Path:
        if kind == "npz":
            np.savez(path.open("wb"), x=X, y=Y, t=t, p=P, t_unit=stated)
            return path
        h5(path, t)
        with h5py.File(path, "a") as file:
            file["events/t"].attrs["unit"] = stated
        return path

    found = open_events(written(unit), (9, 7))
    assert found.events is not None and found.events.t[-1] == 49_000
    assert "times are taken for nanoseconds: the file says so" in found.notes
    with pytest.raises(BadInput, match="the unit of its times is 'ticks'"):
        open_events(written("ticks"), (9, 7))
