"""What a pair costs on the machine at hand: measured when it is loaded first, and kept in a file until pair or machine change,
or rounds contradict it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.engine.learnt import LearntCosts
from eventspec.engine.policy import DraftPolicy
from eventspec.files import write_text
from eventspec.machine import cache_folder, processor, usable_cores
from eventspec.models.loading import LoadOptions
from eventspec.nn.native import library
from eventspec.pairs.auto import Chooser
from eventspec.pairs.methods import AUTO
from eventspec.pairs.pair import Pair
from eventspec.pairs.warming import warm_up

QUICK = 4
"""Repeats of a measurement when a pair is loaded: costs need not be known better than policies can tell apart."""


@dataclass(frozen=True)
class MethodCosts:
    """The fields of a `DraftPolicy` that are measured."""

    verify_cost: float
    node_cost: float
    level_cost: float
    open_cost: float
    step_seconds: float
    beside: bool
    tail: int

    @classmethod
    def read(cls, row: Any) -> MethodCosts:
        """Of a file's row; BadInput, KeyError or TypeError for what is none."""
        found = cls(**{item.name: row[item.name] for item in fields(cls)})
        replace(DraftPolicy(), **asdict(found)).checked()
        return found


def fitted(pair: Pair) -> Pair:
    """The pair with policies of this machine's costs: those on file, or measured now and filed. A file that cannot be read is
    measured anew, one that cannot be written is not missed; one that rounds contradict is removed, for the next process to
    measure."""
    path = place_of(pair)
    known = read(path)
    measured = known is None or not known.keys() >= pair.methods.keys()
    if known is None or measured:
        pair = warm_up(pair, repeats=QUICK)
        known = {name: costs_of(pair, name) for name in pair.methods}
        with suppress(BadInput, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({name: asdict(costs) for name, costs in known.items()}, indent=1) + "\n")
    return remembering(learning(with_costs(pair, known), path), path, measured)


def learning(pair: Pair, path: Path | None = None) -> Pair:
    """The pair with methods that learn what their rounds take. The file of their costs, if there is one, is removed when rounds
    contradict it."""
    contradicted = None if path is None else partial(_remove, path)
    made = {name: replace(method, learnt=LearntCosts(contradicted)) for name, method in pair.methods.items()}
    return replace(pair, methods=made)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


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
    return MethodCosts(**{item.name: getattr(policy, item.name) for item in fields(MethodCosts)})


def read(path: Path) -> dict[str, MethodCosts] | None:
    """The costs of a file, None where there are none that can be read."""
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            return None
        return {str(name): MethodCosts.read(row) for name, row in json.loads(path.read_text()).items()}
    except (BadInput, OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def place_of(pair: Pair, drafter: Path | None = None, how: LoadOptions | None = None) -> Path:
    """The file of a pair, and of the checkpoint that drafts, on this machine. It is another one when a file of theirs, how they
    were loaded, the methods, the placement, the processor, the number of cores, torch or our own code is another."""
    folders = [folder for folder in (pair.folder, pair.checkpoint, drafter) if folder is not None]
    files = sorted({*own_code(), *(path for folder in folders for path in folder.rglob("*") if path.is_file())})
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    what = [stats, list(pair.methods), pair.workers.placement, machine(), how and str(how)]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]
    return cache_folder() / "costs" / f"{digest}.json"


def own_code() -> set[Path]:
    """What a step costs hangs on our own modules too."""
    return {path for kind in ("*.py", "*.c", "*.h") for path in Path(__file__).parents[1].rglob(kind)}


def machine() -> dict[str, Any]:
    """What costs depend on, as far as the system tells."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "gpus": gpus,
        "torch": torch.__version__,
        "system": platform.platform(),
        "native": library() is not None,
    }
