"""A drafter is anybody's code. Whatever it raises, proposes, shows, taps or overwrites, the answer is the target's own.

One table: what a drafter does, and what the trace must say of it ("" = nothing went wrong).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from eventspec.core import Budget, Proposal
from eventspec.engine.policy import DraftPolicy
from eventspec.lanes.workers import Workers

PLAN = DraftPolicy(max_nodes=6, head_nodes=6, patience=1, step_seconds=1)


class Hostile:
    """An honest drafter of the truth; the table overwrites one of its parts."""

    name: Any = "hostile"
    taps: Any = ()
    needs_target: Any = property(lambda self: bool(self.taps))
    concurrent: Any = True

    def __init__(self, truth: list[int]) -> None:
        self.truth, self.n = truth, 0

    def open(self, *parts: Any) -> Any:
        return self

    def propose(self, budget: Budget) -> Any:
        return Proposal.chain(self.ahead(budget))

    def observe(self, verdict: Any, scores: Any) -> None:
        self.n += len(verdict.tokens)

    def ahead(self, budget: Budget) -> np.ndarray[Any, Any]:
        return np.array(self.truth[self.n : self.n + min(budget.max_nodes, budget.max_depth)], np.int64)


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*parts: Any) -> Any:
        raise error

    return act


class Silent(BaseException):
    """Even its text fails."""

    def __str__(self) -> str:
        raise SystemExit(3)


def proposing(make: Callable[[Hostile, Budget], Any]) -> dict[str, Any]:
    return {"propose": lambda self, budget: make(self, budget)}


def showing(make: Callable[[Hostile], Any]) -> dict[str, Any]:
    def propose(self: Hostile, budget: Budget) -> Proposal:
        if budget.show is not None:
            budget.show(make(self))
        return Proposal.chain(self.ahead(budget))

    return {"propose": propose}


class Shouting(str):
    """A text whose parts are of its own class, whatever is done to it."""

    def __str__(self) -> Any:
        raise OSError("no")

    __getitem__ = __format__ = lambda self, *parts: self


class Evil(torch.Tensor):
    """Fails once it has been handed over."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, parts: Any = (), named: Any = None) -> Any:
        if "copied" in vars(cls):
            raise OSError("evil")
        if getattr(function, "__name__", "") == "clone":
            cls.copied = True
        return super().__torch_function__(function, types, parts, named or {})


def opening(act: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """Does something to what it is opened with: request, target, trace."""

    def open_(self: Any, *parts: Any) -> Any:
        act(*parts)
        return self

    return {"open": open_, **more}


def proposes_and(act: Callable[[Any], Any]) -> dict[str, Any]:
    """Keeps the trace, and does something to it with every proposal."""

    def open_(self: Any, request: Any, target: Any, trace: Any) -> Any:
        self.trace = trace
        return self

    def propose(self: Any, budget: Budget) -> Proposal:
        act(self.trace)
        return Proposal.chain(self.ahead(budget))

    return {"open": open_, "propose": propose}


class Changing:
    """Other tokens on every look."""

    parents, probs, origin = np.arange(-1, 0), None, ""
    looks = itertools.count()

    def __len__(self) -> int:
        return 1

    @property
    def tokens(self) -> np.ndarray[Any, Any]:
        return np.full(1, next(self.looks) % 40, np.int64)


class Odd(np.ndarray[Any, Any]):
    """An array type of its own that lies about what it is."""

    def __array_finalize__(self, other: Any) -> None: ...

    def __getitem__(self, places: Any) -> Any:
        raise MemoryError("no")

    def tolist(self) -> Any:
        return ["a"]


def odd(self: Hostile, budget: Budget) -> Proposal:
    tokens = self.ahead(budget).view(Odd)
    return Proposal(tokens, np.arange(-1, len(np.asarray(tokens)) - 1))


def endless() -> Iterator[int]:
    while True:
        yield 1


def bad(*nodes: Any, probs: Any = None) -> dict[str, Any]:
    return proposing(lambda self, budget: Proposal(nodes[0], nodes[1], probs))


ints = lambda *values: np.array(values, np.int64)  # noqa: E731

TABLE: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"raises {type(error).__name__} in {where}": ({where: raising(error)}, type(error).__name__)
        for where in ("open", "propose", "observe")
        for error in (BaseException("panic"), SystemExit(3), GeneratorExit(), KeyboardInterrupt(), MemoryError(), Silent())
    },
    "has a name that fails": ({"name": property(raising(OSError("gone")))}, "OSError: gone"),
    "is concurrent only if asked nicely": ({"concurrent": property(raising(OSError("gone")))}, "OSError: gone"),
    "taps a layer that is not there": ({"taps": (99,)}, "taps layer 99"),
    "taps below the norm": ({"taps": (-2,)}, "taps layer -2"),
    "taps words": ({"taps": ("a",)}, "TypeError"),
    "taps half layers": ({"taps": (0.5,)}, "TypeError"),
    "taps nothing that can be read": ({"taps": None}, "TypeError"),
    "taps twice and out of order": ({"taps": (2, 1, 1)}, ""),
    "proposes nothing": (proposing(lambda self, budget: None), "NoneType is no proposal"),
    "proposes numbers": (proposing(lambda self, budget: [1, 2]), "list is no proposal"),
    "proposes something that changes": (proposing(lambda self, budget: Changing()), ""),
    "proposes an array of its own kind": (proposing(odd), ""),
    "proposes backwards": (proposing(lambda self, budget: Proposal.chain(self.ahead(budget)[::-1].copy()[::-1])), ""),
    "proposes half a million nodes": (bad(np.ones(500_000, np.int64), np.full(500_000, -1)), "500000 nodes"),
    "proposes a loop": (bad(ints(1, 2), ints(1, 0)), "before its parent"),
    "proposes ids that are none": (bad(ints(1 << 40), ints(-1)), "none of the target's 40"),
    "proposes floats": (bad(np.array([1.5]), ints(-1)), "not int64"),
    "proposes two axes": (bad(ints(1, 2)[None], ints(-1, 0)[None]), "not int64"),
    "proposes objects": (bad(np.array([object()]), ints(-1)), "not int64"),
    "drew from nothing": (bad(ints(1), ints(-1), probs=torch.zeros(1, 40)), "no distribution"),
    "drew from what is no number": (bad(ints(1), ints(-1), probs=torch.full((1, 40), torch.nan)), "no distribution"),
    "drew from whole numbers": (bad(ints(1), ints(-1), probs=torch.ones(1, 40, dtype=torch.int64)), "not float"),
    "drew from a list": (bad(ints(1), ints(-1), probs=[[0.1] * 40]), "not a dense tensor"),
    "drew from another vocabulary": (bad(ints(1), ints(-1), probs=torch.full((1, 41), 1 / 41)), "wanted [1, 40]"),
    "drew from a tensor of its own class": (
        proposing(lambda self, budget: Proposal(ints(1), ints(-1), torch.full((1, 40), 1 / 40).as_subclass(Evil))),
        "probs are a Evil",
    ),
    "has a name of its own class": ({"name": Shouting("x"), "propose": raising(OSError("gone"))}, "drafter x failed"),
    "names what it drafted by an own class": (
        proposing(lambda self, budget: Proposal.chain(self.ahead(budget), Shouting("x"))),
        "",
    ),
    "fails with an error of a nameless class": (
        {"propose": raising(type("Odd", (Exception,), {"__str__": raising(OSError("gone"))})("x"))},
        "failed: Odd: (no text)",
    ),
    "taps millions of layers": ({"taps": (1,) * 2_000_000}, "more layers than the target has"),
    "commits for the target": (opening(lambda r, target, t: target.commit(None), taps=(1,)), "no attribute 'commit'"),
    "rescales what is pending": (opening(lambda r, target, t: target.pending.mul_(2), taps=(1,)), "no attribute 'pending'"),
    "rewrites the settings": (
        opening(lambda request, *_: object.__setattr__(request.sampling, "logit_bias", {3: 50.0})),
        "",
    ),
    "takes the trace's forwards away": (proposes_and(lambda trace: setattr(trace, "forwards", None)), "failed: "),
    "counts its forwards in words": (proposes_and(lambda trace: trace.forwards.update(drafter="fast")), "failed: ValueError"),
    "stops the trace's clock": (proposes_and(lambda trace: setattr(trace, "began", None)), ""),
    "fills the trace with what are no spans": (proposes_and(lambda trace: trace.spans.append("x")), "failed: AttributeError"),
    "shows what is below zero": (showing(lambda self: [-5]), "token -5 is none of 40"),
    "shows what is too large": (showing(lambda self: [2**40]), "is none of 40"),
    "shows words": (showing(lambda self: ["a"]), "'a' is no token"),
    "shows halves": (showing(lambda self: [0.5]), "'0.5' is no token"),
    "shows a number": (showing(lambda self: 7), "not iterable"),
    "shows half a million": (showing(lambda self: list(range(40)) * 12_500), ""),
    "shows without end": (showing(lambda self: endless()), ""),
    "shows an error": (showing(lambda self: map(raising(OSError("gone")), [1])), "showed what cannot be read (gone)"),
}


CHANGING = ("proposes something that changes",)


@pytest.mark.parametrize("placement", ["one", "two"])
@pytest.mark.parametrize("kind", TABLE)
def test_whatever_a_drafter_does_the_answer_stays(kind: str, placement: str, tiny: Any, decoded: Any) -> None:
    parts, told = TABLE[kind]
    world, lanes = tiny(1), Workers(placement)
    request = world.request(max_new_tokens=10)
    truth = world.answer(request)
    drafter = type("Table", (Hostile,), parts)(truth)
    ran = decoded(world, drafter, request, PLAN, lanes)
    assert ran.outcome.token_ids == truth
    if told:
        assert any(told in note and "\n" not in note for note in ran.trace.notes), ran.trace.notes
    else:
        assert [note for note in ran.trace.notes if "late" not in note] == []
        assert ran.trace.accepted > 0 or kind in CHANGING, "what is odd and right is of use"
    lanes.close()


def test_a_buffer_that_is_reused_while_the_target_verifies_changes_nothing(
    tiny: Any, decoded: Any, wrapped: Any, two: Workers
) -> None:
    """The wrong draft is overwritten by the right one before the rule walks it: accepted, it would be in the answer without the
    keys that belong to it."""
    world = tiny(1)
    request = world.request(max_new_tokens=10)
    truth, buffers = world.answer(request), list[np.ndarray[Any, Any]]()

    class Reusing(Hostile):
        def propose(self, budget: Budget) -> Proposal:
            right = self.ahead(budget)
            buffers.append((right + 1) % 40)
            return Proposal.chain(buffers[-1])

    def verifying(session: Any, tail: int) -> Any:
        score = session.score

        def overwritten(proposal: Proposal) -> Any:
            scores = score(proposal)
            for buffer in buffers:
                buffer -= 1
            return scores

        session.score = overwritten
        return session

    ran = decoded(world, Reusing(truth), request, PLAN, two, wrapped(world.target, verifying))
    assert ran.outcome.token_ids == truth
    assert ran.trace.accepted == 0


def test_a_plan_that_is_larger_than_the_cache_is_cut_to_it(tiny: Any, oracle: Any, decoded: Any, two: Workers) -> None:
    world = tiny(1)
    request = world.request(max_new_tokens=12)
    truth = world.answer(request)

    def wide(at: int, budget: Budget) -> Proposal:
        chain = truth[at : at + min(4, budget.max_depth)]
        rest = budget.max_nodes - len(chain)
        return Proposal(ints(*chain, *[1] * rest), ints(*range(-1, len(chain) - 1), *[-1] * rest))

    ran = decoded(
        world, oracle(truth, wide), request, DraftPolicy(max_nodes=2000, head_nodes=2000, patience=1, step_seconds=1), two
    )
    assert ran.outcome.token_ids == truth
    assert ran.trace.accepted > 0
    assert ran.trace.notes == []


@pytest.mark.parametrize("feature", ["banned_ids", "bad_words", "least length", "constraint"])
def test_what_the_answer_may_not_say_is_never_shown(feature: str, tiny: Any, oracle: Any, maze: Any, decoded: Any) -> None:
    world = tiny(1)
    free = world.answer(world.request(max_new_tokens=8))
    settings = {
        "banned_ids": {"banned_ids": (free[2],)},
        "bad_words": {"bad_words": ((free[1], free[2]),)},
        "least length": {"stop_ids": (free[2],), "min_new_tokens": 6},
        "constraint": {"constraint": maze(3)},
    }[feature]
    request = world.request(max_new_tokens=8, **settings)
    truth, shown = world.answer(request), list[list[int]]()

    def draft(at: int, budget: Budget) -> Proposal:
        if budget.show is not None and at == 0:
            budget.show(free)
        return Proposal.empty()

    lanes = Workers("one")
    ran = decoded(
        world, oracle(truth, draft), request, PLAN, lanes, cancelled=lambda reader: shown.append(reader.updates) or False
    )
    assert ran.outcome.token_ids == truth
    provisional = [token for update in ran.reader.updates if type(update).__name__ == "Provisional" for token in update.tokens]
    state, allowed = None if feature != "constraint" else maze(3), 0
    for token in free:
        if state is None or not state.mask()[token]:
            break
        state, allowed = state.after(token), allowed + 1
    assert provisional == free[: allowed if feature == "constraint" else 2]
    lanes.close()
