"""What crosses the walls between rooms: records and protocols (errors too, from below). It knows no model, file format or
algorithm.

Axis letters: B batch, T prompt, N proposal nodes, A accepted, V vocabulary, F feature, E events, K frames, H W sensor.
Times are int64 microseconds on the recording's clock unless a name says otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eventspec.errors import BadCheckpoint as BadCheckpoint
from eventspec.errors import BadInput as BadInput
from eventspec.errors import EventspecError as EventspecError
from eventspec.errors import NonFiniteLogits as NonFiniteLogits
from eventspec.media import EventSlice as EventSlice
from eventspec.media import FrameRows as FrameRows
from eventspec.media import FrameSlice as FrameSlice
from eventspec.media import Media as Media
from eventspec.media import Modality as Modality
from eventspec.media import Stream as Stream
from eventspec.media import Window as Window
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


@dataclass(frozen=True)
class Request:
    """One question about one window of a recording."""

    media: Media
    question: str
    sampling: Sampling = field(default_factory=Sampling)


def never() -> bool:
    """The condition of what is not stopped early."""
    return False


HOPELESS = 0.05
"""Of paths that have less probability than this together, no level is drafted for its own sake."""


@dataclass(frozen=True)
class Budget:
    """How much a drafter may draft in one call of `DraftSession.propose`."""

    max_nodes: int
    """Tokens of the proposal, at most."""
    until: Callable[[], bool] = never
    """Asked between the drafter's steps: true = stop with what there is."""
    min_path_prob: float = 0.0
    """A node is worth verifying only if the drafter gives its whole path at least this probability."""
    min_frontier_prob: float = 0.0
    """One level deeper is worth drafting only while the paths at the tip have at least this probability together."""
    max_depth: int = 1 << 30
    """No branch is longer than this many tokens."""
    show: Callable[[list[int]], None] | None = None
    """Given the most likely chain as it grows, which the reader sees as provisional text."""

    def anyway(self, nodes: int) -> Budget:
        """For so many nodes at most, whatever they are worth; a level deeper is drafted where it is not hopeless."""
        most = min(nodes, self.max_nodes)
        return replace(self, max_nodes=most, min_path_prob=0.0, min_frontier_prob=HOPELESS, show=None)


@dataclass(frozen=True)
class Proposal:
    """A draft tree. A chain is a tree with one branch; an empty proposal asks for one plain decoding step.

    tokens int64 [N]; parents int64 [N], -1 = child of the root, parents before children;
    probs float [N, V] or None: the distribution node i was really drawn from, given its earlier siblings
    (None = the children were chosen, not drawn: one-hot). The rule believes `probs`: a drafter that hands over another
    distribution than it drew from changes what is said. origin names the drafter in the trace; of a merged tree all of them,
    with a plus between. values float64 [N]: how likely the drafter thinks it that a node's whole path is accepted, None where
    it has no idea. sources int64 [N]: bit i is set where the i-th drafter of `origin` named the node; None: there is one.
    """

    tokens: Tokens
    parents: Tokens
    probs: Tensor | None = None
    origin: str = ""
    values: np.ndarray[Any, np.dtype[np.float64]] | None = None
    sources: Tokens | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        levels: list[int] = []
        for parent in self.parents.tolist():
            levels.append(1 if parent < 0 else levels[parent] + 1)
        return max(levels, default=0)

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
    """The target's prompt as a drafter sees it: rows float [T, D] (embeddings, visual rows in place), features float [T, F] of
    the tapped layers, if any, and where the visual rows lie, [begin, end), with whatever stands between them; empty: no
    such."""

    rows: Tensor
    features: Tensor | None
    visual: tuple[int, int]


@dataclass(frozen=True)
class Verdict:
    """What the rule decided: path int64 [A], the accepted nodes from the root; tokens int64 [A+1], the bonus token last;
    near_ties: places in `tokens` whose decision was closer than rounding."""

    path: Tokens
    tokens: Tokens
    near_ties: tuple[int, ...] = ()

    @classmethod
    def of(cls, *, tokens: Sequence[int], path: Sequence[int] = (), near_ties: Sequence[int] = ()) -> Verdict:
        return cls(np.array(path, np.int64), np.array(tokens, np.int64), tuple(near_ties))


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


@dataclass(frozen=True)
class Limits:
    """What a target can be asked: `vocabulary` rows of its logits; `layers` whose outputs can be tapped; whether it understands
    `trees`, not only chains; `rounding`: logits that are no more than this apart may change places when a row is scored among
    others (measured, see ``engine.numerics``); `batches`: the rounds of several answers share a forward."""

    vocabulary: int
    layers: int
    trees: bool
    rounding: float
    batches: bool = False


class TargetPrompt(Protocol):
    """What a drafter gets to see of the target."""

    @abstractmethod
    def prompt(self, visual: bool = True) -> TappedPrompt:
        """The prompt, whole after the first `score`, with tapped features; without `visual` maybe not those of visual rows."""


class TargetSession(TargetPrompt, Protocol):
    """One answer in the making on the target: owns the KV cache and the pending tokens that are not yet in it."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Most nodes that the next `score` can take."""

    @property
    @abstractmethod
    def chunked(self) -> bool:
        """Whether the prompt is read in more than one forward: its logits may differ by rounding from `fresh_copy`'s."""

    @abstractmethod
    def fresh_copy(self) -> TargetSession:
        """The same prompt in a session that has read nothing of it yet, and will read it in one forward."""

    @abstractmethod
    def score(self, proposal: Proposal) -> Scores:
        """ONE forward over (all pending tokens | the proposal's N nodes), for this answer alone; see `Target.score`."""

    @abstractmethod
    def commit(self, verdict: Verdict) -> None:
        """Keep the keys of the accepted path, drop the rest; the bonus token becomes pending."""


class Context(Protocol):
    """A recording as a target sees it: its visual rows, and from the first question on the keys and values of the prompt up to
    the last of them. Any number of questions can be asked about it, at the same time too; each is answered as if it were the
    first. Inherit from it: what has a body here is the default."""

    def keep_outputs(self) -> None:
        """More questions are to come, by any method: keep what was computed of a prompt and a later drafter may read."""
        return

    def extend(self, frames: np.ndarray[Any, np.dtype[np.uint8]], trace: Trace) -> None:
        """More frames uint8 [K, H, W, 3] of the same window, as they arrive. BadInput where the target takes no more."""

    def prompt_ids(self, question: str) -> Sequence[int]:
        """The ids of the whole prompt, placeholders of pictures too, which a repetition penalty counts as transformers does;
        none: penalties go by the answer alone."""
        return ()

    @abstractmethod
    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> TargetSession:
        """A session about one question: language-model prefill of all but the last `tail` (>= 1) rows of its prompt, or a few
        less than `tail` where that suits the target.

        The tail stays pending: the first `score` finishes the prefill and verifies the head start in one forward. A tail longer
        than the prompt leaves the whole prefill to that forward. `taps` are the layers whose outputs the scores carry as
        features: 1 = the first layer, -1 = what the head reads (after the final norm).
        """


class Target(Protocol):
    """Gives the true distribution. Inherit from it: what has a body here is the default."""

    lossless: bool
    if TYPE_CHECKING:

        @property
        def limits(self) -> Limits:
            """What it can be asked. `rounding` is measured on first use, which takes some tens of steps."""
    else:  # a property would keep classes that inherit from this one from setting the attribute
        limits: Limits

    @abstractmethod
    def encode(self, media: Media, trace: Trace) -> Context:
        """Vision encoding: pixels -> visual rows. BadInput for a recording that lacks what the target sees."""

    def score(self, batch: Sequence[tuple[TargetSession, Proposal]]) -> list[Scores]:
        """The rounds of several answers, sessions of this target all of them: ONE forward where `limits.batches`. A batch of
        one is the usual case."""
        return [session.score(proposal) for session, proposal in batch]


class DraftSession(Protocol):
    """One answer in the making on the drafter."""

    @abstractmethod
    def propose(self, budget: Budget) -> Proposal:
        """Draft what may follow the committed tokens.

        Asked again without a verdict in between, it drafts for the same place, deeper where the budget allows: that is how a
        drafter goes on while the target verifies. What one call proposed is judged in terms of that call's proposal only.
        """

    @abstractmethod
    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Tokens that were committed, judged from `scores`; the drafter re-synchronises here. A drafter that was late gets
        several verdicts in a row, whose paths refer to proposals that were made without it: go by the tokens."""

    def write_on(self, budget: Budget) -> None:
        """For a drafter in `Drafts.writing`: on a lane with time to spare, go on along the likeliest path of the head start to
        the answer's end, or until the budget's `until` says so, for drafters that look the text up (`drafters.texts`).
        Nothing is proposed."""
        return


class Drafter(Protocol):
    """Proposes tokens.

    No call, value or exception of this protocol can change or end an answer: whatever it raises, proposes or shows is copied
    and checked first, and a drafter that does not keep to it is given up for the request, with a note in the trace. (Code in
    one process cannot be contained: it can do anything by other means.)"""

    name: str
    needs_target: bool = False
    """Reads the target's prompt or features, so it cannot start before they exist. Without, it may start at once."""
    taps: tuple[int, ...] = ()
    """The target's layers that it reads; may be empty though `needs_target` (a model that reads the prompt's rows only)."""
    concurrent: bool = False
    """Asks for a lane of its own: its work overlaps with the target's, and it is left when it hangs. Without, it is called on
    the target's thread, one with `any_thread = True` on other threads too (never on two at once), and must be quick."""

    @abstractmethod
    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """Start drafting for a request; vision encoding and prefill of the drafter happen here. `target` is there for a
        drafter that `needs_target`."""
