"""EventGPT's pickled .npy is read without running it: nothing that a pickle can ask for happens."""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventspec.core import BadInput
from eventspec.events.formats import open_events, read_events


def npy(path: Path, program: bytes, shape: str = "()", descr: str = "|O") -> Path:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + program)
    return path


def events(**changes: Any) -> dict[str, Any]:
    columns = {
        "x": np.array([1, 639], np.uint16),
        "y": np.array([2, 479], np.uint16),
        "t": np.array([10, 11], np.int64),
        "p": np.array([0, 1], np.uint8),
    }
    return {name: value for name, value in {**columns, **changes}.items() if value is not None}


class Runs:
    """A pickle that calls something when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_a_dict_saved_by_numpy_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array(events(p=np.array([False, True]), t0=np.int64(7))), allow_pickle=True)
    found = open_events(tmp_path / "e.npy")
    assert found.events is not None
    assert found.events.x.tolist() == [1, 639] and found.events.p.tolist() == [0, 1]
    assert found.notes == ("sensor size 640x480 (DSEC) is assumed: the file does not say, and every event fits",)
    assert open_events(tmp_path / "e.npy", (1280, 720)).notes == ()


@pytest.mark.parametrize("old", [True, False], ids=["numpy 1 names", "numpy 2 names"])
@pytest.mark.parametrize("protocol", [3, 4])
def test_both_numpys_and_protocols_are_read(tmp_path: Path, old: bool, protocol: int) -> None:
    program = pickle.dumps(np.array(events(), object), protocol=protocol)
    if old and protocol == 3:
        program = program.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert read_events(npy(tmp_path / "e.npy", program)).t.tolist() == [10, 11]


@pytest.mark.parametrize(
    "payload",
    [
        Runs(os.system, "touch ran"),
        Runs(eval, "open('ran', 'w')"),
        Runs(exec, "open('ran', 'w')"),
        Runs(getattr, Runs(__import__, "os"), "system"),
        Runs(Path.touch, Path("ran")),
        Runs(np.fromfile, "ran"),
        Runs(np.memmap, "ran", "u1", "w+", 0, (1,)),
        Runs(bytearray, 1 << 40),
    ],
    ids=["os.system", "eval", "exec", "getattr", "pathlib", "fromfile", "memmap", "bytearray"],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_malicious_pickle_is_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: Runs, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (payload, {"x": payload}, np.array(events(x=payload), object)):
        path = npy(tmp_path / "e.npy", pickle.dumps(value, protocol=protocol))
        with pytest.raises(BadInput) as refused:
            read_events(path)
        assert "the pickle is refused and nothing in it was run" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


def array_program(shape: tuple[int, ...], code: str = "u2", data: bytes = b"\0\0") -> bytes:
    """A pickled dict whose x claims this shape and type."""
    sound = pickle.dumps(np.array([0], np.uint16), protocol=3)
    out = sound.replace(b"K\x01\x85", pickle.dumps(shape, protocol=2)[2:-1].replace(b"q\x00", b""))
    out = out.replace(b"u2", code.encode()).replace(b"C\x02\0\0", b"C" + bytes([len(data)]) + data)
    return b"\x80\x03}X\x01\0\0\0x" + out[2:-1] + b"s."


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (array_program((10**15,)), r"an array claims shape (1000000000000000,) of uint16 but has 2 bytes"),
        (array_program((-1,)), "it has an array whose shape is no row of sizes"),
        (array_program((1,), "O8"), "a column holds objects"),
        (array_program((1,), "V2"), "it uses the type 'V2'"),
        (array_program((1,)), "lacks y, t, p"),
        (b"\x80\x03}r\xff\xff\xff\xff.", "far longer than a dict of columns"),  # memo slot 4294967295: 64 GB in C
        (b"\x80\x03" + b"K\x01" * 20_000 + b".", "far longer than a dict of columns"),
        (b"\x80\x03" + b"(" * 9000 + b".", "it is damaged or cut short"),
        (b"\x80\x03]q\x00.", "it is not a dict of columns"),
        (b"\x80\x03cnumpy\nndarray\nK\x05\x85R.", "it builds an array in an unknown way"),
        (b"\x80\x03ccopyreg\n_reconstructor\n.", "it asks for copyreg._reconstructor"),
        (b"\x80\x02\x82\x01.", "it uses the instruction EXT1"),
        (b"", "it is damaged or cut short"),
        (b"not a pickle", "it is"),
    ],
)
def test_claims_a_pickle_cannot_keep_are_refused(tmp_path: Path, program: bytes, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_events(npy(tmp_path / "e.npy", program))
    assert words in str(refused.value)


def tower(levels: int) -> bytes:
    """A program for a tuple of twice the tuple below, 2^levels numbers to print or to hash."""
    return b"K\x01K\x01\x86q\x00" + b"".join(b"h%c\x86q%c" % (level, level + 1) for level in range(levels))


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n" + tower(40) + b"\x85R.",
        b"}" + tower(40) + b"K\x01s.",
        b"}" + tower(1).replace(b"\x86q\x00", b"\x86Nbq\x00") + b"K\x01s.",  # kept behind an instruction that changes nothing
        b"}" + tower(1).replace(b"\x86q\x00", b"\x86(eq\x00") + b"K\x01s.",
    ],
    ids=["type", "key", "build", "appends"],
)
def test_a_small_pickle_of_a_huge_value_is_refused_at_once(tmp_path: Path, program: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(BadInput, match="it uses one tuple twice"):
        read_events(npy(tmp_path / "e.npy", b"\x80\x02" + program))
    assert time.monotonic() - began < 1


def test_names_in_a_pickle_do_not_make_a_refusal_longer_than_a_line(tmp_path: Path) -> None:
    word = b"X" + (3000).to_bytes(4, "little") + b"two\nlines " * 300
    for program in (b"\x80\x04" + word + word + b"\x93.", b"\x80\x02cnumpy\ndtype\n" + word + b"\x85R."):
        with pytest.raises(BadInput) as refused:
            read_events(npy(tmp_path / "e.npy", program))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
    np.save(tmp_path / "e.npy", np.array({"a\nb": np.zeros(2)}), allow_pickle=True)
    with pytest.raises(BadInput, match="holds a b, lacks"):
        read_events(tmp_path / "e.npy")


def test_a_torn_file_is_refused_at_every_length(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array(events()), allow_pickle=True)
    data = buffer.getvalue()
    for length in range(7, len(data) - 1, 9):
        (tmp_path / "e.npy").write_bytes(data[:length])
        with pytest.raises(BadInput):
            read_events(tmp_path / "e.npy")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.array([640, 0], np.uint16)}, "x[0] is 640: outside the sensor (width 640); give the right sensor_size"),
        ({"p": None}, "lacks p"),
        ({"t": np.array([np.nan, 1.0])}, "t[0] is nan"),
        ({"t": np.array([{}, 1], object)}, "a column is not an array of plain numbers"),
        ({"t": np.zeros(2, [("a", "u1")])}, "it uses the type 'V1'"),
        ({"y": [2, 479]}, "lacks y"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    np.save(tmp_path / "e.npy", np.array(events(**columns)), allow_pickle=True)
    with pytest.raises(BadInput) as refused:
        read_events(tmp_path / "e.npy")
    assert words in str(refused.value)


def test_a_plain_array_is_named_for_what_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.zeros((5, 4)))
    with pytest.raises(BadInput, match=r"a float64 array of shape \(5, 4\): its values do not tell which columns are x, y, t"):
        read_events(tmp_path / "e.npy")
