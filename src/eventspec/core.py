"""What crosses the walls between rooms: records and protocols (errors too, from below). It knows no model, file format or
algorithm.

Axis letters: B batch, T prompt, N proposal nodes, A accepted, V vocabulary, F feature, E events, K frames, H W sensor.
Times are int64 microseconds on the recording's clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eventspec.errors import BadCheckpoint as BadCheckpoint
from eventspec.errors import BadInput as BadInput
from eventspec.errors import EventspecError as EventspecError
from eventspec.errors import write_text as write_text
from eventspec.trace import Round as Round
from eventspec.trace import Span as Span
from eventspec.trace import Trace as Trace

if TYPE_CHECKING:
    from torch import Tensor

Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]
"""int64 [N] token ids or node indices."""


# ------------------------------------------------------------------------------------------------------------ what is asked
@dataclass(frozen=True)
class Window:
    """A half-open time slice ``[start_us, end_us)`` of a recording, int64 microseconds."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        if self.end_us <= self.start_us:
            raise BadInput(f"window [{self.start_us}, {self.end_us}) us is empty: its end must be after its start")

    @property
    def duration_us(self) -> int:
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the target's logits, and when to stop. Temperature 0 is greedy. Penalties and bad words
    go by the answer's own tokens; `min_new_tokens` holds back the `stop_ids` only. In which order: ``engine.distribution``."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    banned_ids: tuple[int, ...] = ()
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        rules = (
            ("temperature", 0 <= self.temperature < float("inf"), "at least 0 and finite"),
            ("top_k", self.top_k >= 0, "at least 0 (0 switches it off)"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p < 1, "in [0, 1)"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "finite and above 0 (1 switches it off)"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("seed", self.seed >= 0, "at least 0"),
            ("stop_ids", min(self.stop_ids, default=0) >= 0, "of ids from 0 on"),
            ("stop_strings", all(self.stop_strings), "without empty strings"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2] (0 switches it off)"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2] (0 switches it off)"),
            ("logit_bias", all(-100 <= bias <= 100 for bias in self.logit_bias.values()), "in [-100, 100] for every id"),
            ("bad_words", all(self.bad_words), "without empty sequences"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= self.max_new_tokens, "from 0 to max_new_tokens"),
        )
        for name, holds, wanted in rules:
            if not holds:
                raise BadInput(f"{name} is {getattr(self, name)}: it must be {wanted}")


class EventSlice(Protocol):
    """Events of one window, columns of equal length [E]; see ``eventspec.events.stream.EventStream``."""

    @property
    def x(self) -> np.ndarray[Any, np.dtype[np.uint16]]: ...
    @property
    def y(self) -> np.ndarray[Any, np.dtype[np.uint16]]: ...
    @property
    def t(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...
    @property
    def p(self) -> np.ndarray[Any, np.dtype[np.uint8]]: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


class FrameRows(Protocol):
    """Frames uint8 [K, H, W, 3] RGB: an array, or ``eventspec.video.stored.StoredFrames``, which are read when asked for.

    Index by an array of places for those frames as an array; ``np.asarray`` would read all of them.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.uint8]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Any: ...
    def __getitem__(self, places: Any, /) -> Any: ...


class FrameSlice(Protocol):
    """Frames of one window and int64 [K] times; see ``eventspec.video.clip.VideoClip``."""

    @property
    def frames(self) -> FrameRows: ...
    @property
    def times_us(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...


@dataclass(frozen=True)
class Request:
    """One question about one window of a recording."""

    prompt: str
    events: EventSlice | None
    video: FrameSlice | None
    sampling: Sampling = Sampling()


# ---------------------------------------------------------------------------------------------------- one round of the loop
@dataclass(frozen=True)
class Budget:
    """How much a drafter may draft: at most `nodes` tokens, and it stops early once ``until()`` is true. A node is worth
    verifying only if the drafter gives its whole path at least the probability `floor`, and one level deeper is worth drafting
    only while the paths at the tip together have at least `mass`; no branch is longer than `levels`. ``show(tokens)`` is told
    the most likely chain as it grows."""

    nodes: int
    until: Callable[[], bool] = bool  # bool() is False: never stop early
    floor: float = 0.0
    mass: float = 0.0
    levels: int = 1 << 30
    show: Callable[[list[int]], None] | None = None


@dataclass(frozen=True)
class Proposal:
    """A draft tree. A chain is a tree with one branch; an empty proposal asks for one plain decoding step.

    tokens int64 [N]; parents int64 [N], -1 = child of the root, parents before children;
    probs float [N, V] or None: the distribution node i was really drawn from, given its earlier siblings
    (None = the children were chosen, not drawn: one-hot). The rule believes `probs`: a drafter that hands over another
    distribution than it drew from changes what is said. origin names the drafter in the trace.
    """

    tokens: Tokens
    parents: Tokens
    probs: Tensor | None = None
    origin: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls, origin: str = "") -> Proposal:
        return cls.chain((), origin)

    @classmethod
    def chain(cls, tokens: Sequence[int] | Tokens, origin: str = "", probs: Tensor | None = None) -> Proposal:
        ids = np.asarray(tokens, np.int64)
        return cls(ids, np.arange(-1, len(ids) - 1, dtype=np.int64), probs, origin)


@dataclass(frozen=True)
class Scores:
    """The target's view of a proposal: logits float [N+1, V], row 0 follows the root, row i+1 follows node i;
    features float [N+1, F] of the layers a drafter asked for (`taps`, side by side), or None."""

    logits: Tensor
    features: Tensor | None = None


@dataclass(frozen=True)
class TappedPrompt:
    """The target's prompt as a drafter with taps sees it: rows float [T, D] (embeddings, visual rows in place), features float
    [T, F] of the tapped layers, and where the visual rows lie, [begin, end), empty where they are not in one piece."""

    rows: Tensor
    features: Tensor
    visual: tuple[int, int]


@dataclass(frozen=True)
class Verdict:
    """What the rule decided: path int64 [A], the accepted nodes from the root; tokens int64 [A+1], the bonus token last."""

    path: Tokens
    tokens: Tokens


# -------------------------------------------------------------------------------------------------------- streamed updates
@dataclass(frozen=True)
class Provisional:
    """The drafter's best guess at the next tokens: shown at once, may be retracted."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Committed:
    """Tokens the target has verified: they are final."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Retracted:
    """The last `count` provisional tokens were wrong and are withdrawn."""

    count: int


Update = Provisional | Committed | Retracted


# --------------------------------------------------------------------------------------------------------------- protocols
class ConstraintState(Protocol):
    """Where an answer stands in what it may say. It never changes: every branch of a draft tree has its own."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [V], which tokens may come next: the end token too where the answer may end, no id behind the mask's end."""

    def after(self, token: int) -> ConstraintState:
        """The state behind one more token that the mask allowed."""


class Constraint(Protocol):
    """What answers must look like: a grammar, a list of choices. One may serve many answers at once."""

    def start(self) -> ConstraintState: ...


class TargetSession(Protocol):
    """One answer in the making on the target: owns the KV cache and the pending tokens that are not yet in it."""

    def score(self, proposal: Proposal) -> Scores:
        """ONE forward over (all pending tokens | the proposal's N nodes)."""

    def commit(self, verdict: Verdict) -> None:
        """Keep the keys of the accepted path, drop the rest; the bonus token becomes pending."""

    def fork(self) -> TargetSession:
        """The same recording for the next question: the prefix is shared."""

    def prompt(self) -> TappedPrompt:
        """The prompt with its tapped features; it is whole once the first `score` has read the rest of it."""


class Target(Protocol):
    """Gives the true distribution."""

    lossless: bool

    def prefill(self, request: Request, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> TargetSession:
        """Vision encoding, and language-model prefill of all but the last `tail` (>= 1) rows of the prompt.

        The tail stays pending: the first `score` finishes the prefill and verifies the head start in one forward. A tail longer
        than the prompt leaves the whole prefill to that forward. `taps` are the layers whose outputs the scores carry as
        features: 1 = the first layer, -1 = what the head reads (after the final norm).
        """


class DraftSession(Protocol):
    """One answer in the making on the drafter."""

    def propose(self, budget: Budget) -> Proposal:
        """Draft what may follow the committed tokens.

        Asked again without a verdict in between, it drafts for the same place, deeper where the budget allows: that is how a
        drafter goes on while the target verifies. What one call proposed is judged in terms of that call's proposal only.
        """

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Tokens that were committed, judged from `scores`; the drafter re-synchronises here. A drafter that was late hears of
        several verdicts in a row, whose paths refer to proposals that were made without it: go by the tokens."""


class Drafter(Protocol):
    """Proposes tokens. `taps` are the target layers it reads; () means independent: it may start at once.
    `concurrent` asks for a lane of its own: its work overlaps with the target's, and it is left when it hangs. Without, it is
    called on the target's thread and must be quick."""

    name: str
    taps: tuple[int, ...]
    concurrent: bool

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """Start drafting for a request; vision encoding and prefill of the drafter happen here."""
