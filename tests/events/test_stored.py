"""A stream that stays in its file gives the same events as one in memory, and reads no more than it must."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import encoders
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events.formats import dat, evt2, evt3, hdf5, open_events, read_events
from eventspec.events.formats.family import LONG_NOTE
from eventspec.events.stored import StoredStream
from eventspec.events.stream import EventStream
from eventspec.recordings import Recording

LONG = ("evt2", "evt21", "evt3", "dat", "nmnist-bin", "text", "dsec-h5", "mvsec-hdf5", "native-h5")
EVENTS = 2000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is long, and blocks are short."""
    monkeypatch.setattr("eventspec.events.stored.HELD_EVENTS", 100)
    monkeypatch.setattr("eventspec.events.stored.LEAST_HELD", 100)
    for module in (evt2, evt3, dat, hdf5):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr("eventspec.events.formats.nmnist.BLOCK", 64)
    monkeypatch.setattr("eventspec.events.formats.text.BLOCK_BYTES", 900)
    yield


OUTLIERS = 50, 777, 1999


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("name", sorted(encoders.ENCODERS.keys() - {"nmnist-bin"}))  # which is recognised by its coordinates
def test_events_outside_the_sensor_are_dropped_and_counted(
    tmp_path: Path, name: str, long: bool, request: pytest.FixtureRequest
) -> None:
    if long:
        request.getfixturevalue("small")
    side = (346, 260) if name == "mvsec-hdf5" else (640, 480)
    rows = encoders.street(EVENTS, *side)
    rows["x"] = rows["x"].copy()
    rows["x"][list(OUTLIERS)] = side[0] + 7
    (tmp_path / "e").write_bytes(encoders.ENCODERS[name](**rows))
    with pytest.raises(BadInput, match=r"is (647|353): outside the sensor \(width \d+\).*drop_outside=True"):
        list(read_events(tmp_path / "e").blocks())
    columns = {column: np.delete(of, OUTLIERS) for column, of in rows.items()}
    whole = EventStream.checked(**columns, width=side[0], height=side[1])
    found = open_events(tmp_path / "e", drop_outside=True)
    assert found.events is not None and isinstance(found.events, StoredStream) == (long and name in (*LONG, "metavision-h5"))
    assert f"3 of 2000 events are dropped: they lie outside the sensor of {side[0]}x{side[1]}" in found.notes
    assert len(found.events) == EVENTS - 3 and found.events.span == whole.span
    equal(EventStream.joined(found.events.blocks(), *side), whole)
    window = Window(3000, 8000)
    equal(found.events.slice(window), whole.slice(window))
    assert len(found.events) == EVENTS - 3


def equal(one: EventStream, other: EventStream) -> None:
    for name in "xytp":
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("name", LONG)
def test_a_slice_of_the_file_is_a_slice_of_its_events(tmp_path: Path, small: None, name: str) -> None:
    path = encoders.write(tmp_path / "e", name, EVENTS)
    side = {"nmnist-bin": (34, 34), "mvsec-hdf5": (346, 260)}.get(name, (640, 480))
    whole = EventStream.checked(**encoders.street(EVENTS, *side), width=side[0], height=side[1])
    found = open_events(path)
    assert isinstance(found.events, StoredStream) and LONG_NOTE in found.notes
    for start, length in ((0, 50), (3000, 700), (8000, 9_000_000), (20_000_000, 5), (whole.t[5], 1)):
        window = Window(int(start), int(start + length))
        equal(read_events(path).slice(window), whole.slice(window))  # nothing known of the file yet
        equal(found.events.slice(window), whole.slice(window))
    assert len(found.events) == EVENTS and found.events.span == whole.span
    equal(EventStream.joined(found.events.blocks(), *side), whole)
    equal(found.events, whole)
    later = found.events.shifted(1_000_000)
    assert isinstance(later, StoredStream) and later.span == whole.shifted(1_000_000).span
    equal(later.slice(Window(1_003_000, 1_004_000)), whole.shifted(1_000_000).slice(Window(1_003_000, 1_004_000)))


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(windows=st.lists(st.tuples(st.integers(0, 9500), st.integers(1, 3000)), min_size=1, max_size=5))
def test_slices_in_any_order_are_right(tmp_path: Path, small: None, windows: list[tuple[int, int]]) -> None:
    """What one slice has learnt of the file must not mislead the next."""
    stream = read_events(encoders.write(tmp_path / "e", "evt3", EVENTS))
    whole = EventStream.checked(**encoders.street(EVENTS, 640, 480), width=640, height=480)
    for start, length in windows:
        equal(stream.slice(Window(start, start + length)), whole.slice(Window(start, start + length)))


@pytest.mark.parametrize("name", ["evt3", "dsec-h5"])
def test_a_recordings_window_reads_its_own_part_only(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recording = Recording.open(encoders.write(tmp_path / "e", name, EVENTS))
    assert recording.span.start_us >= 0  # a RAW file is walked once for this
    read: list[int] = []
    checked = EventStream.checked_block.__func__  # type: ignore[attr-defined]

    def counting(cls: type, x: object, *columns: object, **options: object) -> EventStream:
        stream: EventStream = checked(cls, x, *columns, **options)
        read.append(len(stream))
        return stream

    monkeypatch.setattr(EventStream, "checked_block", classmethod(counting))
    part = recording.slice(Window(3000, 3300)).events
    assert part is not None and not isinstance(part, StoredStream)
    assert 0 < len(part) <= sum(read) <= len(part) + 3 * 64


@pytest.mark.parametrize("name", ["text", "dsec-h5"])
def test_blocks_of_a_file_must_agree_on_what_off_is(tmp_path: Path, small: None, name: str) -> None:
    """0 in the first half and -1 in the second: each block alone would do."""
    columns = encoders.street(EVENTS, 640, 480)
    columns["p"][EVENTS // 2 - 70 : EVENTS // 2 + 70] = 1  # no block has both
    whole = EventStream.checked(**columns, width=640, height=480)
    signed = 2 * whole.p.astype(np.int8) - 1
    for p in (signed, np.where(np.arange(EVENTS) < EVENTS // 2, whole.p, signed).astype(np.int8)):
        path = tmp_path / "e"
        if name == "text":
            rows = zip(whole.t.tolist(), whole.x.tolist(), whole.y.tolist(), p.tolist(), strict=True)
            path.write_text("640 480\n" + "".join(f"{a} {b} {c} {d}\n" for a, b, c, d in rows))
        else:
            encoders.write(path, name, EVENTS)
            with h5py.File(path, "r+") as file:
                del file["events/p"]
                file["events/p"] = p
        if p is signed:
            equal(read_events(path), whole)
        else:
            with pytest.raises(BadInput, match=r"p.* is -1: OFF is 0 in events that were read before; write all of them one"):
                list(read_events(path).blocks())


def test_threads_may_slice_one_stream_at_once(tmp_path: Path, small: None) -> None:
    whole = EventStream.checked(**encoders.street(EVENTS, 640, 480), width=640, height=480)
    stream = read_events(encoders.write(tmp_path / "e", "evt3", EVENTS))
    windows = [Window(start, start + 900) for start in range(0, 9000, 450)]
    with ThreadPoolExecutor(4) as pool:
        for window, part in zip(windows, pool.map(stream.slice, windows), strict=True):
            equal(part, whole.slice(window))
    assert len(stream) == EVENTS


def test_a_small_file_that_unpacks_into_much_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve events in each 16-bit word: 6 events for every byte of the file."""
    monkeypatch.setattr("eventspec.events.stored.LEAST_HELD", 1000)
    row = [0x3000, *[0x4FFF] * 50]
    words = np.array([0x8000, 0x6000, 0x0001, *row * 10], "<u2")
    (tmp_path / "e").write_bytes(b"% format EVT3;height=480;width=640\n% end\n" + words.tobytes())
    stream = read_events(tmp_path / "e")
    assert isinstance(stream, StoredStream) and len(stream) == 6000
