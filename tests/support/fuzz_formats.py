"""Feeds damaged event files to the readers: every case must be read or refused in one line, quickly and in little memory.

python tests/support/fuzz_formats.py --cases 20000 [--recordings FOLDER] [--seed 1] [--only h5]

Prints one JSON object; the exit code is 1 when there was a fault.

A case is the miniature file of one format, or a real recording, with bytes changed, cut, repeated or moved; its number and
the seed say exactly which. The cases run in a process of their own, so that one that ends the process is counted and named.
Faults: anything that a file makes run (a process, a pickled name, a connection), an exception other than BadInput, a refusal
that is not one line with the file's name, a crash, more than `LONGEST_S`, or a peak of memory above 20 times the larger of
the file and the events it really holds.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import encoders
from memory import peak_bytes

from eventspec.core import BadInput, Window
from eventspec.events.formats import open_events
from eventspec.events.stream import Monotonic

LONGEST_S = 20
SLACK = 48 << 20  # bytes: a block's working memory (EVT3 blocks of full vectors need the most), imports, HDF5's caches
EVENT_BYTES = 13
LARGEST_SEED = 1 << 20  # of a real recording only the beginning is used
ADDRESS_SPACE = 4 << 30
SIZES = (None, None, None, None, None, (640, 480), (1280, 720), (65536, 65536))
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect")
TOKENS = (
    b"\n",
    b"% ",
    b",",
    b"-1",
    b"nan",
    b"1e400",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"9" * 30,
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
)


def seeds(recordings: Path | None, only: str = "") -> list[tuple[str, bytes]]:
    """(name, bytes) of what is to be damaged; `only` those whose name contains it."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            (f"{name} {events}", encoders.write(Path(folder) / "e", name, events).read_bytes())
            for name in encoders.ENCODERS
            for events in (40, 900)
        ]
    if recordings is not None:
        real = (
            path
            for path in sorted(recordings.rglob("*"))
            if path.is_file() and path.suffix in (".raw", ".dat", ".npy", ".bin", ".aedat4")
        )
        found += [(path.name, path.read_bytes()[:LARGEST_SEED]) for path in real]
    return [seed for seed in found if only in seed[0]]


def damaged(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """The bytes with one to eight things done to them, most of them near the beginning, where headers are."""
    work = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        end = max(1, min(len(work), rng.choice((64, 512, 4096, len(work) or 1))))
        place = rng.randrange(end)
        length = rng.choice((1, 1, 2, 4, 8, 64, 1024))
        match rng.randrange(9):
            case 0 | 1:
                work[place : place + 1] = bytes((rng.randrange(256),))
            case 2:
                work[place : place + 1] = bytes(((work[place] if work else 0) ^ 1 << rng.randrange(8),))
            case 3:
                work[place : place + length] = rng.randbytes(length)
            case 4:
                del work[place : place + length]
            case 5:
                work[place:place] = work[place : place + length]
            case 6:
                work[place : place + length] = rng.choice(TOKENS)
            case 7:
                start = rng.randrange(len(other) or 1)
                work[place : place + length] = other[start : start + length]
            case _:
                del work[rng.randrange(len(work) or 1) :]
    return bytes(work)


def examine(path: Path, rng: random.Random) -> str:
    """Open the file and use everything that it gives; "read" or "refused". AssertionError for a refusal of the wrong form."""
    try:
        found = open_events(path, rng.choice(SIZES), rng.choice(get_args(Monotonic)))
        stream = found.events
        if stream is None:
            return "read"
        span = stream.span
        count = sum(len(block) for block in stream.blocks())
        assert count == len(stream), f"{count} events in blocks, {len(stream)} in all"
        if span is not None:
            part = stream.slice(Window(span.start_us, span.start_us + max(1, span.duration_us // 3)))
            assert len(part) <= count
            assert part.x.max(initial=0) < stream.width
        return "read"
    except BadInput as error:
        assert "\n" not in error.args[0], f"more than one line: {error}"  # what is shown has one anyhow
        assert str(path) in str(error), f"no file name: {error}"
        return "refused"


# ------------------------------------------------------------------------------------------------------------------- worker
def run_cases(first: int, last: int, seed: int, files: list[tuple[str, bytes]]) -> None:
    """Cases [first, last): a JSON line before each one, and one after it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    ran: list[str] = []
    sys.addaudithook(lambda event, _: ran.append(event) if event in RUNS else None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case"
        for number in range(first, last):
            rng = random.Random(f"{seed} {number}")
            name, data = files[number % len(files)]
            path.write_bytes(damaged(data, rng.choice(files)[1], rng))
            say({"case": number, "seed": name})
            base = peak_bytes(reset=True)
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            began = time.monotonic()
            fault = ""
            try:
                outcome = examine(path, rng)
            except Exception as error:
                outcome = "fault"
                fault = (
                    f"{type(error).__name__}: {error}"[:300] + " at " + traceback.format_exc().strip().splitlines()[-3].strip()
                )
            faulthandler.cancel_dump_traceback_later()
            if ran and not fault:
                fault = f"the file made something run: {', '.join(ran)}"
            ran.clear()
            used, size = peak_bytes() - base, path.stat().st_size
            if not fault and used > SLACK + 20 * max(size, _held(path, used, size)):
                fault = f"{used >> 20} MiB of memory for a file of {size} bytes"
            done = {"done": number, "outcome": "fault" if fault else outcome, "fault": fault}
            say({**done, "seconds": round(time.monotonic() - began, 3), "mib": used >> 20})


def _held(path: Path, used: int, size: int) -> int:
    """Bytes of the events that a file really holds, counted only where its memory needs an explanation."""
    if used <= SLACK + 20 * size:
        return 0
    for sensor in (None, (65536, 65536)):
        try:
            stream = open_events(path, sensor, "keep").events
            return EVENT_BYTES * sum(len(block) for block in stream.blocks()) if stream is not None else 0
        except BadInput:
            continue
    return 0


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


# ------------------------------------------------------------------------------------------------------------------- parent
def fuzz(cases: int, seed: int, recordings: Path | None, only: str) -> dict[str, Any]:
    """Run every case in a child process, a new one after each crash."""
    outcomes: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    slowest = largest = 0.0
    first = 0
    names = [name for name, _ in seeds(recordings, only)]
    while first < cases:
        words = [sys.executable, __file__, "--worker", str(first), str(cases), "--seed", str(seed), "--only", only]
        words += ["--recordings", str(recordings)] if recordings is not None else []
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stderr is not None
            running = None
            for line in child.stdout:
                told = json.loads(line)
                running = told if "case" in told else None
                if "done" in told:
                    outcomes[told["outcome"]] += 1
                    slowest, largest = max(slowest, told["seconds"]), max(largest, told["mib"])
                    first = told["done"] + 1
                    if told["fault"]:
                        faults.append({"case": told["done"], "seed": names[told["done"] % len(names)], "fault": told["fault"]})
            errors = child.stderr.read()
        if first < cases:
            if running is None:
                raise SystemExit(f"the worker ended between two cases: {errors[-2000:]}")
            outcomes["fault"] += 1
            faults.append({**running, "fault": f"ended the process ({child.returncode}): {errors.strip()[-300:]}"})
            first = running["case"] + 1
    return {
        "cases": cases,
        "seed": seed,
        "files": len(names),
        **outcomes,
        "slowest_s": slowest,
        "largest_mib": largest,
        "faults": faults,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--recordings", type=Path)
    options.add_argument("--only", default="", help="only files whose name contains this, say h5")
    options.add_argument("--worker", type=int, nargs=2, metavar=("FIRST", "LAST"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.worker:
        run_cases(*given.worker, given.seed, seeds(given.recordings, given.only))
        return
    found = fuzz(given.cases, given.seed, given.recordings, given.only)
    print(json.dumps({**found, "faults": found["faults"][:50]}, indent=1))
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
