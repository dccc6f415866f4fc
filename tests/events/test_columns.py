"""One rule for the names, the order and the unit of columns, and for the sensor's size, whatever file they stand in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
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


@pytest.mark.parametrize(
    ("name", "scale", "writes"),
    [
        ("t", "0.001", lambda ns: f"{1_600_000_000_000_000_000 + ns}"),
        ("t_ns", "0.001", str),
        ("t", "1e6", lambda ns: f"1600000000.{ns:09}"),
        ("t", "1e6", lambda ns: f"1.600000000{ns:09}e+09"),
        ("t", "1e6", lambda ns: f"{ns // 10**6}.{ns % 10**6:06}4999999999"),
        ("t_ms", "1e3", lambda ns: f"1600000000{ns // 10**6:03}.{ns % 10**6:06}"),
        ("t_us", "1", lambda ns: f"{(1 << 60) + ns}"),
    ],
)
def test_times_in_text_are_exact_to_the_microsecond(tmp_path: Path, name: str, scale: str, writes: Any) -> None:
    """A float64 leaves about one in seven of them a microsecond off."""
    written = [writes(int(ns)) for ns in np.random.default_rng(3).integers(0, 10**9, 200)]
    (tmp_path / "e").write_text(f"{name},x,y,p\n# a comment\n\n" + "".join(f"{time},1,2,1\r\n" for time in written))
    found = open_events(tmp_path / "e", (9, 7), "keep").events
    assert found is not None
    assert found.t.tolist() == [int((Decimal(time) * Decimal(scale)).to_integral_value(ROUND_HALF_UP)) for time in written]


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


@pytest.mark.parametrize("group", ["events/", ""])
def test_a_unit_and_an_offset_are_found_wherever_they_stand(tmp_path: Path, group: str) -> None:
    wanted = (5_000_000 + np.arange(COUNT) * 5).tolist()
    h5(tmp_path / "e", np.arange(COUNT) * 5000, group, time_unit="ns", t_offset=5_000_000_000)
    h5(tmp_path / "f", np.arange(COUNT) * 5, group)
    with h5py.File(tmp_path / "f", "a") as file:
        file[group or "/"]["t_offset"] = np.uint64(5_000_000)
    for name in "ef":
        found = open_events(tmp_path / name, (9, 7))
        assert found.events is not None and found.events.t.tolist() == wanted and not any("no t_off" in n for n in found.notes)
    h5(tmp_path / "g", np.arange(COUNT), group, t_offset=0.5)
    with pytest.raises(BadInput, match=r"t_offset is .*0\.5.*: it must be whole microseconds"):
        open_events(tmp_path / "g", (9, 7))
    columns = {"x": X, "y": Y, "t": np.arange(COUNT) * 5000, "p": P, "Unit": "ns"}
    np.savez(tmp_path / "h.npz", **columns, t_offset=3)  # type: ignore[arg-type]
    archive = open_events(tmp_path / "h.npz", (9, 7))
    given = es.Recording.from_arrays(events=columns, sensor=(9, 7))
    assert archive.events is not None and archive.events.t[-1] == 245 and given.span.end_us == 246
    np.save(tmp_path / "i.npy", np.array({**columns, "width": 9, "height": 7}), allow_pickle=True)  # type: ignore[arg-type]
    pickled = open_events(tmp_path / "i.npy").events
    assert pickled is not None and (pickled.t[-1], pickled.width) == (245, 9)
    assert archive.notes[0] == "t_offset is not added: times are taken as they stand"


def test_what_is_doubtful_in_times_is_said(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("t,ts,x,y,p\n5,7,1,2,1\n")
    found = open_events(tmp_path / "e", (9, 7))
    assert found.events is not None and found.events.t.tolist() == [5]
    assert found.notes[0] == "the column ts is not read: another one before it has such a name"
    with h5py.File(tmp_path / "f", "w") as file:
        file["davis/left/events"] = np.stack([X, Y, np.arange(COUNT) * 900, 2 * P.astype(int) - 1], 1).astype(float)
    with pytest.raises(BadInput, match="the times of events are whole numbers, such as 44100: MVSEC's are seconds"):
        open_events(tmp_path / "f", (9, 7))
    np.save(tmp_path / "g.npy", np.stack([np.arange(COUNT), X, Y, P], 1).astype("f2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_events(tmp_path / "g.npy", (9, 7)).events is not None


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
