"""RAW and DAT: what a camera wrote is what is read, over wraps, cuts and block borders; what is left out is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput, Window
from eventspec.events.formats import dat, evt2, evt3, open_events, read_events
from eventspec.events.stream import EventStream, Monotonic

SHARED = Path(__file__).parents[2].parent / "shared"
CAMERAS: dict[str, Any] = {
    "evt2": encoders.evt2,
    "evt21 legacy": encoders.evt21,
    "evt21 little": lambda *columns: encoders.evt21(*columns, order="little"),
    "evt3": encoders.evt3,
    "dat": encoders.dat,
}
TURNS = {"evt2": 1 << 34, "evt21 legacy": 1 << 34, "evt21 little": 1 << 34, "evt3": 1 << 24, "dat": 1 << 32}
WORDS = {"evt2": 4, "evt21 legacy": 8, "evt21 little": 8, "evt3": 2, "dat": 8}

events = st.lists(
    st.tuples(st.integers(0, 639), st.integers(0, 479), st.integers(0, 40), st.integers(0, 1), st.integers(0, 40)), max_size=60
)


def columns_of(drawn: list[tuple[int, int, int, int, int]], start_us: int = 0) -> tuple[Any, Any, Any, Any]:
    """Events of which each is followed by its right neighbours in the same row, as edges are."""
    rows: list[tuple[int, int, int, int]] = []
    time = start_us
    for x, y, step, p, run in drawn:
        time += step * step * step
        rows += [(column, y, time, p) for column in range(x, min(x + run, 639) + 1)]
    x, y, t, p = (np.array([row[place] for row in rows], np.int64) for place in range(4))
    return x, y, t, p


def same(stream: EventStream, columns: Any) -> None:
    for name, column in zip("xytp", columns, strict=True):
        assert np.array_equal(getattr(stream, name), column), name


@pytest.mark.parametrize("camera", CAMERAS)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=events.filter(bool), block=st.integers(1, 50))
def test_what_a_camera_writes_is_read_back_whatever_the_block(tmp_path: Path, camera: str, drawn: Any, block: int) -> None:
    columns = columns_of(drawn, 5_000)
    path = tmp_path / "e"
    path.write_bytes(CAMERAS[camera](*columns))
    with pytest.MonkeyPatch.context() as patch:
        for module in (evt2, evt3, dat):
            patch.setattr(module, "BLOCK", max(2, block))
        same(read_events(path), columns)


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_clock_that_turns_runs_on(tmp_path: Path, camera: str) -> None:
    turn = TURNS[camera]
    steps = np.array([0, 10, turn // 3, turn // 3, turn // 3, turn // 3, turn // 3, 5], np.int64)
    t = np.cumsum(steps) + turn - 20
    columns = (np.arange(8), np.arange(8) + 3, t, np.arange(8) % 2)
    (tmp_path / "e").write_bytes(CAMERAS[camera](*columns))
    found = read_events(tmp_path / "e")
    assert np.diff(found.t).tolist() == steps[1:].tolist() and found.t[0] == turn - 20


@pytest.mark.parametrize("block", [2, 5, 64])
@pytest.mark.parametrize("camera", ["evt3", "dat"])
def test_an_event_from_before_the_turn_of_the_clock_does_not_turn_it_twice(tmp_path: Path, camera: str, block: int) -> None:
    turn = TURNS[camera]
    t = turn + np.array([-9000, -50, 3, -40, 20, 5000, -30, 9000, 20_000], np.int64)
    columns = (np.arange(9), np.arange(9) + 3, t, np.arange(9) % 2)
    if camera == "dat":
        data = encoders.dat(*columns)
    else:  # every event with its whole time, as a camera sends it that reads its rows out of order
        words = [
            (0x8000 | time >> 12 & 4095, 0x6000 | time & 4095, y, 0x2000 | x) for x, y, time in zip(*columns[:3], strict=True)
        ]
        data = b"% evt 3.0\n% geometry 640x480\n% end\n" + np.array(words, "<u2").tobytes()
    (tmp_path / "e").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        for module in (evt3, dat):
            patch.setattr(module, "BLOCK", block)
        assert read_events(tmp_path / "e", monotonic="keep").t.tolist() == t.tolist()
        with pytest.raises(BadInput, match="before t"):
            read_events(tmp_path / "e")


def test_a_clock_does_not_go_back_to_before_its_first_turn(tmp_path: Path) -> None:
    t = np.array([5, (1 << 32) - 7, (1 << 32) + 3], np.int64)  # nobody can know: it is read as a gap
    (tmp_path / "e").write_bytes(encoders.dat(np.arange(3), np.arange(3), t, np.zeros(3, np.int64)))
    assert (read_events(tmp_path / "e", monotonic="keep").t >= 0).all()


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_cut_file_keeps_its_whole_words_and_tells_of_the_rest(tmp_path: Path, camera: str) -> None:
    columns = columns_of([(5, 7, 3, 1, 30), (9, 8, 2, 0, 0), (1, 2, 9, 1, 2)] * 5)
    data = CAMERAS[camera](*columns)
    whole, path = None, tmp_path / "e"
    for length in range(len(data), len(data) - 40, -1):
        path.write_bytes(data[:length])
        found = open_events(path)
        assert found.events is not None
        whole = found.events if whole is None else whole
        rest = (len(data) - length) % WORDS[camera]
        assert any(f"its last {WORDS[camera] - rest} of" in note for note in found.notes) == (rest > 0)
        count = len(found.events)
        assert count <= len(whole) and np.array_equal(found.events.t, whole.t[:count])
    assert count < len(whole)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (b"% evt 2.0\n% geometry 640x480\n", (640, 480)),
        (b"% evt 2.0\n% width 641\n% height 481\n% end\n", (641, 481)),
        (b"% camera_integrator_name Prophesee\r\n% format EVT2;height=720;width=1280\r\n% end\r\n", (1280, 720)),
        (b"% evt 2.0\n% plugin_name hal_plugin_gen3_fx3\n", (640, 480)),
        (b"% evt 2.0\n% sensor_generation 4.2\n", (1280, 720)),
        (b"% plugin_name hal_plugin_gen31_fx3\n% integrator_name Prophesee\n", (640, 480)),
    ],
)
def test_the_geometry_is_stated_or_follows_from_the_sensor_that_is_named(
    tmp_path: Path, head: bytes, size: tuple[int, int]
) -> None:
    (tmp_path / "e").write_bytes(encoders.evt2([1], [2], [3], [1], head))
    found = open_events(tmp_path / "e")
    assert found.events is not None and (found.events.width, found.events.height) == size
    stated = b"geometry" in head or b"width" in head
    assert any("is taken from the header's sensor" in note for note in found.notes) == (not stated)


def test_a_geometry_that_is_nowhere_must_be_given(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(encoders.evt3([1], [2], [3], [1], b"% evt 3.0\n% plugin_name hal_plugin_prophesee\n"))
    with pytest.raises(BadInput, match=r"the sensor size is not in the file: .* sensor_size=\(640, 480\)"):
        read_events(tmp_path / "e")
    assert read_events(tmp_path / "e", (99, 77)).width == 99
    (tmp_path / "e").write_bytes(encoders.evt3([1], [2], [3], [1]))
    with pytest.raises(BadInput, match="the file says 640x480 pixels but sensor_size is 99x77"):
        read_events(tmp_path / "e", (99, 77))


def test_events_whose_time_or_row_is_unknown_are_left_out_and_counted(tmp_path: Path) -> None:
    early = np.array([0x2005, 0x0007, 0x2006, 0x3008, 0x4003, 0x8001, 0x6002, 0x2009, 0xA001], "<u2").tobytes()
    (tmp_path / "e").write_bytes(b"% format EVT3;height=480;width=640\n% end\n" + early)
    found = open_events(tmp_path / "e")
    assert found.events is not None
    same(found.events, ([9], [7], [4098], [0]))
    assert found.notes == (
        "4 events before the first complete time left out: their time is unknown",
        "1 external trigger event is not read",
    )
    late = np.array([1 << 28 | 5 << 11 | 7, 8 << 28 | 3, 1 << 28 | 6 << 11 | 7], "<u4").tobytes()
    (tmp_path / "e").write_bytes(b"% evt 2.0\n% geometry 640x480\n% end\n" + late)
    found = open_events(tmp_path / "e")
    assert found.events is not None and found.events.x.tolist() == [6] and "1 event before" in found.notes[0]


@pytest.mark.parametrize(
    ("policy", "times", "words"),
    [
        ("clamp", [100, 130, 130, 130, 140], "2 event times go back, by at most 20 us: each is lifted"),
        ("keep", [100, 130, 110, 120, 140], "2 event times go back, by at most 20 us: they are left as they are"),
    ],
)
@pytest.mark.parametrize("block", [2, 3, 100])
def test_times_that_go_back_follow_the_policy_over_block_borders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Monotonic, times: list[int], words: str, block: int
) -> None:
    monkeypatch.setattr(dat, "BLOCK", block)
    (tmp_path / "e").write_bytes(encoders.dat([1] * 5, [2] * 5, [100, 130, 110, 120, 140], [1] * 5))
    found = open_events(tmp_path / "e", monotonic=policy)
    assert found.events is not None and found.events.t.tolist() == times and found.events.ordered == (policy == "clamp")
    assert words in found.notes[0]
    assert sorted(found.events.slice(Window(105, 131)).t.tolist()) == sorted(time for time in times if 105 <= time < 131)
    with pytest.raises(BadInput, match=r"t\[2\] is 110, before t\[1\] = 130: .*monotonic=\"clamp\""):
        open_events(tmp_path / "e")


METAVISION = b"% Height 720\n% Version 2\n% Width 1280\n% date 2024-01-01 00:00:00\n"


@pytest.mark.parametrize("head", [METAVISION, METAVISION.replace(b"% Version 2\n", b""), METAVISION + b"% end\n"])
def test_a_dat_header_of_metavisions_fields_alone_is_enough(tmp_path: Path, head: bytes) -> None:
    columns = np.arange(500), np.full(500, 7), 1000 + np.arange(500), np.arange(500) & 1
    data = encoders.dat(*columns)
    (tmp_path / "e.dat").write_bytes(head + data[data.index(b"\x0c\x08") :])
    found = open_events(tmp_path / "e.dat")
    assert found.events is not None and (found.format, found.events.width, found.events.height) == ("dat", 1280, 720)
    for name, values in zip("xytp", columns, strict=True):
        assert np.array_equal(getattr(found.events, name), values)


@pytest.mark.parametrize("kind", [b"\x0c\x10", b"\x07\x08", b""])
def test_a_header_without_the_event_types_bytes_is_no_dat(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "e.dat").write_bytes(METAVISION + kind)
    with pytest.raises(BadInput, match="looks like a Prophesee RAW or DAT file"):
        open_events(tmp_path / "e.dat")


def test_both_versions_of_dat_are_read(tmp_path: Path) -> None:
    columns = ([300, 1], [239, 2], [5, 6], [1, 0])
    (tmp_path / "e").write_bytes(encoders.dat(*columns, version=1, size=""))
    with pytest.raises(BadInput, match="sensor size is not in the file"):
        read_events(tmp_path / "e")
    same(read_events(tmp_path / "e", (304, 240)), columns)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"% evt 4.0\n% end\n\0\0\0\0", "names the encoding '4.0', readable are evt 2.0, 2.1 and 3.0"),
        (b"% format HISTO3D;height=1;width=1\n\0\0", "names the encoding 'HISTO3D'"),
        (b"% integrator_name Prophesee\n\0\0\0\0", "names no encoding"),
        (b"% evt 3.0\n% geometry 640x480\n% end\n", "before its first event"),
        (b"% evt 3.0\n% geometry 640x480\n" + b"% a b\n" * 12000, "the header is longer than"),
        (b"% Data file containing CD events\n% Version 3\n\x0c\x08", "DAT version '3', readable are 1 and 2"),
        (b"% Data file containing CD events\n% Version 2\n\x0e\x08" + bytes(8), "holds external triggers, not events"),
        (b"% Data file containing CD events\n% Version 2\n\x0c\x10" + bytes(8), "event type and size are 0c 10"),
        (b"% Data file containing CD events\n% Version 2\n", "event type and size are nothing"),
        (encoders.dat([700], [2], [3], [1]), "x[0] is 700: outside the sensor (width 640)"),
        (encoders.evt2([639], [481], [3], [1]), "y[0] is 481: outside the sensor (height 480)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "e").write_bytes(data)
    with pytest.raises(BadInput) as refused:
        read_events(tmp_path / "e")
    assert words in str(refused.value) and str(tmp_path / "e") in str(refused.value) and "\n" not in str(refused.value)


def test_a_vector_beyond_every_sensor_is_refused_not_wrapped(tmp_path: Path) -> None:
    words = np.array([0x8000, 0x6000, 0x0001, 0x3000, *[0x4000] * 20_000, 0x4001], "<u2")
    (tmp_path / "e").write_bytes(b"% format EVT3;height=480;width=640\n% end\n" + words.tobytes())
    with pytest.raises(BadInput, match=r"x\[0\] is 32751: outside the sensor"):
        read_events(tmp_path / "e")


def test_the_first_bytes_of_the_events_may_look_like_a_header_line(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"% Data file containing CD events\n% Version 2\n% Width 9472\n% Height 9\n\x0c\x08" + b"% \n\0\1\0\0\0")
    assert read_events(path).t.tolist() == [0x000A2025]


def test_evt3_agrees_with_an_independent_decoder(tmp_path: Path) -> None:
    library = pytest.importorskip("evt3")
    path = encoders.write(tmp_path / "e.raw", "evt3", 20_000)
    other, own = library.decode_file(str(path)), read_events(path)
    same(own, (other.x, other.y, other.t, other.p))


def test_a_long_silence_is_no_step_back(tmp_path: Path) -> None:
    events = [(10, 5), (3910, 0)]  # TIME_HIGH, TIME_LOW: 16 of the 16.8 s that the counter holds
    words = [(0x8000 | high, 0x6000 | low, 7, 0x2000 | 9) for high, low in events]
    (tmp_path / "e").write_bytes(b"% evt 3.0\n% geometry 640x480\n% end\n" + np.array(words, "<u2").tobytes())
    assert read_events(tmp_path / "e").t.tolist() == [10 << 12 | 5, 3910 << 12]


@pytest.mark.parametrize("block", [1, 2, 5, 1 << 16])
def test_a_repeated_time_high_keeps_the_low_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """As the camera's own decoder: a new one begins at 0."""
    monkeypatch.setattr(evt3, "BLOCK", block)
    high, low, row, event = 0x8000, 0x6000, 0x0000, 0x2000
    words = [high | 5, low | 100, row | 3, event | 1, high | 5, event | 2, low | 120, event | 3, high | 5, high | 6, event | 4]
    header = b"% evt 3.0\n% geometry 1280x720\n% end\n"
    (tmp_path / "e.raw").write_bytes(header + np.array(words, "<u2").tobytes())
    assert read_events(tmp_path / "e.raw").t.tolist() == [5 * 4096 + 100, 5 * 4096 + 100, 5 * 4096 + 120, 6 * 4096]
