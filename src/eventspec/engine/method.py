"""Everything that a method's name means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eventspec.core import Modality, Round, Target
from eventspec.engine.drafts import Drafts
from eventspec.engine.policy import DraftPolicy


@dataclass(frozen=True)
class QuestionInfo:
    """What is known of a question before it is answered: how many tokens its answer may have at `most`, which `senses` the
    recording has, and whether it was `read_before` for another question. `step_seconds`: what a plain step is thought to take;
    0: that is not known."""

    question: str
    most: int
    senses: frozenset[str]
    read_before: bool
    step_seconds: float = 0.0


@dataclass(frozen=True)
class AnswerTimes:
    """How long an answer took: to its first committed token, and from there to its end."""

    first_seconds: float
    decode_seconds: float
    tokens: int
    complete: bool = True
    """Whether it ended by itself, and not at the most tokens it might have."""


class Choose(Protocol):
    """Picks one of `methods` for each question, and learns from what its answer took."""

    methods: Sequence[str]

    def suited(self, senses: Collection[str]) -> list[str]:
        """Those of `methods` that are for a recording with these senses."""

    def choose(self, asked: QuestionInfo) -> str: ...
    def learn(self, name: str, asked: QuestionInfo, took: AnswerTimes) -> None: ...
    def reset(self) -> Choose:
        """The same before it learnt anything."""

    def remembering(self, path: Path, warm: bool) -> Choose:
        """The same with what a file remembers, which is kept there from now on; not `warm`: no method ran in this process."""


class Learns(Protocol):
    """Follows what the rounds of a method take."""

    def applied(self, policy: DraftPolicy) -> DraftPolicy:
        """The policy with what was learnt in the place of what was measured."""

    def learn(self, policy: DraftPolicy, rounds: Sequence[Round]) -> None:
        """From all rounds of an answer that was given under this policy, or under what was made of it here."""


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
    choice: Choose | None = None
    """Picks another method for each question, which then counts in place of this one."""
    learnt: Learns | None = None
    """What its rounds took; None where nothing is learnt."""

    @property
    def current_policy(self) -> DraftPolicy:
        """The policy with what was learnt until now: that of the next question."""
        return self.policy if self.learnt is None else self.learnt.applied(self.policy)
