"""What an answer of N tokens will take with each method: arithmetic on stage times and on what a method's rounds yield; and the
stage times of machines that are not here, by name, which others measured or which follow from a roofline.

It knows no model, no clock and no file. A target's own vision encoding and prefill are paid by every lossless method, so their
share of plain decoding bounds every speedup: the ceiling. What a method adds is a head start and cheaper rounds after it.
The acceptance of a machine by name is that of the one pair of 7B models whose runs were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from eventspec.errors import BadInput
from eventspec.experiments.names import BASE

RULE = (0.2, 0.4)
"""Prefill shares of the rule of thumb: above the second cross-modal drafting wins, below the first same-modality drafting."""
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
class StageTimes:
    """Milliseconds of a target's stages and of its event drafter's; None for what was not measured."""

    vision: float | None
    """None: part of the prefill."""
    prefill: float
    step: float
    """One token of plain decoding."""
    drafter_vision: float | None = None
    drafter_prefill: float | None = None
    drafter_step: float | None = None
    verify_curve: tuple[tuple[int, float], ...] = ((1, 1.0),)
    """(k, V(k)): a forward over k new tokens, in steps; lengths in rising order."""

    @property
    def first_token(self) -> float:
        """Until plain decoding has its first token."""
        return (self.vision or 0.0) + self.prefill

    @property
    def free_draft_tokens(self) -> float | None:
        """How many tokens the event drafter drafts while a target on another device encodes and prefills."""
        if self.drafter_prefill is None or not self.drafter_step:
            return None
        begins = (self.drafter_vision or 0.0) + self.drafter_prefill
        return max(0.0, (self.first_token - begins) / self.drafter_step)

    def autoregressive(self, tokens: int) -> float:
        """A whole answer of plain decoding."""
        return self.first_token + (tokens - 1) * self.step

    def prefill_share(self, tokens: int) -> float:
        """The share of plain decoding that no lossless method can avoid."""
        return self.first_token / self.autoregressive(tokens)

    def ceiling(self, tokens: int) -> float:
        """The best speedup of any lossless method."""
        return 1 / self.prefill_share(tokens)

    def verify(self, count: float) -> float:
        """A forward over so many new tokens: between lengths of the curve linear, outside them as at its ends."""
        lengths, costs = zip(*self.verify_curve, strict=True)
        return float(np.interp(count, lengths, costs)) * self.step


@dataclass(frozen=True)
class Link:
    """How tensors get from the drafter's device to the target's."""

    seconds: float
    """Of a tensor, whatever its size."""
    bytes_per_second: float
    source: str

    def ms(self, tensors: float, size: float) -> float:
        """Milliseconds of so many tensors of `size` bytes together."""
        return 1e3 * (tensors * self.seconds + size / self.bytes_per_second)

    @classmethod
    def assumed(cls, gigabytes: float) -> Link:
        """One of so many GB/s that nobody measured."""
        return cls(2e-5, 1e9 * gigabytes, f"assumed: {gigabytes:g} GB/s, and 20 us a tensor")


USUAL_LINK = 25.0
"""GB/s, about what PCIe 4.0 with 16 lanes gives between two GPUs."""


@dataclass(frozen=True)
class MethodProfile:
    """What a method adds to vision and prefill, and what its rounds cost and yield."""

    head_start: tuple[tuple[float, float], ...]
    """(share of the answers, tokens committed once the head start is verified); the target's own token counts."""
    begin: float
    """Milliseconds from the first token of plain decoding to that moment."""
    tau: float
    """Tokens of a later round."""
    round: float
    """Milliseconds of a later round: drafting that the target waits for, verifying, committing."""
    acceptance: float | None
    """Accepted / drafted, by prefix; None where nothing is drafted."""
    source: str
    """Where acceptance and tau come from."""
    first_rounds: int = 1
    """Forwards up to the verified head start: 1 where the prefill's own verifies it."""
    device_plan: str = "two"
    best_case: bool = False
    """Whether it bounds what a head start alone gains, and was not seen."""
    crossed: tuple[float, float] = (0.0, 0.0)
    """Tensors of one model that the other reads in an answer, and their bytes; token ids do not count."""

    def rounds(self, tokens: int) -> float:
        """Rounds after the head start, in the mean."""
        return sum(share * max(0.0, tokens - committed) for share, committed in self.head_start) / self.tau

    def total(self, stages: StageTimes, tokens: int) -> float:
        """Milliseconds of an answer."""
        return stages.first_token + self.begin + self.rounds(tokens) * self.round


def plain(stages: StageTimes, device_plan: str = "two") -> MethodProfile:
    """The baseline: a token a step."""
    return MethodProfile(((1.0, 1.0),), 0.0, 1.0, stages.step, None, "nothing is drafted", device_plan=device_plan)


def chain_ahead(
    stages: StageTimes,
    accepted: tuple[tuple[float, float], ...],
    tokens: int,
    device_plan: str,
    source: str,
    best_case: bool = False,
) -> MethodProfile:
    """An event drafter's chain as a head start only: drafted while the target encodes and prefills, verified by one forward
    after the prefill, and plain decoding afterwards. `accepted`: (share of the answers, length of the prefix that would be
    accepted of a draft without end).

    The first draft stands where the prefill names a token itself, so it saves nothing. On one device nothing is hidden: the
    target waits until the drafter is done."""
    free = stages.free_draft_tokens or 0.0
    drafted = min(free, tokens - 1) - 1  # a round's own token ends the answer
    if drafted <= 0:
        return plain(stages, device_plan)
    kept = [(share, min(length, drafted)) for share, length in accepted]
    begin = stages.verify(1 + drafted)
    if device_plan == "one":
        begin += (stages.drafter_vision or 0.0) + (stages.drafter_prefill or 0.0)
        begin += (1 + drafted) * (stages.drafter_step or 0.0)
    # After the prefill's token come the accepted ones and the bonus token.
    head_start = tuple((share, 2 + length) for share, length in kept)
    acceptance = sum(share * length for share, length in kept) / drafted
    return MethodProfile(head_start, begin, 1.0, stages.step, acceptance, source, 2, device_plan, best_case)


def outlook(stages: StageTimes, methods: Mapping[str, MethodProfile], tokens: int, link: Link | None = None) -> dict[str, Any]:
    """The object of `plan --json`: everything in it is predicted from `stages`, `methods` and the `link` between two devices,
    by default one of `USUAL_LINK`."""
    link = link or Link.assumed(USUAL_LINK)
    if tokens < 1:
        raise BadInput(f"{tokens} tokens are no answer: give at least 1")
    predicted = {name: _prediction(stages, method, tokens, link) for name, method in methods.items()}
    drafting = {name: row["speedup"] for name, row in predicted.items() if name != BASE and not row["best_case"]}
    fastest = max(drafting, key=drafting.__getitem__, default=None)
    free = stages.free_draft_tokens
    return {
        "tokens": tokens,
        "predicted": True,
        "stages_ms": {
            "target_vision": shortened(stages.vision),
            "target_prefill": shortened(stages.prefill),
            "target_step": shortened(stages.step),
            "drafter_vision": shortened(stages.drafter_vision),
            "drafter_prefill": shortened(stages.drafter_prefill),
            "drafter_step": shortened(stages.drafter_step),
        },
        "verify_curve": {str(length): shortened(cost) for length, cost in stages.verify_curve},
        "free_draft_tokens": shortened(free),
        "link": {"gb_s": shortened(link.bytes_per_second / 1e9), "tensor_ms": shortened(link.ms(1, 0)), "source": link.source},
        "prefill_share": shortened(stages.prefill_share(tokens)),
        "ceiling": shortened(stages.ceiling(tokens)),
        "rule_of_thumb": rule_of_thumb(stages.prefill_share(tokens), fastest, drafting.get(fastest or "", 0.0)),
        "methods": predicted,
    }


def rule_of_thumb(share: float, fastest: str | None, speedup: float) -> dict[str, Any]:
    """What the rule of the early notes says of a prefill share, and what the ceiling and the prediction say of it. The rule is
    untested: it knows neither acceptance nor what drafting and verifying cost."""
    low, high = RULE
    says = "depends on the acceptance rate"
    if not low <= share <= high:
        says = "cross-modal drafting wins" if share > high else "same-modality drafting wins"
    ceiling = f"no lossless method can be faster than {1 / share:.2f}x at a prefill share of {share:.0%}"
    if share > high:
        ceiling += ": a high share means much time to draft in and little to gain"
    predicted = "no method is predicted to be faster than plain decoding"
    if fastest is not None and speedup > 1:
        predicted = f"{fastest} is predicted to be the fastest, {speedup:.2f}x"
    return {"thresholds": list(RULE), "says": says, "ceiling_says": ceiling, "prediction_says": predicted}


def _prediction(stages: StageTimes, method: MethodProfile, tokens: int, link: Link) -> dict[str, Any]:
    total, rounds = method.total(stages, tokens), method.rounds(tokens)
    speedup = stages.autoregressive(tokens) / total
    return {
        "predicted": True,
        "lossless": True,
        "total_ms": shortened(total),
        "speedup": shortened(speedup),
        "share_of_ceiling": shortened(speedup / stages.ceiling(tokens)),
        "tau": shortened(tokens / (method.first_rounds + rounds)),
        "acceptance": shortened(method.acceptance),
        "acceptance_source": method.source,
        "head_start_tokens": shortened(sum(share * min(tokens, committed) for share, committed in method.head_start)),
        "head_start_ms": shortened(method.begin),
        "later_rounds": shortened(rounds),
        "round_ms": shortened(method.round),
        "round_tokens": shortened(method.tau),
        "transfer_bytes": round(method.crossed[1]),
        "transfer_ms": shortened(link.ms(*method.crossed)),
        "device_plan": method.device_plan,
        "best_case": method.best_case,
    }


def shortened(value: float | None) -> float | None:
    """Four decimals are more than was measured."""
    return None if value is None else round(value, 4)


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
