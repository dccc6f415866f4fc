"""Which file is which, and what every family does with files that are wrong."""

from __future__ import annotations

import base64
import io
import os
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import encoders
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput
from eventspec.events import EventStream
from eventspec.events.formats import FORMATS, SENSORS, native_h5, npz, open_events, parse_sensor_size, read_events
from eventspec.events.stream import Monotonic

COLOUR = (
    # One AEDAT4 frame of 3x2 pixels, as dv-processing 2.0.4 wrote it (zlib, base64): BGR in the file.
    "eNqNU01vEzEQfckGGq3SKEQ5RFUPxq0QB8gupcdk1dCmIhKhUlTxJS6rrFMsmvXK643Unqr+BX4AfwXxa3IsVy4wu0lRSBeRkcYa22/e89ienY"
    "fd3vDpUfd0v+Vu2rsW0ATQP3nZQ2Y2GiihgjJFQIG8Qv7Vmu/eFIF2MGVToWOpwg7fa7ncsxlZO1SBYKE/ER2uEtMPx4qzyDefOtxZzJ0FdBXu"
    "3gG6y9AM7huj2Wdx0eEjNYm0iFN9zsxFRASx0TI8496rD/ttJ0X+M1lpeSZD/3ygguRcvCb5VY6BCtUhrWv/rZZG6DUJTxITJSaPcKxpMf4PTZ"
    "pyJOKRlpHJKewwiY2asMA3frbDVCbXWoO1H4jQyLEUepX0eDjo5RIsPY3Me0bXkSuvmaMdy0vx7lZShoZ7z/PEcrLe/5W1t06WSvTozsWLKVUe"
    "R2KUW6STVrn0H5fmt3HbCaaejYX55CU+aB4cfBtS+KMe0LhLnt4jsIXHqGXAJhg20gaq4lkFW2V8R81CEdu0N7MeoFLGlzrFDfvXvRuGKwp/Fg"
    "tzkYXAm1Tg0UcaU8rj0+4L4D5Rlmgk0KIzG1lKFU+oR0s026bjVBu4np/VszZRL2xgB7MarmYW/thvaNP7CQ=="
)
SHARED = Path(__file__).parents[2].parent / "shared"
COLUMNS: dict[str, Any] = {"x": [0, 3], "y": [0, 2], "t": [5, 6], "p": [0, 1]}


def write_npz(path: Path, **changes: Any) -> Path:
    content = {**COLUMNS, "width": 4, "height": 3, **changes}
    columns: dict[str, Any] = {name: np.asarray(value) for name, value in content.items() if value is not None}
    np.savez(path, **columns)
    return path


def write_h5(path: Path, **changes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in {**COLUMNS, **changes}.items():
            if values is not None:
                file[name] = values
        file.attrs.update(width=4, height=3)
    return path


@pytest.mark.skipif(not SHARED.exists(), reason="shared recordings are not here")
@pytest.mark.parametrize(
    ("file", "format_name", "size", "golden"),
    [
        (
            "aedat4/davis346_traffic.aedat4",
            "aedat4",
            (346, 260),
            (78830, 1589163147368868, 1589163149728813, 14861513, 15061593, 41257),
        ),
        (
            "aedat4/davis346_traffic_clip.aedat4",
            "aedat4",
            (346, 260),
            (6676, 1589163147368868, 1589163147538809, 721626, 1424056, 3563),
        ),
        (
            "eventgpt_npy/eventgpt_dsec_interlaken_00_d_000089.npy",
            "eventgpt-npy",
            (640, 480),
            (120836, 51836949776, 51836999775, 37456161, 35443430, 71873),
        ),
        ("eventgpt_npy/eventgpt_sample1.npy", "eventgpt-npy", (640, 480), (132268, 0, 49595, 40228180, 28830439, 64714)),
        (
            "prophesee/evt2_sparklers_gen3.raw",
            "evt2",
            (640, 480),
            (521252, 913716224, 913812095, 128979953, 216346680, 185861),
        ),
        (
            "prophesee/evt3_sample_small.raw",
            "evt3",
            (1280, 720),
            (219596, 11718656, 11727457, 159113225, 85638051, 115532),
        ),
        ("prophesee/dat_ncars_tonic.dat", "dat", (304, 240), (2009, 0, 99952, 93457, 40463, 1350)),
        ("nmnist/nmnist_sample.bin", "nmnist-bin", (34, 34), (4325, 654, 311175, 74457, 71931, 2145)),
    ],
)
def test_real_recordings_have_the_checksums_of_independent_readers(
    file: str, format_name: str, size: tuple[int, int], golden: tuple[int, ...]
) -> None:
    found = open_events(SHARED / "recordings" / file)
    stream = found.events
    assert stream is not None and found.format == format_name and (stream.width, stream.height) == size
    sums = (int(column.sum(dtype=np.int64)) for column in (stream.x, stream.y, stream.p))
    assert (len(stream), int(stream.t[0]), int(stream.t[-1]), *sums) == golden


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty (0 bytes)"),
        (b"% some 3.0\n% date x\n\0\1\2", "looks like a Prophesee RAW or DAT file"),
        (b"#!AER-DAT2.0\r\n", "looks like an AEDAT 2 file"),
        (b"\x89PNG\r\n\x1a\n", "looks like a PNG image"),
        (b"\0\0\0\x18ftypmp42", "looks like an MP4 video"),
        ("größe,x,y\n1,2,3\n".encode(), "looks like text starting 'größe,x,y"),
        (b"\x80\x04\x95", "looks like a bare pickle"),
        (b"\0\1\2\3", "looks like binary data starting 00 01 02 03"),
    ],
)
def test_an_unreadable_file_is_named_by_its_content(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "events.npz"  # the suffix is never trusted
    path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        open_events(path)
    assert words in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)
    assert not content or ", ".join(known.title for known in FORMATS) in str(refused.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_events(tmp_path / "nothing.npz")
    with pytest.raises(BadInput, match="is a folder"):
        read_events(tmp_path)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**60), st.integers(0, 1)), max_size=15))
@pytest.mark.parametrize("family", [npz, native_h5])
def test_what_is_written_is_read_back(tmp_path: Path, family: Any, events: list[tuple[int, int, int, int]]) -> None:
    events.sort(key=lambda event: event[2])
    x, y, t, p = ([event[k] for event in events] for k in range(4))
    stream = EventStream.checked(x, y, t, p, 4, 3)
    path = tmp_path / "file"
    family.write(path, stream)
    found = open_events(path)
    again = found.events
    assert again is not None and found.format == family.NAME and (again.width, again.height) == (4, 3)
    for one, other in ((stream.x, again.x), (stream.y, again.y), (stream.t, again.t), (stream.p, again.p)):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_the_same_stream_gives_the_same_bytes(tmp_path: Path) -> None:
    stream = EventStream.checked(**COLUMNS, width=4, height=3)
    native_h5.write(tmp_path / "a.h5", stream)
    native_h5.write(tmp_path / "b.h5", stream)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("write", [write_npz, write_h5])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": [0, 4]}, "x[1] is 4: outside the sensor (width 4)"),
        ({"t": [6, 5]}, "t[1] is 5, before t[0] = 6"),
        ({"t": [0.0, float("nan")]}, "t[1] is nan"),
        ({"p": [0, 7]}, "p[1] is 7"),
        ({"y": [0]}, "the columns differ in length"),
    ],
)
def test_wrong_columns_are_refused_with_field_and_index(tmp_path: Path, write: Any, changes: Any, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_events(write(tmp_path / "e.npz", **changes))
    assert words in str(refused.value)


@pytest.mark.parametrize("policy", ["clamp", "keep"])
@pytest.mark.parametrize("name", sorted(encoders.ENCODERS))
def test_the_policy_for_time_reaches_every_format_and_is_noted(tmp_path: Path, policy: Monotonic, name: str) -> None:
    x, y, p = [1] * 12, [2, 3] * 6, [1] * 12
    t = [*range(100, 110), 106, 105]
    (tmp_path / "e").write_bytes(encoders.ENCODERS[name](x, y, t, p))
    if name == "nmnist-bin":  # its times are what it is recognised by
        with pytest.raises(BadInput, match="looks like"):
            open_events(tmp_path / "e", monotonic=policy)
        return
    found = open_events(tmp_path / "e", monotonic=policy)
    lifted = [*range(100, 110), 109, 109] if policy == "clamp" else t
    assert found.events is not None and found.events.t.tolist() == lifted
    assert any("2 event times go back, by at most 4 us" in note for note in found.notes)
    told = "t in line 12 is 106, before t in line 11 = 109" if name == "text" else r"t\[10\] is 106, before t\[9\] = 109"
    with pytest.raises(BadInput, match=told):
        open_events(tmp_path / "e")


def test_a_size_that_is_nowhere_must_be_given(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "e.npz", width=None)
    with pytest.raises(BadInput, match="the sensor size is not in the file"):
        read_events(path)
    assert read_events(path, (4, 3)).width == 4
    with pytest.raises(BadInput, match=r"the file says 4x3 pixels but sensor_size is 5x5"):
        read_events(write_npz(tmp_path / "f.npz"), (5, 5))


def test_an_npz_lacking_a_column_or_holding_a_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lacks p: an events archive has x, y, t and p"):
        read_events(write_npz(tmp_path / "e.npz", p=None))
    with pytest.raises(BadInput, match="x is a pickled object array, which is never loaded"):
        read_events(write_npz(tmp_path / "o.npz", x=np.array([{}, 1], object)))
    with pytest.raises(BadInput, match="width is not one whole number"):
        read_events(write_npz(tmp_path / "w.npz", width=[1, 2]))


def test_an_npz_that_unpacks_into_far_more_than_events_can_is_refused_unread(tmp_path: Path) -> None:
    count = 3_000_000
    columns = {name: np.zeros(count, dtype) for name, dtype in (("x", "u2"), ("y", "u2"), ("t", "i8"), ("p", "u1"))}
    np.savez_compressed(tmp_path / "e.npz", width=640, height=480, **columns)
    tracemalloc.start()
    with pytest.raises(BadInput, match="are no recorded events: write them as"):
        read_events(tmp_path / "e.npz")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    kept = {name: column[: npz.LEAST_BYTES // 16] for name, column in columns.items()}  # a still scene may be packed well
    np.savez_compressed(tmp_path / "s.npz", width=640, height=480, unread=np.zeros(1 << 26), **kept)
    assert len(read_events(tmp_path / "s.npz")) == npz.LEAST_BYTES // 16


def test_names_in_an_npz_do_not_make_a_refusal_longer_than_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", **{"two\nlines": np.zeros(2)})
    with pytest.raises(BadInput, match="holds two lines, lacks x"):
        read_events(tmp_path / "e.npz")


def test_an_npz_that_claims_more_than_it_stores_is_refused_without_allocating(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "e.npz")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<u2", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, header.getvalue() + b"\0\0" if name == "x.npy" else data)
    with pytest.raises(BadInput, match="x claims 2000000000000000 bytes but holds 2"):
        read_events(path)


@pytest.mark.parametrize(("write", "name"), [(write_npz, "e.npz"), (write_h5, "events.h5")])
def test_torn_archives_are_refused_at_every_length(tmp_path: Path, write: Any, name: str) -> None:
    data = write(tmp_path / name).read_bytes()
    for length in range(1, len(data) - 1, max(1, len(data) // 25)):
        (tmp_path / name).write_bytes(data[:length])
        with pytest.raises(BadInput):
            read_events(tmp_path / name)


def test_an_h5_must_hold_its_data_itself(tmp_path: Path) -> None:
    write_h5(tmp_path / "other.h5")
    path = write_h5(tmp_path / "events.h5", x=None)
    with h5py.File(path, "a") as file:
        file["x"] = h5py.ExternalLink("other.h5", "x")
    with pytest.raises(BadInput, match="x is not a dataset stored in the file itself"):
        read_events(path)
    with h5py.File(path, "a") as file:
        del file["x"]
        file.create_dataset("x", (10**12,), "u2", chunks=(1000,), compression="gzip")
    with pytest.raises(BadInput, match="x claims 2000000000000 bytes but stores 0"):
        read_events(path)


def test_sensor_sizes_are_known_by_name_or_written_out() -> None:
    assert parse_sensor_size("DAVIS346") == SENSORS["davis346"] == (346, 260)
    assert parse_sensor_size("1280x720") == (1280, 720)
    for name in ("DAVIS240C", "davis 240", "Davis240b"):
        assert parse_sensor_size(name) == (240, 180)
    assert parse_sensor_size("Gen4.1") == parse_sensor_size("IMX636") == (1280, 720)
    assert parse_sensor_size("DVXplorer Lite") == (320, 240)
    for none in ("0x0", "640x0", "0x480", "99999x1"):
        with pytest.raises(BadInput, match="give both sides in pixels, 1 to 65536"):
            parse_sensor_size(none)
    for wrong in ("640", "640x", "axb", "", "640x480x3", "davis346z"):
        with pytest.raises(BadInput, match="write WIDTHxHEIGHT or one of"):
            parse_sensor_size(wrong)


@pytest.mark.parametrize("name", ["evt2", "evt21", "evt3", "dat"])
def test_a_row_of_events_that_is_cut_before_its_first_one_is_refused(tmp_path: Path, name: str) -> None:
    """At every byte from the header's end on: what is refused comes first, and then something can be read."""
    data = encoders.write(tmp_path / "whole", name, 40).read_bytes()
    start = data.index(b"% end\n") + 6 if b"% end\n" in data else data.rindex(b"\n% ") + 1
    counts = []
    for end in range(start, len(data)):
        (tmp_path / "cut").write_bytes(data[:end])
        try:
            counts.append(len(read_events(tmp_path / "cut", (640, 480))))
        except BadInput as error:
            assert "\n" not in str(error)
            counts.append(-1)
    assert 0 not in counts and counts == sorted(counts) and counts[0] == -1 and counts[-1] > 30


def test_a_container_that_says_it_holds_no_event_is_an_empty_stream(tmp_path: Path) -> None:
    npz.write(tmp_path / "e.npz", EventStream.empty(4, 3))
    native_h5.write(tmp_path / "e.h5", EventStream.empty(4, 3))
    assert [len(read_events(tmp_path / name)) for name in ("e.npz", "e.h5")] == [0, 0]


def test_colour_frames_of_aedat4_come_as_rgb(tmp_path: Path) -> None:
    path = tmp_path / "colour.aedat4"
    path.write_bytes(zlib.decompress(base64.b64decode(COLOUR)))
    assert b"\x14\x0a\xff" in path.read_bytes(), "the file itself holds blue, green, red"
    found = open_events(path)
    assert encoders.frames_of(found) is not None
    assert encoders.frames_of(found).tolist() == [
        [[[255, 10, 20], [3, 240, 5], [0, 0, 0]], [[0, 0, 0], [0, 0, 0], [1, 2, 250]]]
    ]


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e.raw")
    for path in (tmp_path / "e.raw", Path("/dev/zero")):
        with pytest.raises(BadInput, match="is a pipe, a device or a socket"):
            open_events(path)
