"""What this machine is, and where what can be made again on it is kept."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SPREAD = "auto"
"""In the place of a device: a target that transformers opens is spread over all CUDA devices (accelerate's device map)."""
NO_SPREAD = f"only the target is spread over devices: the drafter's device is one, {SPREAD} is none"
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla", "lazy", "meta")
"""Kinds of devices that torch may have."""


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eventspec"


def processor() -> str:
    """The processor's name, and its family, model and instruction set where the system reports them: clouds give one name to
    several kinds."""
    import torch  # the command line asks for the folder alone, and begins sooner without

    fields = _first_core()
    known = [f"{name} {fields[field]}" for name, field in (("family", "cpu family"), ("model", "model")) if field in fields]
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({' '.join(known)}, {torch.backends.cpu.get_cpu_capability()})" if known else name


def instructions() -> str:
    """What the processor can do, as the system reports it: code that was compiled for one machine may not run on another."""
    fields = _first_core()
    features = fields.get("flags") or fields.get("Features") or f"{platform.processor()} {platform.node()}"
    return f"{platform.machine()} {features}"


def _first_core() -> dict[str, str]:
    """What the system reports of the first core, by name; empty where it reports nothing."""
    fields = dict[str, str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return fields


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has inside many containers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def unusable(device: str) -> str | None:
    """Why torch, or the one that is installed, cannot have a device; None where only torch itself tells."""
    kind = "cuda" if device == SPREAD else device.partition(":")[0]
    if kind not in DEVICES:
        return "there is no such kind of device"
    if kind == "meta":
        return "it has shapes and no numbers"
    spec = importlib.util.find_spec("torch") if kind == "cuda" else None
    if spec is None or spec.origin is None:
        return None
    about = Path(spec.origin).with_name("version.py")
    built = r"^(cuda|hip)\b[^=]*= *['\"]"  # AMD's cards are called cuda too
    if about.is_file() and not re.search(built, about.read_text(encoding="utf-8"), re.MULTILINE):
        return "the torch that is installed is built without CUDA"
    return None


def arrived(tensor: Tensor) -> None:
    """Wait until the GPU of a tensor has done all that this thread asked it for: before that a clock only knows when it was
    asked. Nothing for a CPU."""
    if tensor.is_cuda:
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()
