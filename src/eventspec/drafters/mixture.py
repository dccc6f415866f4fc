"""One tree of several drafters' trees: calibrated probabilities, node by node, under one budget.

A drafter's own probabilities are not comparable with another's. So the probability that the target chooses a token after its
parent is a logistic model of which drafters name it, how surely, how deep, and which name others instead, fitted on calibration
questions (`train.mixture`). Whether a model drafts at all after the prefill, and whether texts draft beside it, is decided by
what rounds gave on those questions, and by what they cost here.
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
from eventspec.drafters.texts import ReusedDrafter
from eventspec.engine.policy import DraftPolicy
from eventspec.files import parsed, write_text

SUREST = 6.0
"""Log-odds beyond which a drafter is not believed to be any surer."""
DEEPEST = 16
"""Levels after which depth makes no further difference."""
AFTER = 16.0
"""Tokens of an answer after its head start: what opening a model that reads the prompt is spread over."""
ENDING = 8.0
"""What the token that ends an answer saves, in tokens: a whole round, which costs some two steps where a token saves a quarter
of one (`engine.policy`)."""
TEXTS_SECONDS = 0.0006
"""What a round takes longer where texts draft beside a model: their trees, and a merge of more of them. (Without them the
bundled pair answers 1.016 and 1.020 times as fast, 1.3 ms of two rounds; n = 120 and 130, AMD EPYC.)"""
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class SourceWeights:
    """What one drafter adds to the log-odds of a token after its parent: `named` where it names the token, with `slope` for
    each unit of its own log-odds and `depth` for each level below the root, `DEEPEST` at most; `silent` where it names only
    others after that parent."""

    named: float = 0.0
    slope: float = 1.0
    depth: float = 0.0
    silent: float = 0.0


@dataclass(frozen=True)
class Rounds:
    """Means of the rounds after a head start, on calibration questions: tokens that were committed, nodes that were verified,
    levels that a model drafted for it."""

    tokens: float
    nodes: float
    levels: float

    def rate(self, policy: DraftPolicy, more: float = 0.0) -> float:
        """Tokens a target step, at the costs of a policy and `more` seconds a round."""
        opening = policy.open_cost * min(1.0, self.tokens / AFTER) if self.levels else 0.0
        verifying = policy.verify_cost + policy.node_cost * self.nodes
        return self.tokens / (verifying + policy.level_cost * self.levels + opening + more / policy.step_seconds)


WRITTEN = SourceWeights(named=-0.26, slope=0.55, depth=0.09, silent=-0.97)
"""Of `ReusedDrafter`, for a mixture that was fitted before there was one: as fitted on a bundled pair, 400 questions."""


def is_model(drafter: Drafter) -> bool:
    """Whether it computes, on the target's thread or another: texts cost nothing beside."""
    return drafter.needs_target or drafter.concurrent


def without_models(drafters: Sequence[Drafter]) -> Sequence[Drafter]:
    """The texts among them."""
    return [drafter for drafter in drafters if not is_model(drafter)]


def without_blind_texts(drafters: Sequence[Drafter]) -> Sequence[Drafter]:
    """The models among them, and what a model wrote."""
    return [drafter for drafter in drafters if is_model(drafter) or isinstance(drafter, ReusedDrafter)]


def named(drafters: Sequence[Drafter]) -> str:
    """Drafters by name, as `Mixture.rounds` has them."""
    return "+".join(drafter.name for drafter in drafters)


@dataclass(frozen=True)
class Mixture:
    """The fitted weights, and with them the merge of `engine.drafts`. Without weights for a drafter its probabilities are taken
    as they are, and of several the largest. rounds: what was measured after the prefill, by `named` drafters; `end`: the
    target's token that ends an answer, -1: not known."""

    weights: dict[str, SourceWeights] = field(default_factory=dict)
    bias: float = 0.0
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    end: int = -1

    def __call__(self, proposals: Sequence[Proposal], budget: Budget) -> Proposal:
        """As `engine.drafts.Merge`."""
        union = Union.of(proposals)
        return union.best(union.path_values(self.shares(union)), budget, self.end)

    def worth_it(self, drafters: Sequence[Drafter], policy: DraftPolicy) -> Sequence[Drafter]:
        """As `engine.drafts.Select`: models with what they wrote, all of them, or texts alone, whichever commits most tokens in
        the time; all where that, or a cost, was not measured. Blind texts add nothing to a model unless that was measured:
        HiViS's head on the bundled pair takes 2.6 rounds an answer with them and 2.6 without."""
        measured = set("+".join(self.rounds).split("+"))

        def rounds_of(some: Sequence[Drafter]) -> Rounds | None:
            # A drafter that was not there when rounds were measured adds to either.
            return self.rounds.get(named([drafter for drafter in some if drafter.name in measured]))

        models, texts = without_blind_texts(drafters), without_models(drafters)
        whole, blind = rounds_of(drafters), rounds_of(texts)
        if (
            policy.guessed
            or whole is None
            or blind is None
            or not any(is_model(one) and one.name in measured for one in drafters)
        ):
            return drafters
        known = [
            ((rounds_of(models) or whole).rate(policy), models),
            (whole.rate(policy, TEXTS_SECONDS), drafters),
            (blind.rate(policy), texts),
        ]
        return max(known, key=lambda found: found[0])[1]

    def shares(self, union: Union) -> list[float]:
        """Of every node the probability of its token after its parent; siblings have 1 together at most."""
        if all(name in self.weights for name in union.names):
            shares: list[float] = self.fitted_shares(union.names, union.features()).tolist()
        else:
            shares = [max(own) for own in union.own]
        together = [0.0] * (len(shares) + 1)
        for parent, share in zip(union.parents, shares, strict=True):
            together[parent + 1] += share
        return [share / max(1.0, together[parent + 1]) for parent, share in zip(union.parents, shares, strict=True)]

    def fitted_shares(self, names: Sequence[str], features: Floats) -> Floats:
        """float64 [U]: what the weights of S drafters make of features float64 [U, S, 4] (see `Union.features`), each token for
        itself."""
        found = np.array([[w.named, w.slope, w.depth, w.silent] for w in (self.weights[name] for name in names)])
        return np.asarray(1 / (1 + np.exp(-(self.bias + (features * found).sum((1, 2))))))

    def standing_in(self, places: Mapping[str, str]) -> Mixture:
        """The same, where drafters without weights, the keys, have those of others, and their rounds."""
        like = {name: other for name, other in places.items() if name not in self.weights and other in self.weights}
        rounds = dict(self.rounds)
        for name, other in like.items():
            for names, found in self.rounds.items():
                rounds.setdefault("+".join(name if one == other else one for one in names.split("+")), found)
        more = {name: self.weights[other] for name, other in like.items()}
        return replace(self, weights={**more, **self.weights}, rounds=rounds)

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        rows = {name: vars(weights) for name, weights in self.weights.items()}
        rounds = {names: vars(found) for names, found in self.rounds.items()}
        write_text(path, json.dumps({"bias": self.bias, "sources": rows, "rounds": rounds}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Mixture:
        """The weights of a file; BadCheckpoint for what is none."""
        try:
            data = parsed(path.read_bytes())
            weights = {str(name): SourceWeights(**row) for name, row in data["sources"].items()}
            rounds = {str(names): Rounds(**row) for names, row in data.get("rounds", {}).items()}
            rows = (*weights.values(), *rounds.values())
            numbers = [float(data["bias"]), *(float(value) for row in rows for value in vars(row).values())]
        except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"{path} holds no weights of a mixture ({error}): train it again") from None
        if not all(map(math.isfinite, numbers)):
            raise BadCheckpoint(f"{path} holds a weight that is no number: train it again")
        return cls(weights, numbers[0], rounds)


@dataclass(frozen=True)
class Union:
    """All nodes of several trees, parents before children, each with its token, its parent (-1: the root) and its level (the
    root's children at 0). Of the drafters called `names`, `own` has each one's probability of a node after its parent, below 0
    where it did not name the node; `spoke` has a bit for each that named any child of a node, the root's first."""

    names: tuple[str, ...]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    own: list[list[float]] = field(default_factory=list)
    spoke: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def of(cls, proposals: Sequence[Proposal]) -> Union:
        """The union of trees, each of another drafter; of siblings with the same token in one tree the first counts."""
        made = cls(tuple([proposal.origin for proposal in proposals]))
        children: list[dict[int, int]] = [{}]  # by token, of the root and of every node
        for place, proposal in enumerate(proposals):
            tokens, parents, at = proposal.tokens.tolist(), proposal.parents.tolist(), list[int]()
            values = [1.0] * len(tokens) if proposal.values is None else proposal.values.tolist()
            for token, parent, value in zip(tokens, parents, values, strict=True):
                above = -1 if parent < 0 else at[parent]
                node = children[above + 1].get(token)
                if node is None:
                    node = children[above + 1][token] = len(made.tokens)
                    children.append({})
                    made.tokens.append(token)
                    made.parents.append(above)
                    made.levels.append(0 if above < 0 else made.levels[above] + 1)
                    made.own.append([-1.0] * len(proposals))
                    made.spoke.append(0)
                at.append(node)
                if made.own[node][place] < 0:
                    made.own[node][place] = min(1.0, value / max(1e-12, 1.0 if parent < 0 else values[parent]))
                made.spoke[above + 1] |= 1 << place
        return made

    def features(self) -> Floats:
        """float64 [U, S, 4] of U nodes and S drafters: what `SourceWeights` weighs."""
        found = np.zeros((len(self.tokens), len(self.names), 4))
        for node, parent in enumerate(self.parents):
            for place, share in enumerate(self.own[node]):
                if share >= 0:
                    found[node, place, :3] = 1.0, log_odds(share), min(self.levels[node], DEEPEST)
                else:
                    found[node, place, 3] = self.spoke[parent + 1] >> place & 1
        return found

    def path_values(self, shares: Sequence[float]) -> list[float]:
        """Of every node the probability of its whole path."""
        values = list(shares)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                values[node] *= values[parent]
        return values

    def best(self, values: Sequence[float], budget: Budget, end: int = -1) -> Proposal:
        """The budget's number of most probable nodes, siblings in order of their probability; on a path to the token `end` also
        less probable ones, where together they are worth it, see `ENDING`."""
        floor, deepest = budget.min_path_prob, budget.max_depth
        worth = self._ending(values, budget, end)
        likeliest = sorted(range(len(worth)), key=lambda node: -worth[node])
        kept = [node for node in likeliest if worth[node] >= floor and self.levels[node] < deepest][: budget.max_nodes]
        place = {-1: -1, **{node: at for at, node in enumerate(kept)}}
        bits = [sum([1 << at for at, share in enumerate(self.own[node]) if share >= 0]) for node in kept]
        columns = [self.tokens[node] for node in kept], [place[self.parents[node]] for node in kept], bits
        tokens, parents, sources = (np.array(column, np.int64) for column in columns)
        shares = np.array([min(1.0, values[node]) for node in kept], np.float64)
        return Proposal(tokens, parents, None, "+".join(self.names), shares, sources)

    def _ending(self, values: Sequence[float], budget: Budget, end: int) -> Sequence[float]:
        """The values, raised to the budget's floor on paths to `end` that save more than their nodes cost, and fit into it."""
        worth, floor = list(values), budget.min_path_prob
        room = budget.max_nodes - sum(value >= floor for value in values)
        for node, token in enumerate(self.tokens):
            path, at = list[int](), node if token == end and self.levels[node] < budget.max_depth else -1
            while at >= 0 and worth[at] < floor:
                path.append(at)
                at = self.parents[at]
            if 0 < len(path) <= room and ENDING * values[node] + sum(values[at] for at in path) >= floor * len(path):
                room -= len(path)
                for at in path:
                    worth[at] = floor
        return worth


def log_odds(share: float) -> float:
    """Of a probability; a drafter is believed to be no surer than `SUREST`."""
    share = min(1 - 1e-6, max(1e-6, share))
    return min(SUREST, max(-SUREST, math.log(share / (1 - share))))
