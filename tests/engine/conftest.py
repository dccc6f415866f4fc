"""A tiny real target, an oracle that may lie, and a reader that folds updates. One thread: timing is never asserted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import (
    Budget,
    Committed,
    ConstraintState,
    DraftSession,
    Media,
    Proposal,
    Provisional,
    Request,
    Retracted,
    Sampling,
    Scores,
    Target,
    TargetSession,
    Trace,
    Update,
    Verdict,
)
from eventspec.engine.answer import Outcome
from eventspec.engine.decoding import Asking, Decoding
from eventspec.engine.distribution import choose, position_rng
from eventspec.engine.drafts import Drafts
from eventspec.engine.generate import run
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers
from eventspec.models.prompt import Prompt, TextEncoder
from eventspec.models.session import LanguageTarget
from eventspec.nn import Llama, LlamaConfig
from eventspec.text import StopDetector


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Tiny:
    """A random Llama over 40 tokens in fp64 (no ties by rounding), prompts are numbers in words, and what it must answer."""

    def __init__(self, seed: int, context: int = 96) -> None:
        config = LlamaConfig(40, 16, 24, 2, 2, 1, max_position_embeddings=context)
        self.language = Llama(config).double().requires_grad_(False).eval()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.language.parameters():
            parameter.normal_(0.0, 0.6, generator=generator)
        self.target = LanguageTarget(TextEncoder(self.language, self.reading))
        self.prompt = " ".join(map(str, torch.randint(40, (9,), generator=generator).tolist()))

    def reading(self, question: str) -> Prompt:
        return Prompt(self.language.embed(torch.tensor([int(word) for word in question.split()])), (0, 0))

    def request(self, **sampling: object) -> Request:
        return Request(Media(), self.prompt, Sampling(**sampling))  # type: ignore[arg-type]

    def answer(self, request: Request, beyond: int = 0) -> list[int]:
        """Plain decoding, without cache, tree or engine; `beyond`: this many tokens more, stop tokens or not."""
        text, sampling = [int(word) for word in request.question.split()], request.sampling
        found: list[int] = []
        while len(found) < sampling.max_new_tokens + beyond:
            x = self.language.embed(torch.tensor(text + found))[None]
            hidden = self.language.forward(x, torch.arange(x.shape[1]), x.shape[1], None)
            row, state = self.language.logits(hidden[0, -1]), state_behind(sampling, found)
            found.append(choose(row, found, sampling, state, position_rng(sampling.seed))[0])
            if not beyond and found[-1] in sampling.stop_ids:
                break
        return found


def state_behind(sampling: Sampling, path: Sequence[int]) -> ConstraintState | None:
    """Walked anew from the start: what the engine does step by step."""
    state = None if sampling.constraint is None else sampling.constraint.start()
    for token in path:
        if state is not None:
            state = None if token in sampling.stop_ids else state.after(token)
    return state


@dataclass(frozen=True)
class Maze:
    """A constraint whose mask is another one on every path; `share` of the tokens go on, the last one always."""

    seed: int = 0
    share: float = 0.3
    size: int = 40
    path: tuple[int, ...] = ()

    def start(self) -> Maze:
        return self

    def mask(self) -> np.ndarray[Any, Any]:
        open_ways = np.random.default_rng((self.seed, *self.path)).random(self.size) < self.share
        open_ways[-1] |= self.share > 0
        return open_ways

    def after(self, token: int) -> Maze:
        assert self.mask()[token], "the rule followed a token that the mask forbids"
        return replace(self, path=(*self.path, token))


@dataclass
class Oracle:
    """A drafter that is told the answer, and its own session. `draft(position, budget)` may be anything hostile instead."""

    truth: Sequence[int]
    draft: Callable[[int, Budget], Proposal] | None = None
    concurrent: bool = True
    name: str = "oracle"
    taps: tuple[int, ...] = ()
    needs_target: bool = False
    seen: list[int] = field(default_factory=list)

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        return self

    def propose(self, budget: Budget) -> Proposal:
        at = len(self.seen)
        if self.draft is not None:
            return self.draft(at, budget)
        chain = list(self.truth[at : at + min(budget.max_nodes, budget.max_depth)])
        if budget.show is not None:
            budget.show(chain)
        return Proposal.chain(chain, self.name)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.seen += verdict.tokens.tolist()


def _hostile(truth: list[int], rng: np.random.Generator) -> Callable[[int, Budget], Proposal]:
    """Random trees that follow the truth now and then: right and wrong tokens, deep chains, siblings that repeat a token."""

    def draft(at: int, budget: Budget) -> Proposal:
        tokens, parents, depth, true = list[int](), list[int](), list[int](), {-1}
        for node in range(int(rng.integers(0, budget.max_nodes + 1))):
            eligible = [-1, *(n for n in range(node) if depth[n] + 1 < budget.max_depth)]
            parent = eligible[-1] if rng.random() < 0.5 else int(rng.choice(eligible))
            level = 0 if parent < 0 else depth[parent] + 1
            repeats = [n for n in range(node) if parents[n] == parent]
            right = rng.random() < 0.6 and parent in true and at + level < len(truth)
            token = truth[at + level] if right else int(rng.integers(40))
            if repeats and rng.random() < 0.3:
                token = tokens[int(rng.choice(repeats))]
            if parent in true and at + level < len(truth) and token == truth[at + level]:
                true.add(node)
            tokens.append(token)
            parents.append(parent)
            depth.append(level)
        return Proposal(np.array(tokens, np.int64), np.array(parents, np.int64), origin="hostile")

    return draft


class Wrapped(Target):
    """A target whose sessions are `change`d: (session, tail it was opened with) -> session."""

    lossless = True

    def __init__(self, target: Any, change: Callable[[Any, int], Any]) -> None:
        self.target, self.change, self.limits = target, change, target.limits

    def encode(self, media: Media, trace: Trace) -> Any:
        self.context = self.target.encode(media, trace)
        return self

    def open(self, question: str, sampling: Sampling, tail: int, trace: Trace, taps: tuple[int, ...] = ()) -> Any:
        return self.change(self.context.open(question, sampling, tail, trace, taps), tail)


class Reader:
    """Folds updates as a screen does, and refuses whatever a screen could not show."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.provisional: list[int] = []
        self.updates: list[Update] = []

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        if isinstance(update, Provisional):
            assert update.tokens
            self.provisional += update.tokens
        elif isinstance(update, Retracted):
            assert 0 < update.count <= len(self.provisional)
            del self.provisional[len(self.provisional) - update.count :]
        elif isinstance(update, Committed):
            shown = self.provisional[: len(update.tokens)]
            assert shown == list(update.tokens[: len(shown)]), "a wrong guess stood on the screen when its place was committed"
            del self.provisional[: len(shown)]
            self.committed += update.tokens


def needs_target(drafter: Any) -> bool:
    try:
        return bool(drafter.needs_target)
    except BaseException:
        return False


@dataclass
class Ran:
    outcome: Outcome
    trace: Trace
    reader: Reader


def decode(
    tiny: Tiny,
    drafter: Any,
    request: Request,
    policy: DraftPolicy,
    workers: Workers,
    target: object = None,
    cancelled: Callable[[Reader], bool] = lambda reader: False,
) -> Ran:
    """Run the loop on this thread; what the reader has at the end must be the answer. A token's text is "<number>"."""
    trace, reader = Trace(), Reader()
    stop = StopDetector(request.sampling.stop_ids, request.sampling.stop_strings, lambda ids: "".join(f"<{i}>" for i in ids))
    # A `drafter` that breaks the protocol is sorted as it says, or as one that starts at once.
    drafts = drafter if isinstance(drafter, Drafts) else Drafts(() if needs_target(drafter) else (drafter,), (drafter,))
    asked = Asking(target or tiny.target, request, stop, drafts, policy, reader, lambda: cancelled(reader))  # type: ignore[arg-type]
    outcome = run(Decoding(asked, workers, trace), workers)
    assert reader.committed == outcome.token_ids
    assert reader.provisional == []
    return Ran(outcome, trace, reader)


@pytest.fixture(scope="session")
def tiny() -> Callable[[int], Tiny]:
    made: dict[int, Tiny] = {}

    def get(seed: int = 0) -> Tiny:
        with torch.inference_mode(False):
            return made.setdefault(seed, made.get(seed) or Tiny(seed))

    return get


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle


@pytest.fixture(scope="session")
def hostile() -> Callable[..., Any]:
    return _hostile


@pytest.fixture(scope="session")
def maze() -> type[Maze]:
    return Maze


@pytest.fixture(scope="session")
def behind() -> Callable[..., ConstraintState | None]:
    return state_behind


@pytest.fixture(scope="session")
def decoded() -> Callable[..., Ran]:
    return decode


@pytest.fixture(scope="session")
def wrapped() -> type[Wrapped]:
    return Wrapped


@pytest.fixture(scope="session")
def reader() -> type[Reader]:
    return Reader


@pytest.fixture(scope="session")
def tree() -> Callable[..., Proposal]:
    """tree((token, parent), ...) -> a proposal of chosen nodes."""

    def make(*nodes: tuple[int, int], probs: torch.Tensor | None = None) -> Proposal:
        tokens, parents = np.array([n[0] for n in nodes], np.int64), np.array([n[1] for n in nodes], np.int64)
        return Proposal(tokens, parents, probs, "test")

    return make
