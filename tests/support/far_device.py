"""Accelerators without hardware: `lazy:0` and `lazy:1`, names that torch knows and has no kernels for, compute on the CPU and
refuse what GPUs refuse: an operation on tensors of two devices, and `numpy()`.

They also refuse what GPUs would do in silence: copy numbers of a model from one to the other, straight or by way of the host,
anywhere but in `crossing`. Models are loaded onto them by name, like onto any other device.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from eventspec.lanes.worker import LaneThread, Worker
from eventspec.models.prompt import crossing

TARGET, DRAFTER = "lazy:0", "lazy:1"
HOST = torch.device("cpu")
_INDEXED = ("aten.index.Tensor", "aten.index_put_.default", "aten._index_put_impl_.default")
"""Operations that take places on the host too."""


class SilentCrossing(RuntimeError):
    """A tensor of one device met one of the other, or left its device unseen."""


class FarTensor(torch.Tensor):
    """Says that it lies on an accelerator; its numbers are in `near`."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor, device: torch.device) -> FarTensor:
        how = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        with torch.inference_mode(False):  # a view of a weight must not be an inference tensor where the weight is none
            made: FarTensor = torch.Tensor._make_wrapper_subclass(cls, near.size(), device=device, **how)
        made.near = near
        return made

    def __repr__(self, **how: Any) -> str:
        return f"FarTensor({self.near}, {self.device})"

    def tolist(self) -> Any:
        """Numbers for the host: what drafts and tokens are."""
        return self.near.tolist()

    def numpy(self, force: bool = False) -> Any:
        """What the rule looks at, where it asks for a copy."""
        if not force:
            raise TypeError(f"a tensor of {self.device} has no numpy(): copy it to the host first")
        return self.near.numpy(force=True)

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation, on the CPU, whatever its tensors say. What it gives lies where they do, or on the device that is named."""
    name, mutates, leaves = str(func), func._schema.is_mutable, tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    named = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    if named in (None, HOST) and not any(isinstance(tensor, FarTensor) for tensor in tensors):
        return func(*args, **kwargs)
    goal = named or next((tensor.device for tensor in tensors if isinstance(tensor, FarTensor)), HOST)
    if name.startswith(("aten._to_copy.", "aten.copy_.", "aten.to.")):
        if name == "aten.to.other" or (named is None and not mutates):
            goal = tensors[-1].device
        _check_copy(tensors[-1] if mutates else tensors[0], tensors[0].device if mutates else goal)
    elif name in _INDEXED and isinstance(args[0], FarTensor):
        _check_together(name, [tensor for tensor in tensors if isinstance(tensor, FarTensor)])
    else:
        _check_together(name, [tensor for tensor in tensors if tensor.dim() or isinstance(tensor, FarTensor)])

    def on_host(leaf: Any) -> Any:
        return leaf.near if isinstance(leaf, FarTensor) else HOST if isinstance(leaf, torch.device) else leaf

    found = func(*tree_map(on_host, args), **tree_map(on_host, kwargs))
    if mutates:
        return kwargs.get("out", args[0])
    return (
        found
        if goal == HOST
        else tree_map(lambda leaf: FarTensor(leaf, goal) if isinstance(leaf, torch.Tensor) else leaf, found)
    )


def _check_together(name: str, tensors: list[torch.Tensor]) -> None:
    if len(devices := {str(tensor.device) for tensor in tensors}) > 1:
        raise SilentCrossing(f"{name} on tensors of {' and '.join(sorted(devices))}")


def _check_copy(source: torch.Tensor, goal: torch.device) -> None:
    """Rows and features [T, D] go from device to device in `crossing` only. Tokens, places and masks are whole numbers, what
    drafts are worth is one number a token, pictures have more axes, and weights are loaded by no lane."""
    if source.device == goal or source.dim() < 2 or not source.dtype.is_floating_point:
        return
    if source.device == HOST and (source.dim() > 2 or not isinstance(threading.current_thread(), LaneThread)):
        return
    frame = sys._getframe()
    while frame is not None and frame.f_code is not crossing.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        raise SilentCrossing(f"{list(source.shape)} numbers went from {source.device} to {goal}")


class _Making(TorchDispatchMode):
    """Tensors that are made on a device by its name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import torch's compiler, for three seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _FromLists(TorchFunctionMode):
    """`torch.tensor`, and lists of places, ask a device's own kernels for memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if func is torch.tensor else None
        if func is torch.tensor:
            args = tree_map(lambda leaf: leaf.near if isinstance(leaf, FarTensor) else leaf, args)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]))
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


@contextmanager
def far_devices() -> Iterator[None]:
    """For the calling thread."""
    with _Making(), _FromLists():
        yield


def on_lanes(patch: pytest.MonkeyPatch) -> None:
    """For the threads of lanes. What torch does not know of these devices is answered for it."""
    work = Worker._do
    patch.setattr(torch, "is_autocast_enabled", lambda kind: False)

    def do(self: Worker, *how: Any) -> Any:
        with far_devices():
            return work(self, *how)

    patch.setattr(Worker, "_do", do)
