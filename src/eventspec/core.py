"""What crosses the walls between rooms: records and protocols (errors too, from below). It knows no model, file format or
algorithm.

Axis letters: B batch, T prompt, N proposal nodes, A accepted, V vocabulary, F feature, E events, K frames, H W sensor.
Times are int64 microseconds on the recording's clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from eventspec.errors import BadCheckpoint as BadCheckpoint
from eventspec.errors import BadInput as BadInput
from eventspec.errors import EventspecError as EventspecError
from eventspec.errors import write_text as write_text
from eventspec.sampling import Constraint as Constraint
from eventspec.sampling import ConstraintState as ConstraintState
from eventspec.sampling import Sampling as Sampling
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


Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def read_only(array: Array) -> Array:
    """A view of the same memory through which nobody can write; numpy will not make it writable again."""
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type, return-value]


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
    sampling: Sampling = field(default_factory=Sampling)


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
    """What the rule decided: path int64 [A], the accepted nodes from the root; tokens int64 [A+1], the bonus token last;
    near_ties: places in `tokens` whose decision was closer than rounding."""

    path: Tokens
    tokens: Tokens
    near_ties: tuple[int, ...] = ()


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
@dataclass(frozen=True)
class Limits:
    """What a target can be asked: `vocabulary` rows of its logits; `layers` whose outputs can be tapped; whether it understands
    `trees`, not only chains; `rounding`: logits that are no more than this apart may change places when a row is scored among
    others (measured, see ``engine.numerics``)."""

    vocabulary: int
    layers: int
    trees: bool
    rounding: float


class TargetSession(Protocol):
    """One answer in the making on the target: owns the KV cache and the pending tokens that are not yet in it."""

    @property
    def room(self) -> int:
        """Most nodes that the next `score` can take."""

    def again(self) -> TargetSession:
        """The same prompt in a session that has read nothing of it yet; nothing is encoded anew."""

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

    @property
    def limits(self) -> Limits:
        """What it can be asked. `rounding` is measured on first use, which takes some tens of steps."""

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
    called on the target's thread and must be quick.

    Nothing it does can change or end an answer: whatever it raises, proposes or shows is copied and checked first, and a
    drafter that does not keep to this protocol is given up for the request, with a note in the trace."""

    name: str
    taps: tuple[int, ...]
    concurrent: bool

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """Start drafting for a request; vision encoding and prefill of the drafter happen here."""
