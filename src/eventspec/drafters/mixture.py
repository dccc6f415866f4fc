"""One tree of several drafters' trees: calibrated probabilities, node by node, under one budget.

A drafter's own probabilities are not comparable with another's: a head is sure of what the target's features say, a text prior
of what answers usually say. So the probability that the target says a token behind its parent is a logistic model of who names
it, how surely, how deep, and who names others instead; it is fitted on calibration questions (`train.mixture`). A token that
two drafters name is worth what the fit says, and so is one that a drafter who spoke did not name. Whether a model drafts at all
behind the prefill is decided by what rounds with it and without gave on those questions, and by what they cost here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from eventspec.core import BadCheckpoint, Budget, Drafter, Proposal
from eventspec.engine.policy import DraftPolicy
from eventspec.files import write_text

SUREST = 6.0
"""Log-odds beyond which a drafter is not believed to be any surer."""
DEEPEST = 16
"""Levels behind which depth makes no further difference."""
BEHIND = 16.0
"""Tokens of an answer behind its head start: what opening a model that reads the prompt is spread over."""
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class SourceWeights:
    """What one drafter's opinion adds to the log-odds of a token behind its parent."""

    named: float = 0.0
    """That it names the token."""
    slope: float = 1.0
    """For each unit of its own log-odds."""
    depth: float = 0.0
    """For each level that the token lies below the root, `DEEPEST` at most."""
    silent: float = 0.0
    """That it names others behind that parent, and not this one."""


@dataclass(frozen=True)
class Rounds:
    """Means of the rounds behind a head start, on calibration questions: tokens that were committed, nodes that were verified,
    levels that a model drafted for it."""

    tokens: float
    nodes: float
    levels: float

    def rate(self, policy: DraftPolicy) -> float:
        """Tokens a target step, at the costs of a policy."""
        opening = policy.open_cost * min(1.0, self.tokens / BEHIND) if self.levels else 0.0
        return self.tokens / (policy.verify_cost + policy.node_cost * self.nodes + policy.level_cost * self.levels + opening)


def is_model(drafter: Drafter) -> bool:
    """Whether it computes on the target's thread, or on one of its own: text costs nothing beside."""
    return drafter.needs_target or drafter.concurrent


def without_models(drafters: Sequence[Drafter]) -> Sequence[Drafter]:
    """The texts among them."""
    return [drafter for drafter in drafters if not is_model(drafter)]


def named(drafters: Sequence[Drafter]) -> str:
    """Drafters by name, as `Mixture.rounds` has them."""
    return "+".join(drafter.name for drafter in drafters)


@dataclass(frozen=True)
class Mixture:
    """The fitted weights, and with them the merge of `engine.drafts`. Without weights for a drafter its probabilities are taken
    as they are, and of several the largest. rounds: what was measured behind the prefill, by `named` drafters."""

    weights: dict[str, SourceWeights] = field(default_factory=dict)
    bias: float = 0.0
    rounds: Mapping[str, Rounds] = field(default_factory=dict)

    def __call__(self, proposals: Sequence[Proposal], budget: Budget) -> Proposal:
        """As `engine.drafts.Merge`."""
        union = Union.of(proposals)
        values = union.path_values(self.shares(union))
        return union.best(values, budget)

    def worth_it(self, drafters: Sequence[Drafter], policy: DraftPolicy) -> Sequence[Drafter]:
        """As `engine.drafts.Select`: all of them, or texts alone, whichever commits more tokens in the time; all where that was
        not measured."""
        measured = set("+".join(self.rounds).split("+"))

        def rounds_of(some: Sequence[Drafter]) -> Rounds | None:
            # A drafter that was not there when rounds were measured adds to either.
            return self.rounds.get(named([drafter for drafter in some if drafter.name in measured]))

        known = [(found.rate(policy), some) for some in (drafters, without_models(drafters)) if (found := rounds_of(some))]
        return drafters if len(known) < 2 else max(known, key=lambda rated: rated[0])[1]

    def shares(self, union: Union) -> Floats:
        """float64 [U]: the probability of every token behind its parent; siblings have 1 together at most."""
        if any(name not in self.weights for name in union.names):
            shares = np.where(union.named, union.own, 0.0).max(1)
        else:
            shares = self.fitted_shares(union.names, union.features())
        together = np.bincount(union.parents + 1, shares, len(shares) + 1)
        return np.asarray(shares / np.maximum(1.0, together[union.parents + 1]))

    def fitted_shares(self, names: Sequence[str], features: Floats) -> Floats:
        """float64 [U]: what the weights of S drafters say of features float64 [U, S, 4] (see `Union.features`), each token for
        itself."""
        found = np.array([[w.named, w.slope, w.depth, w.silent] for w in (self.weights[name] for name in names)])
        return np.asarray(1 / (1 + np.exp(-(self.bias + (features * found).sum((1, 2))))))

    def standing_in(self, places: Mapping[str, str]) -> Mixture:
        """The same, where drafters without weights of their own, the keys, have those of others."""
        more = {name: self.weights[other] for name, other in places.items() if other in self.weights}
        return replace(self, weights={**more, **self.weights})

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        rows = {name: vars(weights) for name, weights in self.weights.items()}
        rounds = {names: vars(found) for names, found in self.rounds.items()}
        write_text(path, json.dumps({"bias": self.bias, "sources": rows, "rounds": rounds}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Mixture:
        """The weights of a file; BadCheckpoint for what is none."""
        try:
            data = json.loads(path.read_text())
            weights = {str(name): SourceWeights(**row) for name, row in data["sources"].items()}
            rounds = {str(names): Rounds(**row) for names, row in data.get("rounds", {}).items()}
            rows = (*weights.values(), *rounds.values())
            numbers = [float(data["bias"]), *(float(value) for row in rows for value in vars(row).values())]
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"{path} holds no weights of a mixture ({error}): train it again") from None
        if not all(map(math.isfinite, numbers)):
            raise BadCheckpoint(f"{path} holds a weight that is no number: train it again")
        return cls(weights, numbers[0], rounds)


@dataclass(frozen=True)
class Union:
    """All nodes of several trees, parents before children: tokens and parents int64 [U], levels int64 [U] (the root's children
    at 0); of S drafters called `names`: who named a node bool [U, S], its own probability behind its parent float64 [U, S], and
    who named any child of the node's parent bool [U, S]."""

    names: tuple[str, ...]
    tokens: np.ndarray[Any, np.dtype[np.int64]]
    parents: np.ndarray[Any, np.dtype[np.int64]]
    levels: np.ndarray[Any, np.dtype[np.int64]]
    named: np.ndarray[Any, np.dtype[np.bool_]]
    own: Floats
    spoke: np.ndarray[Any, np.dtype[np.bool_]]

    @classmethod
    def of(cls, proposals: Sequence[Proposal]) -> Union:
        """The union of trees, each of another drafter; of siblings with the same token in one tree the first counts."""
        tokens, parents, levels = list[int](), list[int](), list[int]()
        child: dict[tuple[int, int], int] = {}
        said: list[tuple[int, int, float]] = []  # node, drafter, its probability behind its parent
        for place, proposal in enumerate(proposals):
            values = [1.0] * len(proposal) if proposal.values is None else proposal.values.tolist()
            at: list[int] = []
            for node, (token, parent) in enumerate(zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True)):
                above = -1 if parent < 0 else at[parent]
                known = child.get((above, token))
                if known is None:
                    known = child[above, token] = len(tokens)
                    tokens.append(token)
                    parents.append(above)
                    levels.append(0 if above < 0 else levels[above] + 1)
                at.append(known)
                said.append((known, place, values[node] / max(1e-12, 1.0 if parent < 0 else values[parent])))
        shape = (len(tokens), len(proposals))
        named, own, spoke = np.zeros(shape, np.bool_), np.zeros(shape), np.zeros((len(tokens) + 1, len(proposals)), np.bool_)
        hung = np.array(parents, np.int64)
        for node, place, share in reversed(said):
            named[node, place], own[node, place] = True, min(1.0, share)
            spoke[parents[node] + 1, place] = True
        names = tuple(proposal.origin for proposal in proposals)
        return cls(names, np.array(tokens, np.int64), hung, np.array(levels, np.int64), named, own, spoke[hung + 1])

    def features(self) -> Floats:
        """float64 [U, S, 4]: what `SourceWeights` weighs."""
        share = np.clip(self.own, 1e-6, 1 - 1e-6)
        odds = np.clip(np.log(share / (1 - share)), -SUREST, SUREST)
        deep = np.minimum(self.levels, DEEPEST)[:, None]
        named = self.named.astype(np.float64)
        return np.stack((named, named * odds, named * deep, self.spoke & ~self.named), 2)

    def path_values(self, shares: Floats) -> Floats:
        """float64 [U]: the probability of every node's whole path."""
        values = shares.tolist()
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                values[node] *= values[parent]
        return np.array(values)

    def best(self, values: Floats, budget: Budget) -> Proposal:
        """The budget's number of most probable nodes, siblings in order of their probability."""
        kept = [
            node
            for node in np.argsort(-values, kind="stable").tolist()
            if values[node] >= budget.min_path_prob and self.levels[node] < budget.max_depth
        ][: budget.max_nodes]
        place = {-1: -1, **{node: at for at, node in enumerate(kept)}}
        above = np.array([place[parent] for parent in self.parents[kept].tolist()], np.int64)
        bits = (self.named[kept] << np.arange(len(self.names))).sum(1).astype(np.int64)
        return Proposal(self.tokens[kept], above, None, "+".join(self.names), np.minimum(1.0, values[kept]), bits)
