"""What a pair costs on the machine at hand: measured once, when it is loaded first, and kept in a file until pair or machine
change."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.files import write_text
from eventspec.pairs.auto import Chooser
from eventspec.pairs.methods import AUTO
from eventspec.pairs.pair import Pair
from eventspec.pairs.warming import warm_up

QUICK = 4
"""Repeats of a measurement when a pair is loaded: costs need not be known better than policies can tell apart."""


@dataclass(frozen=True)
class MethodCosts:
    """The fields of a `DraftPolicy` that are measured."""

    node_cost: float
    level_cost: float
    step_seconds: float
    beside: bool
    tail: int

    @classmethod
    def read(cls, row: Any) -> MethodCosts:
        """Of a file's row; ValueError, KeyError or TypeError for what is none."""
        node, level, step = (float(row[name]) for name in ("node_cost", "level_cost", "step_seconds"))
        found = cls(node, level, step, bool(row["beside"]), int(row["tail"]))
        if not all(math.isfinite(value) and value >= 0 for value in asdict(found).values()) or not found.step_seconds:
            raise ValueError("a cost is no number")
        return found


def fitted(pair: Pair) -> Pair:
    """The pair with policies of this machine's costs: those on file, or measured now and filed. A file that cannot be read is
    measured anew, one that cannot be written is not missed."""
    path = place_of(pair)
    known = read(path)
    measured = known is None
    if known is None:
        pair = warm_up(pair, repeats=QUICK)
        known = {name: costs_of(pair, name) for name in pair.methods}
        with suppress(BadInput, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({name: asdict(costs) for name, costs in known.items()}, indent=1) + "\n")
    return remembering(with_costs(pair, known), path, measured)


def remembering(pair: Pair, place: Path, warm: bool) -> Pair:
    """The pair with what its method `auto` learnt on this machine before, kept from now on in a file named as its `place_of`;
    `warm`: its methods ran in this process already."""
    methods, path = dict(pair.methods), cache_folder() / "learnt" / place.name
    if AUTO in methods and isinstance(chooser := methods[AUTO].choice, Chooser):
        methods[AUTO] = replace(methods[AUTO], choice=chooser.remembering(path, warm))
    return replace(pair, methods=methods)


def with_costs(pair: Pair, known: Mapping[str, MethodCosts]) -> Pair:
    """The pair with these costs in the policies of its methods; one that was not measured keeps its own."""
    methods = dict(pair.methods)
    for name, costs in known.items():
        if name in methods:
            methods[name] = replace(methods[name], policy=replace(methods[name].policy, **asdict(costs)))
    return replace(pair, methods=methods)


def costs_of(pair: Pair, method: str) -> MethodCosts:
    """What a method's policy says."""
    policy = pair.method(method).policy
    return MethodCosts(policy.node_cost, policy.level_cost, policy.step_seconds, policy.beside, policy.tail)


def read(path: Path) -> dict[str, MethodCosts] | None:
    """The costs of a file, None where there are none that can be read."""
    try:
        return {str(name): MethodCosts.read(row) for name, row in json.loads(path.read_text()).items()}
    except (OSError, ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def place_of(pair: Pair, drafter: Path | None = None) -> Path:
    """The file of a pair, and of the checkpoint that drafts, on this machine. It is another one when a file of theirs, the
    methods, the placement, the processor, the number of cores or torch is another."""
    folders = [folder for folder in (pair.folder, pair.checkpoint, drafter) if folder is not None]
    files = sorted({path for folder in folders for path in folder.rglob("*") if path.is_file()})
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    what = [stats, list(pair.methods), pair.workers.placement, machine()]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]
    return cache_folder() / "costs" / f"{digest}.json"


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eventspec"


def machine() -> dict[str, Any]:
    """What costs depend on, as far as the system tells."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"processor": processor(), "cores": cores, "gpus": gpus, "torch": torch.__version__, "system": platform.platform()}


def processor() -> str:
    """The processor's name, and its family, model and instruction set where the system tells: clouds give several kinds one
    name."""
    fields = dict[str, str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    known = [f"{name} {fields[field]}" for name, field in (("family", "cpu family"), ("model", "model")) if field in fields]
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({' '.join(known)}, {torch.backends.cpu.get_cpu_capability()})" if known else name
