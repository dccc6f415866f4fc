"""Text of events: columns by name or by place, units by name or by look, and a note on everything that was assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput
from eventspec.events.formats import nmnist, open_events, read_events, recognised

SAID = "times are taken for microseconds: the file says so"
NO_HEADER = "the columns are taken for t x y p: there is no header"


def opened(path: Path, text: str | bytes, **options: Any) -> Any:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_events(path, (640, 480), **options)


@pytest.mark.parametrize(
    ("text", "times", "columns"),
    [
        ("5 1 2 0\n6 3 4 1\n", [5, 6], [(1, 2, 0), (3, 4, 1)]),
        ("5,1,2,-1\n6,3,4,1", [5, 6], [(1, 2, 0), (3, 4, 1)]),
        ("0.000005 1 2 0\n0.25 3 4 1\n", [5, 250_000], [(1, 2, 0), (3, 4, 1)]),
        ("1589163147.368868\t1\t2\t0\n", [1589163147368868], [(1, 2, 0)]),
        ("1589163147368868123 1 2 0\n", [1589163147368868], [(1, 2, 0)]),
        ("t,x,y,p\n5,1,2,0\n", [5], [(1, 2, 0)]),
        ("x y p t\n1 2 0 5\n", [5], [(1, 2, 0)]),
        ("polarity;timestamp (ms);x;y\nTrue;5.25;1;2\n", [5250], [(1, 2, 1)]),
        ('"x","y","time [s]","on"\n1,2,5,1\n', [5_000_000], [(1, 2, 1)]),
        ("# made by hand\n# t_ns x y p\n5000 1 2 1\n# pause\n6000 3 4 0\n", [5, 6], [(1, 2, 1), (3, 4, 0)]),
        (",ts,x,y,p,z\n0,5.0,1,2,1,9\n1,6.0,3,4,0,9\n", [5, 6], [(1, 2, 1), (3, 4, 0)]),
        ("\r\n5 1 2 0\r\n6 3 4 1\r\n", [5, 6], [(1, 2, 0), (3, 4, 1)]),
    ],
)
def test_columns_and_units_are_understood(tmp_path: Path, text: str, times: list[int], columns: Any) -> None:
    stream = opened(tmp_path / "e.bin", text).events
    assert stream.t.tolist() == times
    assert list(zip(stream.x.tolist(), stream.y.tolist(), stream.p.tolist(), strict=True)) == columns


def test_a_header_without_a_line_is_text_of_no_events(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("# sensor 4x4\nx,y,t,p\n")
    with pytest.raises(BadInput, match="before its first event") as raised:
        read_events(tmp_path / "e.csv")
    assert "there is no line of events" in str(raised.value)


@pytest.mark.parametrize("sign", ["#", "%"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_long_comments_before_the_events_are_passed_over(tmp_path: Path, sign: str, mark: bytes) -> None:
    size = f"{sign} {'x' * 9000}\n\n" + f"{sign} as it was\n" * 3000 + f"{sign} sensor 640x480\n"
    for lines in ("5 1 2 0\n", "5 1 2 0\n" * 2000):
        (tmp_path / "e").write_bytes(mark + size.encode() + lines.encode())
        stream = read_events(tmp_path / "e")
        assert (len(stream), stream.width, stream.t[0]) == (lines.count("\n"), 640, 5)
    (tmp_path / "e").write_bytes(mark + size.encode())
    with pytest.raises(BadInput, match="not a readable event file"):
        read_events(tmp_path / "e")


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("5 1 2 0\n", (NO_HEADER, "times are taken for microseconds: they are whole numbers")),
        ("0.5 1 2 0\n", (NO_HEADER, "times are taken for seconds: they have fractions")),
        ("t_us,x,y,p\n5,1,2,0\n", (SAID,)),
        ("t_us,x,y,p\n5,1,2,0\n6,1", (SAID, "the last line is cut: 3 bytes lost")),
    ],
)
def test_notes_tell_what_was_assumed_or_lost(tmp_path: Path, text: str, notes: tuple[str, ...]) -> None:
    assert opened(tmp_path / "e", text).notes == notes


def test_a_first_line_of_two_numbers_is_the_sensors_size(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("240 180\n0.1 1 2 1\n")
    assert (read_events(tmp_path / "e").width, read_events(tmp_path / "e").height) == (240, 180)
    (tmp_path / "e").write_text("0.1 1 2 1\n")
    with pytest.raises(BadInput, match="the sensor size is not in the file"):
        read_events(tmp_path / "e")


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(st.tuples(st.integers(0, 639), st.integers(0, 479), st.integers(1, 10**6), st.integers(0, 1)), min_size=1),
    style=st.sampled_from(
        [
            ("", "{t} {x} {y} {p}\n"),
            ("t_s,x,y,p\n", "{s:.6f},{x},{y},{p}\n"),
            ("640 480\n", "{s:.9f}\t{x}\t{y}\t{p}\n"),
            ("p;y;x;t (us)\n", "{p};{y};{x};{t}\n"),
        ]
    ),
    block=st.integers(60, 300),
)
def test_what_is_written_is_read_back(tmp_path: Path, drawn: Any, style: tuple[str, str], block: int) -> None:
    x, y, steps, p = ([event[place] for event in drawn] for place in range(4))
    t = np.cumsum(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventspec.events.formats.text.BLOCK_BYTES", block)
        stream = opened(tmp_path / "e", encoders.text(x, y, t, p, *style)).events
    for name, values in zip("xytp", (x, y, t, p), strict=True):
        assert getattr(stream, name).tolist() == list(values)


# More than one block of lines, some of which are no events.
COMMENTED = "% a comment\nt_us,x,y,p\n" + "5,6,7,1\n" * 300_000 + "\n8,700,8,1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3 1\n" + "4 5 6\n" + "7 8 9 1\n", "line 2 is no event ('4 5 6'): mend"),
        ("1 2 3 1\n4 five 6 1\n", "line 2 is no event ('4 five 6 1')"),
        ("1 2 3 1\n4 nan 6 1\n", "x in line 2 is nan: it must be a whole number"),
        ("# made by hand\nt,x,y,p\nnan,2,3,1\n5,2,3,1\n", "t in line 3 is nan: times must be whole microseconds"),
        ("inf 2 3 1\n5 2 3 1\n", "t in line 1 is inf: times must be whole microseconds"),
        ("t,x,y,p\n\n1,two,3,1\n5,2,3,1\n", "line 3 is no event ('1,two,3,1')"),
        ("640 480\n5 1 2 1\n\n6 1 2 1\n4 1 2 1\n", "t in line 5 is 4, before t in line 4 = 6"),
        (COMMENTED, "x in line 300004 is 700: outside the sensor"),
        (
            "1 2 3 1\n" * 800 + "1.5 2 3 1\n",
            "t in line 801 is 1.5: times must be whole microseconds (seconds need a conversion)",
        ),
        ("t_s,x,y,p\n1e300,2,3,1\n", "t in line 2 is 1e+306: times must be whole microseconds"),
        ("1 700 3 1\n", "x in line 1 is 700: outside the sensor (width 640)"),
        ("1 7 3 2\n", "p in line 1 is 2: polarity must be 0 or 1"),
        ("5 7 3 1\n4 7 3 1\n", "t in line 2 is 4, before t in line 1 = 5"),
        ("-5 7 3 1\n", "t in line 1 is -5"),
        ("1 2 3 1\n" + "9" * 3_000_000, "line 2 has more than"),
    ],
)
def test_a_line_that_is_no_event_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        opened(tmp_path / "e", text)
    assert words in str(refused.value) and str(tmp_path / "e") in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a,b,c,d\n1,2,3,4,5\n",
        "t,x,y\n1,2,3\n",
        "1 2 3\n",
        "1,2,3,4,5\n",
        "hello world\n",
        '[{"id": 1}]',
        "1 2 3 x\n",
    ],
)
def test_other_text_is_not_taken_for_events(tmp_path: Path, text: str) -> None:
    (tmp_path / "e").write_text(text)
    if text:
        assert recognised(tmp_path / "e") is None


# ------------------------------------------------------------------------------------------------------------------ N-MNIST
def test_a_bin_file_is_read_back_on_the_smallest_sensor_that_fits(tmp_path: Path) -> None:
    for name, side in (("nmnist", (34, 34)), ("ncaltech101", (240, 180))):
        columns = encoders.street(3000, *side)
        (tmp_path / "e").write_bytes(encoders.nmnist(**columns))
        found = open_events(tmp_path / "e")
        assert found.events is not None and (found.events.width, found.events.height) == side
        assert all(np.array_equal(getattr(found.events, key), columns[key]) for key in "xytp")
        assert f"({name}) is assumed" in found.notes[0]
    assert open_events(tmp_path / "e", (304, 240)).notes == ()


@pytest.mark.parametrize("block", [1, 3, 100])
def test_a_turn_of_the_clock_is_no_event_and_delays_all_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(nmnist, "BLOCK", block)
    y = [1] * 10 + [240] + [2] * 5 + [240, 240, 3]
    t = [*range(8000, 8010), 0, *range(10, 15), 16, 16, 17]
    (tmp_path / "e").write_bytes(encoders.nmnist([5] * 19, y, t, [1] * 19))
    found = open_events(tmp_path / "e")
    assert found.events is not None and found.events.y.tolist() == [1] * 10 + [2] * 5 + [3]
    assert found.events.t.tolist() == [*range(8000, 8010), *range(8202, 8207), 17 + 3 * 8192]
    assert found.notes[1] == "the clock turned 3 times (y = 240)"


def test_a_cut_bin_file_keeps_its_whole_records(tmp_path: Path) -> None:
    data = encoders.nmnist(**encoders.street(500, 34, 34))
    (tmp_path / "e").write_bytes(data[:-2])
    found = open_events(tmp_path / "e")
    assert found.events is not None and len(found.events) == 499
    assert found.notes[0] == "the file is cut inside a word: its last 3 of 2498 bytes of events are lost"


@pytest.mark.parametrize("data", [bytes(range(256)) * 64, bytes(4000), b"\xff" * 4000, np.random.default_rng(1).bytes(4000)])
def test_bytes_that_are_no_events_are_not_taken_for_them(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "e").write_bytes(data)
    assert recognised(tmp_path / "e") is None


@pytest.mark.parametrize("header", [b"t,x,y,p\n", b"640 480\n", b"# sensor 640x480\n", b""])
def test_the_mark_of_utf8_before_the_text_changes_nothing(tmp_path: Path, header: bytes) -> None:
    lines = header + b"5,6,7,1\n9,6,7,0\n"
    (tmp_path / "e.csv").write_bytes(b"\xef\xbb\xbf" + lines)
    size = None if b"640" in header else (640, 480)
    found = read_events(tmp_path / "e.csv", size)
    assert found.t.tolist() == [5, 9] and found.p.tolist() == [1, 0]
    (tmp_path / "e.csv").write_bytes(b"\xef\xbb\xbf" + lines + b"10,6,oh,1\n")
    with pytest.raises(BadInput, match=f"line {lines.count(10) + 1} is no event"):
        read_events(tmp_path / "e.csv", size)


def test_a_last_time_that_lost_its_digits_is_left_out(tmp_path: Path) -> None:
    found = opened(tmp_path / "e.csv", "x,y,p,t_us\n1,2,0,1000\n3,4,1,2000\n5,6,1,30")
    assert found.events.t.tolist() == [1000, 2000] and found.notes[-1] == "the last line is cut: 8 bytes lost"
    kept = opened(tmp_path / "e.csv", "x,y,p,t_us\n1,2,0,1000\n3,4,1,2000\n5,6,1,30", monotonic="keep")
    assert kept.events.t.tolist() == [1000, 2000, 30], "whose times may go back"
    with pytest.raises(BadInput, match="before"):  # a whole line is out of order
        opened(tmp_path / "e.csv", "x,y,p,t_us\n1,2,0,1000\n3,4,1,2000\n5,6,1,30\n")
