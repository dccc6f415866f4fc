"""Machines that are not here, by name: stage times that others measured or that follow from a roofline, for `plan`.

A profile predicts only. Its acceptance is that of the one pair of 7B models whose runs were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from eventspec.errors import BadInput
from eventspec.experiments.names import BASE
from eventspec.experiments.plan import MethodProfile, StageTimes, chain_ahead, plain

_PERCENT = (9.1, 22.4, 2.3, 8.2, 6.9, 16.6, 10.3, 8.7, 5.4, 2.8, 1.7, 1.1, 4.4)
RECORDED = tuple((percent / sum(_PERCENT), float(length)) for length, percent in enumerate(_PERCENT))
"""(share of the runs, accepted prefix): 10,970 runs of 30 tokens, 4.4 of 20.9 drafted tokens accepted in the mean."""
RECORDED_SOURCE = (
    "recorded traces: 10,970 runs of EventGPT with an adapter before Video-LLaVA, NF4, RTX 4090, 4.4 of 20.9 drafted tokens "
    "accepted (21 %); the prefix lengths of those runs are assumed to hold here"
)
BEST_CASE = ((1.0, inf),)
BEST_CASE_SOURCE = "assumed: every token of the head start is accepted, and plain decoding comes after it"


@dataclass(frozen=True)
class Machine:
    """Stage times of a pair of 7B models, and their source."""

    about: str
    source: str
    stages: StageTimes


_ROOFLINE = "roofline of one H200 (790 TFLOP/s in bf16, 4.3 TB/s): a bound that kernels come near, not a measurement"
_H200 = StageTimes(
    vision=1.6,
    prefill=35.5,
    step=3.33,
    drafter_vision=2.7,
    drafter_prefill=10.6,
    drafter_step=3.15,
    verify_curve=((1, 1.0), (180, 1.0)),
)

PROFILES: Mapping[str, Machine] = {
    "rtx4090-nf4-7b": Machine(
        "EventGPT 7B drafts for Video-LLaVA 7B, both in NF4, 8 frames",
        "measured on one RTX 4090: stage times alone (1,100 clips of 1 s), V(k) over 500 runs; vision is part of the prefill",
        StageTimes(
            vision=None,
            prefill=315.0,
            step=14.5,
            drafter_vision=8.0,
            drafter_prefill=83.0,
            drafter_step=10.0,
            # NF4 has a fast kernel for one token only: from 2 to 22 tokens a forward takes the same, 4.5 steps.
            verify_curve=((1, 1.0), (2, 4.5), (22, 4.5)),
        ),
    ),
    "h200-7b": Machine("EventGPT 7B drafts for Video-LLaVA 7B, bf16, 8 frames", _ROOFLINE, _H200),
    "h200-7b-measured": Machine(
        "EventGPT 7B drafts for Video-LLaVA 7B, bf16, 8 frames, by eventspec",
        "measured on one H200 (torch 2.11): random weights of the published sizes, which take as long; 4 answers of 64 tokens; "
        "the drafter's vision is mostly drawing event images on a CPU core; V(k) over chains under a mask, 20 forwards each",
        StageTimes(
            vision=11.1,
            prefill=53.4,
            step=6.7,
            drafter_vision=34.2,
            drafter_prefill=18.1,
            drafter_step=7.5,
            # A mask keeps several rows from flash attention. Chains go without one since.
            verify_curve=((1, 1.0), (2, 1.44), (16, 1.52), (32, 1.54), (64, 1.62), (100, 1.65)),
        ),
    ),
    "h200-7b-16-frames": Machine(
        "the same with 16 frames, past the target's context of 4096",
        _ROOFLINE,
        replace(_H200, vision=3.3, prefill=73.5, step=3.58),
    ),
    "h200-7b-64-frames": Machine(
        "the same with 64 frames: times only, the answers would be worthless",
        _ROOFLINE,
        replace(_H200, vision=13.1, prefill=360.0, step=5.08),
    ),
}


def profile(name: str) -> Machine:
    """A machine by name; BadInput lists the valid ones."""
    if name not in PROFILES:
        raise BadInput(f"unknown profile '{name}': choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


def methods_of(machine: Machine, tokens: int) -> dict[str, MethodProfile]:
    """The baseline, and the event drafter's head start on two devices and on one: as accepted in the recorded traces, and at
    best."""
    found = {BASE: plain(machine.stages)}
    for device_plan, suffix in (("two", ""), ("one", ", one device")):
        for name, accepted, source, best in (
            ("cross-modal", RECORDED, RECORDED_SOURCE, False),
            ("cross-modal, whole head start accepted", BEST_CASE, BEST_CASE_SOURCE, True),
        ):
            found[name + suffix] = chain_ahead(machine.stages, accepted, tokens, device_plan, source, best)
    return found
