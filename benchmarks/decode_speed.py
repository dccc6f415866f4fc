"""Million events a second of every reader, warm, beside the library for the same format where there is one, as JSON.

python benchmarks/decode_speed.py [--recordings FOLDER] [--events 400000] [--repeats 9]

Own reader and library are run in turns, so that both see the same machine; the figure is the best of the repeats. Files are
real recordings where a folder is given and has one, else miniature ones of our own encoders. A library's figure is its plain
decoding of the events; ours includes the checks of every event. `ratio` is our time in all over the library's, of the same
turns: on a machine with other work only this says anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import encoders
import h5py
import numpy as np

from eventspec.events.formats import read_events

REAL = {
    "evt2": "prophesee/evt2_sparklers_gen3.raw",
    "evt3": "prophesee/evt3_sample_small.raw",
    "aedat4": "aedat4/davis346_traffic.aedat4",
    "eventgpt-npy": "eventgpt_npy/eventgpt_sample1.npy",
}
GOALS = {"evt3": 25, "evt2": 15, "dat": 40, "aedat4": 5, "dsec-h5": 40}


def evt3_library(path: Path) -> int:
    import evt3

    return len(evt3.decode_file(str(path)).t)


def aedat_library(path: Path) -> int:
    import aedat

    parts = [packet["events"] for packet in aedat.Decoder(str(path)) if "events" in packet]
    columns = [np.concatenate([part[name] for part in parts]) for name in ("t", "x", "y", "on")]
    return len(columns[0])


def plain_h5py(path: Path) -> int:
    with h5py.File(path) as file:
        columns = [file[f"events/{name}"][...] for name in ("x", "y", "p")]
        times = file["events/t"][...].astype(np.int64) + file["t_offset"][()]
    return min(len(times), len(columns[0]))


LIBRARIES: dict[str, tuple[str, Callable[[Path], int]]] = {
    "evt3": ("evt3", evt3_library),
    "aedat4": ("aedat", aedat_library),
    "dsec-h5": ("h5py", plain_h5py),
}


def own(path: Path) -> int:
    return len(read_events(path))


def files(folder: Path, recordings: Path | None, events: int) -> dict[str, Path]:
    """Format -> the file that is read."""
    found = {}
    for name in encoders.ENCODERS:
        real = recordings / REAL[name] if recordings is not None and name in REAL else None
        if real is not None and real.exists():
            found[name] = real
        elif name == "dsec-h5":
            path = folder / name
            path.write_bytes(encoders.dsec(**encoders.street(5 * events, 640, 480), **packing(), chunks=(1 << 16,)))
            found[name] = path
        else:
            found[name] = encoders.write(folder / name, name, events)
    if recordings is not None and (recordings / REAL["aedat4"]).exists():
        found["aedat4"] = recordings / REAL["aedat4"]
    return found


def packing() -> dict[str, Any]:
    """Blosc with zstd, as DSEC has it, where hdf5plugin is installed; else deflate."""
    if importlib.util.find_spec("hdf5plugin") is None:
        return {"compression": "gzip", "shuffle": True}
    import hdf5plugin

    return dict(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))


def measured(readers: dict[str, Callable[[Path], int]], path: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds of each reader, turn by turn."""
    taken: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(repeats + 1):  # the first one warms caches and imports
        names = list(readers)[:: 1 if turn % 2 else -1]
        for name in names:
            began = time.perf_counter()
            readers[name](path)
            if turn:
                taken[name].append(time.perf_counter() - began)
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recordings", type=Path)
    options.add_argument("--events", type=int, default=400_000)
    options.add_argument("--repeats", type=int, default=9)
    given = options.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})  # one core, whatever a library would like
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(Path(folder), given.recordings, given.events).items():
            readers = {"own": own}
            if name in LIBRARIES and importlib.util.find_spec(LIBRARIES[name][0]) is not None:
                readers[LIBRARIES[name][0]] = LIBRARIES[name][1]
            real = path.parent != Path(folder)
            count, taken = own(path), measured(readers, path, given.repeats)
            speeds = {reader: round(count / min(seconds) / 1e6, 2) for reader, seconds in taken.items()}
            ratio = [round(sum(taken["own"]) / sum(taken[other]), 3) for other in taken if other != "own"]
            row = {"events": count, "real": real, "mev_per_s": speeds, "ratio": ratio[0] if ratio else None}
            rows[name] = {**row, "goal": GOALS.get(name)}
    where = {"processor": platform.processor() or platform.machine(), "load": round(os.getloadavg()[0], 2)}
    print(json.dumps({"environment": where, "repeats": given.repeats, "formats": rows}, indent=1))


if __name__ == "__main__":
    main()
