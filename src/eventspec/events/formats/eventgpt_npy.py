"""EventGPT's .npy: a pickled dict of columns, read without ever running what a pickle may contain.

A pickle is a program. Three walls stand before this one: its opcodes are listed and only those of plain containers, numbers
and bytes pass; every global name but numpy's four array builders is refused; and those four are replaced by inert stand-ins,
so no numpy code sees the pickle's claims before they are compared with the bytes really present.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadInput
from eventspec.events.formats.columns import time_name
from eventspec.events.formats.family import EventFile, Format, SensorSize, column_names, size_in, size_or_dsec, whole_file
from eventspec.events.formats.npy import MAGIC, npy_header, pickled
from eventspec.events.stream import Array, Policy

NAME = "eventgpt-npy"
LARGEST_PROGRAM = 10_000  # opcodes; EventGPT's files have about 150
PLAIN_TYPES = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8", "O8"})

# Containers, numbers, text, bytes, the memo, and the three that build an array: GLOBAL, REDUCE, BUILD.
_HARMLESS = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
    GLOBAL STACK_GLOBAL REDUCE BUILD
"""
HARMLESS_OPCODES = frozenset(_HARMLESS.split())
MEMO_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
KEEPING_OPCODES = MEMO_OPCODES | {"MEMOIZE"}
FETCHING_OPCODES = frozenset({"GET", "BINGET", "LONG_BINGET"})
# Certainly no tuple is left on the stack by these. A kept tuple is never fetched: tuples of twice the same tuple, a few hundred
# bytes of program, take for ever to hash or to print.
FETCHABLE_OPCODES = HARMLESS_OPCODES - {
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MARK"),
    *("PROTO", "FRAME", *KEEPING_OPCODES, *FETCHING_OPCODES),
}


class _Refused(Exception):
    """Why the pickle is not loaded, in a few words."""


def matches(path: Path, head: bytes) -> bool:
    """A numpy file of objects, or one with a damaged header: `read` says so."""
    return head.startswith(MAGIC) and pickled(head)


def read(path: Path, sensor_size: SensorSize | None, policy: Policy) -> EventFile:
    """The columns, of which no code was run; the sensor is DSEC's 640x480 unless `sensor_size` says otherwise."""
    with path.open("rb") as file:
        try:
            shape, _, dtype = npy_header(file)
        except ValueError as error:
            raise BadInput(f"{path}: the numpy header is damaged ({error}): copy the file again") from None
        if dtype.kind != "O" or shape != ():
            raise BadInput(f"{path}: a {dtype} array of shape {shape}: an EventGPT .npy holds one pickled dict x, y, t, p")
        program = file.read()
    try:
        columns = _columns(_unpickled(program))
    except _Refused as error:
        raise BadInput(
            f"{path}: the pickle is refused and nothing in it was run: {error}; get the original file, or the events as npz"
        ) from None
    notes: list[str] = []
    size = size_or_dsec(size_in(columns, str(path), notes), sensor_size, str(path), notes)
    chosen = column_names(columns, path, "an EventGPT .npy")
    time = time_name(columns, chosen[2], str(path))
    return whole_file(NAME, [columns[name] for name in chosen], size, path, policy, notes, time)


# ------------------------------------------------------------------------------------------------- inert stand-ins for numpy
class _DType:
    """numpy.dtype(code, align, copy) with its pickled state (version, byte order, ...)."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or code not in PLAIN_TYPES:
            raise _Refused(f"it uses the type {_brief(code)!r}, not plain numbers")
        self.code = code
        self.order = "="

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), ("<" | ">" | "|" | "=") as order, None, None, None, *_):
                self.order = order
            case _:
                raise _Refused("it uses a structured or unreadable type")

    @property
    def plain(self) -> np.dtype[Any]:
        if self.code == "O8":
            raise _Refused("a column holds objects, not plain numbers")
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


class _NDArray:
    """The name numpy.ndarray itself: passed to _reconstruct, never called."""

    def __init__(self, *_: object) -> None:
        raise _Refused("it builds an array in an unknown way")


class _Array:
    """What _reconstruct returns; its state is (version, shape, dtype, fortran order, data)."""

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype: _DType | None = None
        self.data: bytes | list[Any] = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, _DType() as dtype, bool() | int(), (bytes() | list()) as data):
                if not all(isinstance(side, int) and side >= 0 for side in shape):
                    raise _Refused("it has an array whose shape is no row of sizes")
                self.shape, self.dtype, self.data = shape, dtype, data
            case _:
                raise _Refused("it has an array in an unknown layout")

    def plain(self) -> Array:
        """The array, once its claimed size equals the bytes that are there."""
        if self.dtype is None or not isinstance(self.data, bytes):
            raise _Refused("a column is not an array of plain numbers")
        dtype = self.dtype.plain
        if math.prod(self.shape) * dtype.itemsize != len(self.data):
            raise _Refused(f"an array claims shape {self.shape} of {dtype} but has {len(self.data)} bytes")
        return np.frombuffer(self.data, dtype).reshape(self.shape)


def _scalar(dtype: object, data: object) -> Array:
    """numpy.core.multiarray.scalar: one number as an array of shape ()."""
    array = _Array()
    array.__setstate__((1, (), dtype, False, data))
    return array.plain()


ALLOWED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "ndarray"): _NDArray,
    ("numpy", "dtype"): _DType,
    ("builtins", "dict"): dict,
    **{(module, "_reconstruct"): _Array for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{(module, "scalar"): _scalar for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"it asks for {_brief(module)}.{_brief(name)}") from None


# ------------------------------------------------------------------------------------------------------------------ reading
def _unpickled(program: bytes) -> object:
    """The object a harmless pickle describes, made of stand-ins; _Refused for any other."""
    try:
        _check(program)
        return _RestrictedUnpickler(io.BytesIO(program)).load()
    except _Refused:
        raise
    except Exception as error:  # a damaged pickle can fail in any way: every one of them means the same to the user
        raise _Refused(f"it is damaged or cut short ({' '.join(str(error).split())[:100]})") from None


def _check(program: bytes) -> None:
    """_Refused for instructions that no dict of columns needs; nothing is built yet."""
    before, kept, fetchable = "", 0, set[int]()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(program)):
        name = opcode.name
        if name not in HARMLESS_OPCODES:
            raise _Refused(f"it uses the instruction {name}")
        if count >= LARGEST_PROGRAM or (name in MEMO_OPCODES and int(str(argument)) > LARGEST_PROGRAM):
            raise _Refused("it is far longer than a dict of columns")
        if name in KEEPING_OPCODES:
            place, kept = kept if name == "MEMOIZE" else int(str(argument)), kept + 1
            (fetchable.add if before in FETCHABLE_OPCODES else fetchable.discard)(place)
        if name in FETCHING_OPCODES and int(str(argument)) not in fetchable:
            raise _Refused("it uses one tuple twice")
        before = name


def _brief(value: object) -> str:
    """Text of the pickle, short and on one line."""
    return " ".join(value.split())[:60] if isinstance(value, str) else f"a {type(value).__name__}"


def _columns(value: object) -> dict[str, Any]:
    """The arrays, numbers and texts in the dict inside the pickled array of shape () that np.save makes of a dict."""
    match value:
        case _Array(shape=(), data=[dict() as columns]) | (dict() as columns):
            pass
        case _:
            raise _Refused("it is not a dict of columns")
    known = {
        name: one for name, one in columns.items() if isinstance(name, str) and isinstance(one, _Array | int | float | str)
    }
    return {name: one.plain() if isinstance(one, _Array) else one for name, one in known.items()}


FORMAT = Format(NAME, "EventGPT .npy", matches, read)
