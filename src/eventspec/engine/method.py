"""Everything that a method's name means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from eventspec.core import Target
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy

Modality = Literal["frames", "events"]


@dataclass(frozen=True)
class Method:
    """How questions are answered: who answers, who drafts when, and how much."""

    target: Target
    drafts: Drafts = field(default_factory=Drafts)
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    target_needs: Modality = "frames"
    """What a recording must have, or the target sees nothing."""
    drafter_needs: Modality | None = None
    """What it must have besides, or the drafter sees nothing."""
    notes: tuple[str, ...] = ()
    """What the trace says of it, one sentence each."""
