"""What a pair costs on the machine at hand: measured once, when it is loaded first, and kept in a file until pair or machine
change."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.engine.learnt import LearntCosts
from eventspec.engine.policy import COSTS, DraftPolicy
from eventspec.files import write_text
from eventspec.models.loading import LoadOptions
from eventspec.pairs.auto import Chooser
from eventspec.pairs.methods import AUTO
from eventspec.pairs.pair import Pair
from eventspec.pairs.warming import warm_up

QUICK = 4
"""Repeats of a measurement when a pair is loaded: costs need not be known better than policies can tell apart."""
FAR = 0.2
"""A share of a cost by which it may be off on file."""
SELDOM = 5.0
"""Seconds between two writings."""


@dataclass(frozen=True)
class MethodCosts:
    """The fields of a `DraftPolicy` that are measured."""

    verify_cost: float
    node_cost: float
    level_cost: float
    step_seconds: float
    beside: bool
    tail: int

    @classmethod
    def read(cls, row: Any) -> MethodCosts:
        """Of a file's row; ValueError, KeyError or TypeError for what is none."""
        verify, node, level, step = (float(row[name]) for name in COSTS)
        found = cls(verify, node, level, step, bool(row["beside"]), int(row["tail"]))
        if not all(math.isfinite(value) and value >= 0 for value in asdict(found).values()) or not found.step_seconds:
            raise ValueError("a cost is no number")
        return found

    @classmethod
    def of(cls, policy: DraftPolicy) -> MethodCosts:
        """What a policy says."""
        return cls(**{item.name: getattr(policy, item.name) for item in fields(cls)})

    def far(self, other: MethodCosts) -> bool:
        """Whether one of the costs that go on being learnt is another one by more than `FAR`."""
        ours, theirs = asdict(self), asdict(other)
        return any(abs(ours[name] - theirs[name]) > FAR * max(ours[name], theirs[name]) for name in COSTS)


class CostsFile:
    """The costs of a pair's methods on file, which follow what is learnt once that is far from them."""

    def __init__(self, path: Path, known: Mapping[str, MethodCosts]) -> None:
        self.path, self.known, self._written, self._lock = path, dict(known), -math.inf, threading.Lock()

    def write(self) -> None:
        """Write them all. A place that cannot be written is not missed."""
        rows = {name: asdict(costs) for name, costs in self.known.items()}
        with suppress(BadInput, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(rows, indent=1) + "\n")

    def learnt(self, name: str, policy: DraftPolicy) -> None:
        """What rounds of a method say of its costs by now."""
        found = MethodCosts.of(policy)
        with self._lock:
            due = time.monotonic() - self._written > SELDOM
            if not due or (name in self.known and not found.far(self.known[name])):
                return
            self.known[name], self._written = found, time.monotonic()
            self.write()

    def followed(self, pair: Pair) -> Pair:
        """The pair with what is on file in the policies of its methods, and with what goes on learning it; a method that is not
        there keeps its own."""
        methods = dict(pair.methods)
        for name, method in pair.methods.items():
            known = self.known.get(name)
            policy = method.policy if known is None else replace(method.policy, **asdict(known))
            methods[name] = replace(method, policy=policy, learnt=LearntCosts(partial(self.learnt, name)))
        return replace(pair, methods=methods)


def fitted(pair: Pair) -> Pair:
    """The pair with policies of this machine's costs, which go on being learnt: those on file, or measured now and filed. A
    file that cannot be read is measured anew, one that cannot be written is not missed."""
    path = place_of(pair)
    known = read(path)
    measured = known is None
    if known is None:
        pair = warm_up(pair, repeats=QUICK)
        known = {name: MethodCosts.of(method.policy) for name, method in pair.methods.items()}
        CostsFile(path, known).write()
    return remembering(CostsFile(path, known).followed(pair), path, measured)


def guessed(pair: Pair, drafter: Path | None, how: LoadOptions) -> Pair:
    """The same for a pair of checkpoints that were loaded so, whose costs nobody measures before the first question: until
    there are some on file they are the policies' own guesses, and learnt from rounds."""
    path = place_of(pair, drafter, how)
    return remembering(CostsFile(path, read(path) or {}).followed(pair), path, warm=False)


def remembering(pair: Pair, place: Path, warm: bool) -> Pair:
    """The pair with what its method `auto` learnt on this machine before, kept from now on in a file named as its `place_of`;
    `warm`: its methods ran in this process already."""
    methods, path = dict(pair.methods), cache_folder() / "learnt" / place.name
    if AUTO in methods and isinstance(chooser := methods[AUTO].choice, Chooser):
        methods[AUTO] = replace(methods[AUTO], choice=chooser.remembering(path, warm))
    return replace(pair, methods=methods)


def read(path: Path) -> dict[str, MethodCosts] | None:
    """The costs of a file, None where there are none that can be read."""
    try:
        return {str(name): MethodCosts.read(row) for name, row in json.loads(path.read_text()).items()}
    except (OSError, ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def place_of(pair: Pair, drafter: Path | None = None, how: LoadOptions | None = None) -> Path:
    """The file of a pair, and of the checkpoint that drafts, on this machine. It is another one when a file of theirs, how they
    were loaded, the methods, the placement, the processor, the number of cores or torch is another."""
    folders = [folder for folder in (pair.folder, pair.checkpoint, drafter) if folder is not None]
    files = sorted({path for folder in folders for path in folder.rglob("*") if path.is_file()})
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    what = [stats, list(pair.methods), pair.workers.placement, machine(), how and str(how)]
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
