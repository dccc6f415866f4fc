"""Draft trees grown by a function in C that is compiled once on the machine at hand (`draft_tree.c` says why).

Without a compiler, or with a model that it does not suit, TorchScript does the same, but for rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eventspec.errors import BadInput
from eventspec.files import write_whole
from eventspec.machine import cache_folder, instructions
from eventspec.nn.cache import KVCache
from eventspec.nn.cpu.products import probe_once
from eventspec.nn.weights import HeadWeights, TreeGrowth

SOURCES = tuple(Path(__file__).with_name(name) for name in ("draft_tree.c", "layers.h", "vectors.h"))
# Not -ffast-math: what is linked with it makes the thread that loads it flush small numbers to zero, in the target too.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
MOST_WEIGHTS = 1 << 25
"""Weights of a head, at most. A guess: far more than a core's caches hold are better read by all cores, which torch does."""
_Address = ctypes.c_void_p
_Number = ctypes.c_int64


class _Matrix(ctypes.Structure):
    _fields_ = (("values", _Address), ("scales", _Address), ("inputs", _Number), ("outputs", _Number))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _Address) for name in ("input_norm", "post_norm")),
    )


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, _Number) for name in ("width", "heads", "kv_heads", "head_dim", "inner", "norm_residual", "depth")),
        ("eps", ctypes.c_float),
        *((name, _Matrix) for name in ("reduction", "head")),
        *((name, _Address) for name in ("layers", "bias", "hidden_norm", "out_norm", "ids")),
    )


class _Cache(ctypes.Structure):
    _fields_ = (("start", _Number), ("capacity", _Number), ("keys", _Address), ("values", _Address), ("apart", _Number))


class _Growth(ctypes.Structure):
    _fields_ = (
        *((name, _Number) for name in ("breadth", "levels", "rows", "all_rows", "end", "position")),
        *((name, _Address) for name in ("shape", "embedding", "cos", "sin")),
        ("committed", _Cache),
        *((name, ctypes.c_float) for name in ("floor", "mass")),
    )


@probe_once
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where there is no compiler, or what it makes does not run. A second, once a machine."""
    try:
        key = _digest("\0".join((*(source.read_text() for source in SOURCES), *FLAGS, instructions())).encode())
        folder = cache_folder() / "native"
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    kept = sorted(folder.glob(f"{key}-*.so")) if _ours(folder) else []
    for place in kept:
        with suppress(OSError):  # a folder of that name
            whole = _ours(place) and place.stem.endswith(f"-{_digest(place.read_bytes())}")
            if whole and (found := _loaded(place)) is not None:
                return found
    for compiler in filter(None, map(shutil.which, ("cc", "gcc", "clang"))):
        with TemporaryDirectory(prefix="eventspec-") as own, suppress(OSError, subprocess.SubprocessError):
            made = Path(own) / f"{key}.so"
            sources = [str(source) for source in SOURCES if source.suffix == ".c"]
            subprocess.run([compiler, *FLAGS, "-o", str(made), *sources, "-lm"], check=True, capture_output=True, timeout=60)
            copy = _keep(folder, key, made.read_bytes())
            for one in (made,) if copy is None else (made, copy):  # what was loaded stays so, wherever its file goes
                if (found := _loaded(one)) is not None:
                    return found
    return None


def _loaded(place: Path) -> ctypes.CDLL | None:
    """The functions of a file; None for one that cannot be run here."""
    with suppress(OSError, AttributeError, ValueError):
        found = ctypes.CDLL(str(place))
        found.grow.argtypes, found.grow.restype = [_Address] * 6, _Number
        _Number.in_dll(found, "block_size")
        return found
    return None


def _keep(folder: Path, key: str, content: bytes) -> Path | None:
    """The file of these functions for other processes, which is named by what is in it; None where there is no place."""
    place = folder / f"{key}-{_digest(content)}.so"

    def write(part: Path) -> None:
        part.touch(0o600)
        part.write_bytes(content)

    with suppress(OSError, BadInput):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _ours(folder):
            write_whole(place, write)
            return place
    return None


def _ours(place: Path) -> bool:
    """Whether a file or folder is there, is no link, and no other user may write it: what lies there is run."""
    try:
        found = place.lstat()
    except OSError:
        return False
    kind = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if not hasattr(os, "getuid"):  # where a mode says nothing
        return kind
    return kind and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


@dataclass(frozen=True)
class NativeHead:
    """Weights of a head or a small language model as the compiled functions read them, and what keeps them in memory."""

    weights: _Head
    kept: tuple[Any, ...] = field(repr=False)
    named: int
    """The largest token that it names."""

    @classmethod
    def of(cls, weights: HeadWeights) -> NativeHead | None:
        """The same head; None where it cannot be grown so: another kind of layer, precision or device, no compiler."""
        layers, heads = weights.layers, weights.heads
        ends = [weights.reduction, weights.head, weights.bias, weights.hidden_norm, weights.out_norm]
        tensors = [tensor for tensor in (*ends, *(part for layer in layers for part in layer)) if tensor is not None]
        if weights.cross is not None or any(t.dtype != torch.float32 or t.device.type != "cpu" for t in tensors):
            return None
        if sum(map(torch.numel, tensors)) > MOST_WEIGHTS or library() is None:
            return None
        kept, first = list[Any](), layers[0]
        table = (_Layer * len(layers))(
            *(
                _Layer(
                    *(_matrix(part, kept) for part in (layer.qkv, layer.out, layer.gate_up, layer.down)),
                    *(_address(part, kept) for part in (layer.input_norm, layer.post_norm)),
                )
                for layer in layers
            )
        )
        kept.append(table)
        head_dim = first.out.shape[1] // heads
        kv_heads = (len(first.qkv) // head_dim - heads) // 2
        sizes = (len(first.post_norm), heads, kv_heads, head_dim, first.down.shape[1], int(weights.norm_residual), len(layers))
        matrices = [_matrix(matrix, kept) for matrix in (weights.reduction, weights.head)]
        vectors = [_address(vector, kept) for vector in (weights.bias, weights.hidden_norm, weights.out_norm, weights.ids)]
        found = _Head(*sizes, weights.eps, *matrices, ctypes.addressof(table), *vectors)
        named = len(weights.head) - 1 if weights.ids is None else int(weights.ids.max())
        return cls(found, tuple(kept), named)

    def with_reduction(self, reduction: Tensor, bias: Tensor | None) -> NativeHead:
        """As `DraftKernel.with_reduction`."""
        kept, twin = list[Any](self.kept), _Head.from_buffer_copy(self.weights)
        twin.reduction, twin.bias = _matrix(reduction, kept), _address(bias, kept)
        return NativeHead(twin, tuple(kept), self.named)

    def with_down(self, down: Tensor) -> NativeHead:
        """As `DraftKernel.with_down`."""
        kept, twin = list[Any](self.kept), _Head.from_buffer_copy(self.weights)
        layer = _Layer.from_buffer_copy(_Layer.from_address(self.weights.layers))
        layer.down, twin.layers = _matrix(down, kept), ctypes.addressof(layer)
        return NativeHead(twin, (*kept, layer), self.named)

    def grow(self, hidden: Tensor, growth: TreeGrowth, tables: list[Tensor], cache: KVCache) -> tuple[Tensor, Tensor, Tensor]:
        """As `DraftKernel.grow`."""
        functions, kept = library(), list[Any]()
        assert functions is not None, "or there was no such head"
        width, levels = growth.width, growth.levels
        committed, given = self._committed(cache), _fp32(tables, kept)
        (root,) = _fp32([hidden], kept)
        if self.named >= len(tables[0]) or (growth.shape and width > self.weights.head.outputs):
            raise ValueError(f"the head names token {self.named} of {len(tables[0])}, or a tree has more choices than it")
        rows, all_rows, room, shape = width, width * levels, width * (1 + (levels - 1) * width), None
        if growth.shape:
            recorded, expanded = growth.shape[: 2 * levels : 2], growth.shape[1 : 2 * levels : 2]
            rows, all_rows, room = max(1, *map(len, expanded)), sum(map(len, expanded)), sum(map(len, recorded))
            parts = [torch.cat((torch.tensor([len(part)]), part)) for part in growth.shape[: 2 * levels]]
            shape = _address(torch.cat(parts), kept)
        made = np.empty((2, max(1, room)), np.int64), np.empty(max(1, room), np.float32)
        numbers = (width, levels, rows, all_rows, growth.end, growth.position)
        asked = _Growth(*numbers, shape, *given, committed, growth.floor, growth.mass)
        places = (made[0][0].ctypes.data, made[0][1].ctypes.data, made[1].ctypes.data)
        count = functions.grow(ctypes.byref(self.weights), ctypes.byref(asked), root, *places)
        if count < 0:
            raise MemoryError("no memory for a draft tree")
        tokens, parents = (torch.from_numpy(row[:count]) for row in made[0])
        return tokens, parents, torch.from_numpy(made[1][:count])

    def _committed(self, cache: KVCache) -> _Cache:
        """A cache as the functions read it."""
        if len(cache.keys) != self.weights.depth:
            raise ValueError(f"a cache of {len(cache.keys)} layers for a model of {self.weights.depth}")
        if cache.keys[0].shape != (sizes := (self.weights.kv_heads, cache.capacity, self.weights.head_dim)):
            raise ValueError(f"a cache of {list(cache.keys[0].shape)} for {list(sizes)}")
        kept = list[Any]()
        keys, values = _fp32([cache.keys[0], cache.values[0]], kept)
        assert kept[0].data_ptr() == cache.keys[0].data_ptr(), "a cache is never copied"
        apart = (cache.keys[-1].data_ptr() - keys) // (4 * max(1, len(cache.keys) - 1))
        return _Cache(cache.length, cache.capacity, keys, values, apart)


def _fp32(tensors: Sequence[Tensor], kept: list[Any]) -> list[int]:
    """As `_address`, of tensors that may have been moved or cast since a model was made; ValueError for one that was."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"machine code needs fp32 on a CPU, not {tensor.dtype} on {tensor.device}")
    return [_address(tensor, kept) or 0 for tensor in tensors]


def _address(tensor: Tensor | None, kept: list[Any]) -> int | None:
    """Where a tensor's numbers lie after each other, for as long as `kept` lives; None: there are none."""
    if tensor is None or not tensor.numel():
        return None
    assert tensor.device.type == "cpu"
    whole = tensor.detach().contiguous()
    kept.append(whole)
    return whole.data_ptr()


def _matrix(weight: Tensor | None, kept: list[Any]) -> _Matrix:
    """A weight [O, I] in eight bits, as many outputs side by side as the functions take at once, and what each output is to be
    multiplied by."""
    functions = library()
    if weight is None or functions is None:
        return _Matrix()
    outputs, inputs = weight.shape
    side = _Number.in_dll(functions, "block_size").value
    whole = torch.nn.functional.pad(weight.detach(), (0, 0, 0, -outputs % side))
    scales = whole.abs().amax(1).clamp_min(1e-12) / 127
    values = (whole / scales[:, None]).round().to(torch.int8).reshape(-1, side, inputs).transpose(1, 2)
    return _Matrix(_address(values, kept), _address(scales, kept), inputs, outputs)
