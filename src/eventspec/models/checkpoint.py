"""The tensors of a checkpoint folder: safetensors or torch's .bin, whole or sharded, read without trusting them. Files are
mapped: loading needs memory for converted and stacked tensors only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from eventspec.core import BadCheckpoint
from eventspec.models.shards import opened, shards
from eventspec.models.weights import Sources

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Model = TypeVar("Model", bound=nn.Module)


class _NoFirstValues(TorchFunctionMode):
    """Skips torch.nn.init: on the meta device its random numbers mean nothing, and asking for them imports torch's compiler,
    which takes a second or two."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules made here have shapes and no numbers."""
    with torch.device("meta"), _NoFirstValues():
        yield


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: its name there, shape and dtype (None: none that a weight may have), and `read`, which gives it as it
    is stored, mapped from the file where the format allows it."""

    path: Path
    name: str
    shape: list[int]
    dtype: torch.dtype | None
    read: Callable[[], Tensor]


def _of_safetensors(path: Path) -> Iterator[Stored]:
    """A .safetensors file; the library checks the header (sizes, overlaps, holes) and maps the data privately."""
    file = opened(path, "pt")
    parts = {name: file.get_slice(name) for name in list(file.keys())}
    for name, part in parts.items():
        yield Stored(path, name, part.get_shape(), DTYPES.get(part.get_dtype()), partial(file.get_tensor, name))


def _of_bin(path: Path) -> Iterator[Stored]:
    """A file of torch.save, read with weights_only=True: nothing in it is executed."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"PK"  # the older format cannot be mapped
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch finds odd is refused below, or is read
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a damaged pickle or zip raises nearly anything
        why = str(error).splitlines()[0].partition(". ")[0] if str(error) else type(error).__name__
        if "Unsupported global" in str(error):  # torch's own advice is to run it
            raise BadCheckpoint(
                f"{path} holds more than tensors, and is not opened: fetch the weights as safetensors"
            ) from None
        raise BadCheckpoint(f"{path} cannot be read as torch weights ({why}): fetch it again, best as safetensors") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise BadCheckpoint(f"{path} is no table of tensors: give the file that save_pretrained wrote")
    for name, tensor in found.items():
        dtype = tensor.dtype if tensor.dtype in DTYPES.values() else None
        yield Stored(path, name, list(tensor.shape), dtype, partial(found.__getitem__, name))


class Checkpoint:
    """All tensors of a folder under one layout's names; `rename` turns every variant of a name into that layout's."""

    def __init__(self, folder: Path, rename: Callable[[str], str] = str) -> None:
        self.paths = shards(folder)
        self.where = self.paths[0] if len(self.paths) == 1 else folder
        self.at: dict[str, Stored] = {}
        for path in self.paths:
            for stored in _of_bin(path) if path.suffix == ".bin" else _of_safetensors(path):
                name = rename(stored.name)
                if name in self.at:
                    raise BadCheckpoint(f"{path}: tensor {stored.name} is there twice: the folder mixes two checkpoints")
                self.at[name] = stored

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor; BadCheckpoint for those of quantised checkpoints."""
        stored = self.at[name]
        if stored.dtype is None:
            raise BadCheckpoint(
                f"{stored.path}: tensor {stored.name} is not of a floating dtype: quantised checkpoints cannot be read, "
                "give the one in float16, bfloat16 or float32"
            )
        return stored.dtype

    def integers(self, name: str) -> Tensor:
        """A table of whole numbers, int64; BadCheckpoint where it holds others."""
        stored = self.at[name]
        found = stored.read()
        if found.dtype not in WHOLE:
            kind = str(found.dtype).removeprefix("torch.")
            raise BadCheckpoint(f"{stored.path}: tensor {stored.name} is {kind}, wanted whole numbers: fetch it again")
        return found.to(torch.int64)

    @property
    def numbers(self) -> dict[str, Any]:
        """How many there are in all tensors, `parameters`, and which `dtypes` occur."""
        dtypes = sorted({str(stored.dtype).removeprefix("torch.") for stored in self.at.values()})
        return {"parameters": sum(math.prod(stored.shape) for stored in self.at.values()), "dtypes": dtypes}

    def check(self, module: nn.Module, sources: Sources, tolerated: Callable[[str], bool], assumed: Iterable[str] = ()) -> None:
        """BadCheckpoint unless these are the module's tensors, all of them and, but for the `tolerated`, no others.

        `assumed` are fields that the config left to defaults: named where a shape differs, because they may be why.
        """
        wanted = {name for parts in sources.values() for name, _ in parts}
        if missing := sorted(wanted - self.at.keys()):
            raise BadCheckpoint(f"{self.where}: {_some(missing)} missing: the checkpoint is incomplete, fetch it again")
        if left := sorted(name for name in self.at.keys() - wanted if not tolerated(name)):
            there = [self.at[name].name for name in left]
            raise BadCheckpoint(f"{self.where}: {_some(there)} unknown: this is another architecture or a variant of it")
        why = f" ({', '.join(assumed)} not in config.json, so transformers' default)" if assumed else ""
        own = dict(module.named_parameters())
        for name, parts in sources.items():
            for part, rows in parts:
                stored, asked = self.at[part], [rows or len(own[name]), *own[name].shape[1:]]
                if stored.shape != asked:
                    tensor = f"{stored.path}: tensor {stored.name} is {stored.shape}"
                    raise BadCheckpoint(f"{tensor}, config.json asks for {asked}{why}")
                self.dtype(part)

    def check_values(self, names: Iterable[str]) -> None:
        """BadCheckpoint where one of these tensors holds NaN or infinity, as it is stored."""
        check_finite(self.where, ((self.at[name].name, self.at[name].read()) for name in names))

    def fill(self, module: nn.Module, sources: Sources, dtype: torch.dtype) -> None:
        """Put the tensors into a module of the meta device, after `check`, wherever they belong (a head may be tied to the
        embedding); one that needs no conversion stays in its file. BadCheckpoint for what is no number in this dtype."""
        places = list(module.named_parameters(remove_duplicate=False))
        for name, parts in sources.items():
            stored = [self.at[part].read() for part, _ in parts]
            if len(stored) == 1:
                tensor = stored[0].to(dtype).contiguous()
            else:
                tensor = torch.empty(module.get_parameter(name).shape, dtype=dtype)
                for place, part in zip(tensor.split([rows for _, rows in parts]), stored, strict=True):
                    place.copy_(part)
            check_finite(self.where, [(self.at[parts[0][0]].name, tensor)])
            empty, filled = module.get_parameter(name), nn.Parameter(tensor, requires_grad=False)
            for owner, _, last in (own.rpartition(".") for own, parameter in places if parameter is empty):
                setattr(module.get_submodule(owner), last, filled)


def check_finite(where: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """BadCheckpoint for NaN and infinity among a model's numbers: with one of them it says the same whatever it is asked."""
    for name, tensor in tensors:
        if tensor.dtype in DTYPES.values() and tensor.numel():
            extremes = torch.stack(tensor.detach().aminmax())  # needs no memory, and is NaN where there is one
            if not bool(extremes.isfinite().all()):
                kind = str(tensor.dtype).removeprefix("torch.")
                other = ", or choose dtype bfloat16 or float32" if tensor.dtype == torch.float16 else ""
                raise BadCheckpoint(f"{where}: tensor {name} holds NaN or infinity in {kind}: fetch or train it again{other}")


@dataclass(frozen=True)
class Opened(Generic[Model]):
    """A model of the meta device, and where its checked weights lie, those of its language model first: none is read yet."""

    model: Model
    parts: list[tuple[Checkpoint, Sources]]

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder's own."""
        return self.parts[0][0]

    def check_values(self) -> None:
        """As `Checkpoint.check_values`, of all parts."""
        for checkpoint, sources in self.parts:
            checkpoint.check_values(name for parts in sources.values() for name, _ in parts)

    def loaded(self, dtype: torch.dtype | None, device: str) -> Model:
        """The model with its weights, ready for use; dtype None keeps the file's."""
        kept = dtype or self.checkpoint.dtype(self.parts[0][1]["language.embed.weight"][0][0])
        for checkpoint, sources in self.parts:
            checkpoint.fill(self.model, sources, kept)
        return self.model.to(device).requires_grad_(False).eval()


def _some(names: list[str]) -> str:
    """`tensor a is`, or the first of several and how many there are."""
    if len(names) == 1:
        return f"tensor {names[0]} is"
    return f"tensors {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({len(names)} in all) are"
