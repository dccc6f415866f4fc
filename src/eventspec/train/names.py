"""What can be trained, by name, and how this process was started; without any model, so that a mistake is named at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eventspec.errors import BadInput, check_known
from eventspec.files import check_empty, check_folder

if TYPE_CHECKING:
    from eventspec.pairs.pair_file import PairFile
    from eventspec.recordings.qa import Question

PRESETS = {
    "embedded": ("cpu", "cpu-tune", "gpu", "cpu-base", "smoke"),
    "heads": ("cpu", "cpu-tune", "gpu", "gpu-tune", "smoke"),
    "adapters": ("cpu", "gpu", "smoke"),
    "drafter": ("cpu", "gpu", "smoke"),
    **dict.fromkeys(("packer", "mixture", "lora", "prior"), ("cpu", "smoke")),
}
"""By recipe."""
HEADS = (
    *("eagle", "eagle1", "eagle3", "specvlm"),
    *("frugal", "weighted", "concat", "hivis", "msd", "vispec", "dream", "massv", "spec-llava"),
)
_ANY = ("linear", "slim", "bottleneck", "blocks", "wide", "cross", "fused", "constant")
KINDS = {
    "rows": (*_ANY, "attention", "causal", "cached"),
    "tower": (*_ANY, "attention"),
    "features": (*_ANY, "cached", "autoregressive"),
}
"""Of adapters, by what they write."""
READS = ("last", "penultimate", "levels")
"""What adapters to features read of the event model."""
PHASES = ("alignment", "acceptance", "end-to-end")
FURTHER_PHASES = ("predictor", "joint")
"""Those of the early notes behind alignment: a predictor of acceptance, and everything at once."""
CALIBRATION = "calibration"
"""In the place of phases: adapters that a pair has are calibrated, and stay as they are."""
LOSSES = ("squared", "cosine", "contrast", "information")
ALLOCATOR = {
    # glibc gives large blocks back after every step and faults them in again: half of the time on a CPU without these.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "1073741824",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Given:
    """What a training of a user's pair is given: a qa.jsonl, the folder of what the target said, which trainings share, how
    long its answers may be, and how many questions are taken at most (0: all; None: as many as the preset learns from),
    of as many recordings as there are."""

    questions: Path
    work: Path
    longest: int = 96
    limit: int | None = None

    def asked(self, usual: int) -> list[Question]:
        """The questions, `usual` ones where no number is given. BadInput, one line, as `read_questions`."""
        from eventspec.recordings.qa import read_questions  # numpy is not needed for a page of help

        return read_questions(self.questions, usual if self.limit is None else self.limit)


def check_begins(preset: str, begin_with: str | None) -> None:
    """BadInput for a preset that goes on from weights, without any."""
    if preset.endswith("-tune") and begin_with is None:
        raise BadInput(f"preset {preset} goes on from a pair's weights: say whose with --begin-with, or choose another")


def check_kinds(kinds: Iterable[str], output: str) -> list[str]:
    """Kinds of adapters, each once; BadInput for an unknown one or output."""
    check_known("output", [output], KINDS)
    found = list(dict.fromkeys(kinds))
    check_known(f"adapter to {output}", found, KINDS[output])
    return found


def calibratable(file: PairFile, names: Iterable[str]) -> list[str]:
    """Which of a pair's adapters are calibrated again: those named, each once, of the ones to rows; all of these for none.
    BadInput for others, and for a pair without any."""
    from eventspec.pairs.fitting import row_adapters

    there, wanted = row_adapters(file), list(dict.fromkeys(names))
    if not there:
        raise BadInput(f"pair {file.name} has no adapter to rows to calibrate: train one, without --phase {CALIBRATION}")
    check_known("adapter to rows of this pair", wanted, there)
    return wanted or there


def check_phases(phases: Iterable[str], free_running: bool = False) -> tuple[str, ...]:
    """The phases in their order, all of them for none, alignment alone for free-running texts; BadInput for an unknown one, and
    for another one with these texts."""
    wanted = tuple(phases)
    if free_running:
        if set(wanted) - {"alignment"}:
            raise BadInput("two texts that part have phase alignment only: there is no answer that both give")
        return ("alignment",)
    if CALIBRATION in wanted and len(set(wanted)) > 1:
        raise BadInput(f"phase {CALIBRATION} leaves adapters as they are: give it alone, the others end with it anyway")
    if CALIBRATION in wanted:
        return (CALIBRATION,)
    check_known("phase", wanted, (*PHASES, *FURTHER_PHASES, CALIBRATION))
    return tuple(phase for phase in (*PHASES, *FURTHER_PHASES) if phase in (wanted or PHASES))


def check_adapting(losses: Iterable[str], reads: str, output: str, phases: Collection[str]) -> tuple[str, ...]:
    """The losses of phases alignment and joint in their order, none for the usual ones; BadInput for an unknown one, without
    such a phase, and for what an output does not have."""
    wanted = tuple(losses)
    check_known("loss", wanted, LOSSES)
    check_known("reads", [reads], READS)
    if reads != READS[0] and output != "features":
        raise BadInput("--reads chooses among layers of a language model: it is for --output features")
    if output == "features" and (early := [phase for phase in FURTHER_PHASES if phase in phases]):
        raise BadInput(f"phase {early[0]} judges what stands in a prompt: it is for --output rows or tower")
    if wanted and not {"alignment", "joint"} & set(phases):
        mend = "leave it out" if CALIBRATION in phases else "add --phase alignment"
        raise BadInput(f"--loss is for phases alignment and joint, which are left out: {mend}")
    if set(wanted) == {"information"}:
        raise BadInput("loss information knows neither sign nor scale: give squared or cosine beside it")
    return tuple(name for name in LOSSES if name in wanted)


def check_out(out: Path, resume: bool) -> None:
    """BadInput where no run may begin in `out`, or, to `resume`, none is there to go on with."""
    check_folder(out)
    if not resume or out.is_file():
        check_empty(out.resolve(), "or continue it with --resume")
    elif not out.exists() or not any(out.iterdir()):
        raise BadInput(f"{out} holds no run that --resume could go on with: leave --resume out to begin one")


def launched_first() -> bool:
    """Whether a launcher, if any, started this process as the first one. Known before anything is set up."""
    return os.environ.get("RANK", "0") == "0"


def launched() -> int:
    """How many processes a launcher started; 1 without one. BadInput for what is no count."""
    given = os.environ.get("WORLD_SIZE", "1")
    if not (given.isascii() and given.isdecimal() and int(given) > 0):
        raise BadInput(f"WORLD_SIZE is '{given}', wanted a count of processes: torchrun sets it, without one unset it")
    return int(given)


def reexecute_with_allocator(words: list[str]) -> None:
    """Start this program again with the allocator settings; they are read once, when a process begins."""
    if os.environ.get("MALLOC_TOP_PAD_") is not None or sys.platform != "linux":
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the second start can answer it, in `cli.main`
    try:
        answers = getattr(signal.getsignal(signal.SIGALRM), "__module__", None)
        # An interrupt that is to come again: its clock would outlive this program, and what answers it would not.
        if answers == "eventspec.cli" and signal.setitimer(signal.ITIMER_REAL, 0)[0]:
            raise KeyboardInterrupt
        os.execve(sys.executable, [sys.executable, "-m", "eventspec", *words], {**os.environ, **ALLOCATOR})
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
