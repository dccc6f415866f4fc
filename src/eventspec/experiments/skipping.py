"""What skipping the video encoder would take, for `plan`: the lossy method skip-encode, which answers from events alone where
that is sure enough, and asks the target where not.

As the early notes have it, E[latency] = T_event + T_align + P(accept) * decode + P(reject) * (T_video + decode): with the video
encoder's time go the prefill of the rows that it gives. Where a whole answer from events is judged, as the calibrated
predictor does, a refused one has cost its prefill and decoding too; it is the target's draft then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eventspec.align.deciding import USUAL_RULE
from eventspec.align.substitute import SubstitutedTarget
from eventspec.errors import BadInput
from eventspec.experiments.figures import Row, column
from eventspec.experiments.names import BASE
from eventspec.experiments.plan import Link, StageTimes, shortened
from eventspec.experiments.statistics import mean
from eventspec.pairs import Pair
from eventspec.pairs.names import ALIGNED, SKIP

ALIGN_MS = 1.0
"""Of an adapter that nobody measured, as the early notes assume it."""
PROFILED = "--accept-share; an adapter is assumed to take 1 ms, and what is decided to need no answer first"


@dataclass(frozen=True)
class Skipping:
    """Milliseconds until adapted rows are there (`rows`), of reading them (`prefill`) and of every further token from events
    (`each`) or from the target that was asked after all (`later`); `share` of the answers that stand, and where it comes from.
    `answers_first`: whether a whole answer from events is judged, not the rows."""

    share: float
    source: str
    rows: float
    prefill: float
    each: float
    later: float
    answers_first: bool
    device_plan: str = "one"
    crossed: tuple[float, float] = (0.0, 0.0)
    """Tensors of one model that the other reads, and their bytes."""

    @classmethod
    def of_profile(cls, stages: StageTimes, share: float) -> Skipping:
        """On a machine by name, whose drafter is as large as its target: the target reads adapted rows as fast as the drafter
        its own, and decodes plainly. BadInput where the drafter was not timed."""
        if stages.drafter_vision is None or stages.drafter_prefill is None:
            raise BadInput("--accept-share: the event model was not timed there: leave it out")
        rows = stages.drafter_vision + ALIGN_MS
        return cls(share, PROFILED, rows, stages.drafter_prefill, stages.step, stages.step, answers_first=False)

    @classmethod
    def of_pair(
        cls, pair: Pair, answers: Sequence[Mapping[str, Row]], stages: StageTimes, share: float | None
    ) -> Skipping | None:
        """Of a pair whose methods answered questions; `share` in place of its calibration's, at the usual risk. None where
        there is neither. BadInput for a share, and no calibrated adapter."""
        own, base = ([found[name] for found in answers if SKIP in found] for name in (SKIP, BASE))
        target = pair.method(SKIP).target if own else None
        if not isinstance(target, SubstitutedTarget):
            if share is None:
                return None
            raise BadInput("--accept-share: the pair has no calibrated adapter, by which skip-encode answers: leave it out")
        source, decision = "--accept-share", target.decision
        if share is None and str(decision) != USUAL_RULE:  # a threshold of another kind, or none: what it took is counted
            share = float(mean([float(row["skipped"]) for row in own]) or 0.0)
            source = f"rule {decision}: of {len(own)} answers that were measured"
        if share is None:
            known = () if target.calibrated is None else target.calibrated.probabilities
            share = float((np.asarray(known) >= target.threshold).mean()) if len(known) else 0.0
            source = f"calibration of adapter {target.adapter}: of {len(known)} answers, at a risk of {target.risk:g}"
        aligned = [found[ALIGNED] for found in answers if ALIGNED in found]
        rows, prefill = (mean(column(*of)) or 0.0 for of in ((own, "drafter_vision"), (aligned, "drafter_prefill")))
        # The answer from events is there with the whole answer, or before the target began: what its first token came later by.
        there = [_answered(row, plain) for row, plain in zip(own, base, strict=True)]
        tokens = sum(len(row["token_ids"]) - 1 for row in own)
        each = max(0.0, sum(there) - len(own) * (rows + prefill)) / tokens if tokens else stages.step
        asked = [row for row in own if not row["skipped"]]
        further = sum(len(row["token_ids"]) - 1 for row in asked)
        later = sum(row["timing_ms"]["decode"] for row in asked) / further if further else stages.step
        crossed = tuple(mean([row["crossed"][name] for row in own]) or 0.0 for name in ("tensors", "bytes"))
        how = (not decision.early, pair.workers.placement, (crossed[0], crossed[1]))
        if decision.sees_frames:
            rows += stages.vision or 0.0
        return cls(share, source, rows, prefill, each, later, *how)

    def times(self, stages: StageTimes, tokens: int) -> tuple[float, float, float]:
        """Milliseconds of an answer: expected, where the events were enough, and where they were not."""
        answer = self.prefill + (tokens - 1) * self.each
        accepted = self.rows + answer
        rejected = self.rows + answer * self.answers_first + stages.first_token + (tokens - 1) * self.later
        return self.share * accepted + (1 - self.share) * rejected, accepted, rejected

    def row(self, stages: StageTimes, tokens: int, link: Link) -> dict[str, Any]:
        """Its row among the methods of `plan --json`; no target verifies a draft, so what tells of drafts is null."""
        plain = stages.autoregressive(tokens)
        total, accepted, rejected = self.times(stages, tokens)
        drafts = dict.fromkeys(
            ("tau", "acceptance", "head_start_tokens", "head_start_ms", "later_rounds", "round_ms", "round_tokens")
        )
        return {
            "predicted": True,
            "lossless": False,
            "total_ms": shortened(total),
            "speedup": shortened(plain / total),
            "share_of_ceiling": shortened(plain / total / stages.ceiling(tokens)),
            **drafts,
            "acceptance_source": self.source,
            "transfer_bytes": round(self.crossed[1]),
            "transfer_ms": shortened(link.ms(*self.crossed)),
            "device_plan": self.device_plan,
            "best_case": False,
            "skipping": {
                "accept_share": shortened(self.share),
                "accepted_ms": shortened(accepted),
                "accepted_speedup": shortened(plain / accepted),
                "rejected_ms": shortened(rejected),
                "rejected_speedup": shortened(plain / rejected),
                "judges": "answer" if self.answers_first else "rows",
            },
        }


def _answered(row: Row, plain: Row) -> float:
    """Milliseconds until the answer from events was there: all of an answer that stands, else what the target began
    later by."""
    times: Mapping[str, float] = row["timing_ms"]
    if row["skipped"]:
        return times["total"]
    return max(0.0, times["first_committed"] - float(plain["timing_ms"]["first_committed"]))
