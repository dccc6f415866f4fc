"""Where costs are kept: in a file, until pair or machine change, or rounds contradict it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eventspec.core import BadInput
from eventspec.costs.fit import Measured, Pair, warm_up
from eventspec.costs.rounds import LearntCosts
from eventspec.engine.method import Method
from eventspec.engine.policy import GUESSED, Costs
from eventspec.files import parsed, write_text
from eventspec.machine import cache_folder, processor, usable_cores
from eventspec.nn.cpu.native import library

QUICK = 4
"""Repeats of a measurement when a pair is loaded: costs need not be known better than policies can tell apart."""


def fitted(pair: Pair, path: Path | None = None) -> Pair:
    """The pair with policies of this machine's costs: those on file, or measured now and filed. A file that cannot be read is
    measured again, one that cannot be written is not missed; one that rounds contradict is removed, for the next process to
    measure. `path`: the file, by default the pair's `store_of`."""
    path = path or store_of(pair)
    known = read(path)
    if measured := not known.keys() >= pair.methods.keys():
        pair = warm_up(pair, repeats=QUICK)
        with suppress(BadInput, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = {name: method.policy.measured for name, method in pair.methods.items()}
            write_text(path, json.dumps(rows, indent=1) + "\n")
    return learning(pair if measured else with_costs(pair, known), path, measured)


def learning(pair: Pair, place: Path, warm: bool) -> Pair:
    """The pair with methods that learn what their rounds take; the file of costs at `place`, its `store_of`, is removed when
    they contradict it. Methods that choose go by what they learnt on this machine before, and keep it in a file of that name;
    `warm`: methods ran in this process already."""
    path, made = cache_folder() / "learnt" / place.name, dict[str, Method]()
    for name, method in pair.methods.items():
        choice = None if method.choice is None else method.choice.remembering(path, warm)
        made[name] = replace(method, learnt=LearntCosts(partial(_remove, place)), choice=choice)
    return pair.with_methods(made)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def with_costs(pair: Pair, known: Mapping[str, Costs]) -> Pair:
    """The pair with these costs in the policies of its methods; one that was not measured keeps its own."""
    methods = pair.methods
    return pair.with_methods(
        {n: replace(methods[n], policy=methods[n].policy.costing_as(own)) for n, own in known.items() if n in methods}
    )


def read(path: Path) -> dict[str, Costs]:
    """The costs of a file by method, none where they cannot be read."""
    names = Costs().measured.keys() - set(GUESSED)
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            return {}
        rows = parsed(path.read_bytes()).items()
        return {method: Costs(**{name: row[name] for name in names}).checked() for method, row in rows}
    except (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def store_of(pair: Measured, drafter: Path | None = None, how: object = None) -> Path:
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
    """What costs depend on, as far as the system reports it."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "system": platform.platform(),
        "native": library() is not None,
    }
