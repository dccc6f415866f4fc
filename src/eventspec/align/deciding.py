"""Rules that decide whether an answer from events alone may stand, by name: a number that says how surely, and from which
number on. No torch is needed to read one, so that a mistake is named before a model is loaded.

`cosine` and `kl` compare with what the target itself computes, so its frames are encoded first: they are oracles, which say
what alignment is worth and save no encoding. `entropy` and `events` decide before anything is decoded. `predictor`, `entropy`
and `events` take their threshold from a calibration (`align.acceptance`), the others promise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from eventspec.errors import BadInput, check_known

if TYPE_CHECKING:
    from torch import Tensor

    from eventspec.align.acceptance import Calibrated

    Features = Sequence[float] | None
    """What a predictor goes by; None for what is not to be judged."""

USUAL_RULE = "predictor"
FEATURES = ("least", "sum", "length", "blind", "events")
"""Log-probability of the least sure token, and of all together; the logarithm of how many there are; log-probability without
any recording; the logarithm of how many events came a second."""
GROUPINGS = ("kind", "scene")
"""By what thresholds may differ: the kind of question, and how many events a second a recording has."""


class Evidence(Protocol):
    """What is known of a question about a recording; every part is worked out when it is asked for first, and costs that."""

    question: str
    seed: int

    @property
    def tokens(self) -> list[int]:
        """The answer from events; it is decoded."""

    @property
    def rate(self) -> float:
        """log(1 + events a second)."""

    @property
    def features(self) -> Features:
        """Of the answer from events, by `substitute.FEATURES`; it is decoded."""

    @property
    def entropy(self) -> Features:
        """Of the first token after the question, in nats; the question is read."""

    @property
    def pooled(self) -> Features:
        """Mean row [D] of the adapted events, and of the question's embedded tokens; events are encoded."""

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """What the adapter wrote and what the target computed at the same places, [T, D] each; the frames are encoded."""

    @property
    def logits(self) -> tuple[Tensor, Tensor]:
        """At the tokens of the answer from events, after adapted rows and after the target's own, [N, V] each; the frames are
        encoded, and the target reads the answer."""


def cosine(evidence: Evidence) -> float:
    """Mean cosine of adapted rows and the target's own at the same places."""
    written, own = (rows.float() for rows in evidence.rows)
    lengths = (written.norm(dim=-1) * own.norm(dim=-1)).clamp_min(1e-12)
    found = float(((written * own).sum(-1) / lengths).mean())
    return -math.inf if math.isnan(found) else found


def divergence(evidence: Evidence) -> float:
    """KL divergence in nats of the next token after adapted rows from that after the target's own, mean over the answer from
    events: at the first token alone most answers are the same word."""
    adapted, own = (logits.float().log_softmax(-1) for logits in evidence.logits)
    parts = (own.exp() * (own - adapted)).where(own.exp() != 0, 0.0)  # what it never says adds nothing
    found = float(parts.sum(-1).mean())
    return math.inf if math.isnan(found) else max(0.0, found)


@dataclass(frozen=True)
class Fitted:
    """Features that a predictor is fitted to: how they are had, their names for a target of a width, how much the Gaussian
    prior of its weights counts, and where the calibration lies in an adapter's folder."""

    read: Callable[[Evidence], Features]
    names: Callable[[int], tuple[str, ...]]
    file: str
    strength: float = 1.0


def _pooled_names(width: int) -> tuple[str, ...]:
    return tuple(f"{part} {channel}" for part in ("row", "word") for channel in range(width))


FITTED = {
    "predictor": Fitted(lambda evidence: evidence.features, lambda width: FEATURES, "acceptance.json"),
    "entropy": Fitted(lambda evidence: evidence.entropy, lambda width: ("entropy",), "acceptance-entropy.json"),
    # Wide rows of few recordings tell these apart: of 1, 10, 100, 300 and 1000, chosen on the half that it learns from.
    "events": Fitted(lambda evidence: evidence.pooled, _pooled_names, "acceptance-events.json", 300.0),
}
SCORES: dict[str, Callable[[Evidence], float]] = {"cosine": cosine, "kl": lambda evidence: math.exp(-divergence(evidence))}
"""How well features are aligned, at most 1: how probable it is that rule `score` accepts."""


def probability(features: Features, calibrated: Calibrated) -> float:
    """That the answer is the target's; 0 for one that is not to be judged, or of which nothing can be computed."""
    if features is None or not all(map(math.isfinite, features)):
        return 0.0
    return float(calibrated.predictor.probabilities([features])[0])


@dataclass(frozen=True)
class Rule:
    """How a rule is typed, what its number is in words, how surely an answer may stand by its argument (None: a calibration
    says it) and from which number on; whether frames are encoded to decide, and whether it decides before anything is
    decoded."""

    usage: str
    says: Callable[[float], str]
    reads: Callable[[str], bool]
    sure: Callable[[Evidence, str], float] | None = None
    least: Callable[[Evidence, str], float] = lambda evidence, argument: float(argument)
    sees_frames: bool = False
    early: bool = False


def _number(text: str, fits: Callable[[float], bool]) -> bool:
    try:
        return math.isfinite(float(text)) and fits(float(text))
    except ValueError:
        return False


def _grouping(text: str) -> bool:
    return text in ("", *GROUPINGS)


def _drawn(evidence: Evidence, argument: str) -> float:
    """From [0, 1), by the seed, the question and the answer."""
    return Random(f"{evidence.seed} {evidence.question} {evidence.tokens}").random()


LIKELY = "probability {:.3f} of its answer".format
RULES = {
    "predictor": Rule("predictor, predictor:kind or predictor:scene", LIKELY, _grouping),
    "entropy": Rule("entropy, entropy:kind or entropy:scene", LIKELY, _grouping, early=True),
    "events": Rule("events, events:kind or events:scene", LIKELY, _grouping, early=True),
    "cosine": Rule(
        "cosine:T, T from -1 to 1",
        "cosine {:.3f} with its features".format,
        lambda text: _number(text, lambda least: -1 <= least <= 1),
        lambda evidence, argument: cosine(evidence),
        sees_frames=True,
    ),
    "kl": Rule(
        "kl:X, X above 0",
        lambda sure: f"KL divergence {-sure:.3f} from its next tokens",
        lambda text: _number(text, lambda most: most > 0),
        lambda evidence, argument: -divergence(evidence),
        lambda evidence, argument: -float(argument),
        sees_frames=True,
    ),
    "score": Rule(
        "score, score:kl or score:predictor",
        "accepted with probability {:.3f}".format,
        lambda text: text in ("", *SCORES, "predictor"),
        lambda evidence, argument: SCORES[argument or "cosine"](evidence),
        _drawn,
        sees_frames=True,
    ),
}


@dataclass(frozen=True)
class Decision:
    """A rule as it was typed, NAME or NAME:ARGUMENT."""

    name: str
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> Decision:
        """BadInput for anything else."""
        name, colon, argument = (part.strip() for part in str(text).partition(":"))
        check_known("rule", [name], RULES)
        if not RULES[name].reads(argument) or (colon and not argument):
            raise BadInput(f"rule '{text}' cannot be read: give {RULES[name].usage}")
        with suppress(ValueError):  # one spelling of each number
            argument = repr(float(argument) + 0.0).removesuffix(".0")
        return cls(name, argument)

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name

    @property
    def calibration(self) -> str | None:
        """Which of `FITTED` it goes by, if any."""
        return self.name if self.name in FITTED else "predictor" if self.argument == "predictor" else None

    @property
    def risky(self) -> bool:
        """Whether its threshold keeps a risk."""
        return self.name in FITTED

    @property
    def sees_frames(self) -> bool:
        """Whether the target's frames are encoded before it decides."""
        return RULES[self.name].sees_frames and self.argument != "predictor"

    @property
    def early(self) -> bool:
        """Whether it decides before anything is decoded."""
        return RULES[self.name].early

    def said(self, sure: float) -> str:
        """In words, how surely the answer from events may stand."""
        return RULES[self.name].says(sure)

    def sure(self, evidence: Evidence, calibrated: Calibrated | None) -> float:
        """How surely the answer from events may stand, the more the surer."""
        if self.calibration is not None:
            assert calibrated is not None, "whoever made the rule looked"
            return probability(FITTED[self.calibration].read(evidence), calibrated)
        own = RULES[self.name].sure
        assert own is not None, "a rule without a calibration has its own"
        return own(evidence, self.argument)

    def least(self, evidence: Evidence, calibrated: Calibrated | None, risk: float) -> float:
        """From which `sure` on it stands."""
        if not self.risky:
            return RULES[self.name].least(evidence, self.argument)
        assert calibrated is not None, "whoever made the rule looked"
        label = calibrated.groups.label(self.argument, evidence.question, evidence.rate) if self.argument else ""
        return calibrated.least(risk, self.argument, label)
