"""A drafter with another tokenizer: its drafts reach the target in the target's ids, the answer reaches it in its own.

Two mappings. `retokenize` goes through text: a drafted path is spelled and spelled again by the target's tokenizer, and the
drafter gets whole words of what was committed. `intersect` goes token by token over the pieces that both vocabularies have. The
engine sees proposals in the target's ids only, so both are lossless. What was drawn in one vocabulary has no probability in the
other: every proposal counts as chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

import numpy as np

from eventspec.core import BadInput, Budget, Drafter, DraftSession, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.errors import check_known
from eventspec.text import TokenSpace

MAPPINGS = ("retokenize", "intersect")
_STRETCH = 4
"""How many drafter tokens one target token may need on the long run: room in the drafter's cache, nothing else."""
_REMEMBERED = 4096


class Retokenized(Drafter):
    """`inner` drafts in the ids of `theirs`; the proposals are in the ids of `ours`. BadInput for a drafter that reads the
    target's layers: it shares the target's vocabulary by nature."""

    def __init__(self, inner: Drafter, theirs: TokenSpace, ours: TokenSpace, mapping: str) -> None:
        if inner.needs_target:
            raise BadInput(f"drafter {inner.name} reads the target's layers: it cannot have another vocabulary")
        check_known("vocabulary mapping", [mapping], MAPPINGS)
        self.inner, self.theirs, self.ours, self.mapping = inner, theirs, ours, mapping
        self.name, self.concurrent = inner.name, inner.concurrent
        shared = mapping == "intersect"
        self.to_ours, self.to_theirs = (shared_ids(theirs, ours), shared_ids(ours, theirs)) if shared else ({}, {})

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        most = _STRETCH * request.sampling.max_new_tokens + 32
        stretched = replace(request, sampling=replace(request.sampling, max_new_tokens=most))
        inner = self.inner.open(stretched, target, trace)
        return SharedDraft(inner, self) if self.mapping == "intersect" else TextDraft(inner, self)


def shared_ids(source: TokenSpace, goal: TokenSpace) -> dict[int, int]:
    """The source's id -> the goal's, for pieces that spell the same; the same piece comes before another of that spelling."""
    spelled = {text: token for token, text in reversed(list(enumerate(goal.vocabulary.spelling)))}
    found: dict[int, int] = {}
    for token, text in enumerate(source.vocabulary.spelling):
        same = goal.vocabulary.id_of(source.vocabulary.piece(token) or "")
        if same is not None and text and goal.vocabulary.spelling[same] == text:
            found[token] = same
        elif text and text in spelled:
            found[token] = spelled[text]
    return {**found, source.eos_id: goal.eos_id}


class SharedDraft(DraftSession):
    """Token by token: a draft ends where the target has no such piece; pieces that the drafter lacks it is given spelled."""

    def __init__(self, inner: DraftSession, pair: Retokenized) -> None:
        self.inner, self.pair = inner, pair

    def propose(self, budget: Budget) -> Proposal:
        return _drafted(self.inner, self._ours, budget)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        ids: list[int] = []
        ours, theirs = self.pair.ours.vocabulary, self.pair.theirs.vocabulary
        for token in verdict.tokens.tolist():
            known = self.pair.to_theirs.get(token)
            ids += theirs.respell(ours.spell([token])) if known is None else [known]
        _commit(self.inner, ids, scores)

    def _ours(self, path: list[int]) -> list[int]:
        known = takewhile(lambda token: token in self.pair.to_ours, path)
        return [self.pair.to_ours[token] for token in known]


class TextDraft(DraftSession):
    """Through text. The drafter is given whole words, in its own canonical tokens; the rest of a word that the target has begun
    is `pending`, and only drafts that go on from there are of use. When none does, the drafter is given what is pending."""

    def __init__(self, inner: DraftSession, pair: Retokenized) -> None:
        self.inner, self.ours, self.theirs = inner, pair.ours, pair.theirs
        self.pending = b""
        self._respell = lru_cache(_REMEMBERED)(self.ours.vocabulary.respell)
        self._scores: Scores | None = None  # of the latest verdict

    def propose(self, budget: Budget) -> Proposal:
        proposal = self._propose(budget)
        if not len(proposal) and self.pending and self._scores is not None:
            _commit(self.inner, self.theirs.vocabulary.respell(self.pending), self._scores)
            self.pending = b""
            proposal = self._propose(budget)
        return proposal

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        self.pending += self.ours.vocabulary.spell(verdict.tokens.tolist())
        self._scores = scores
        # A word is whole once the next one begins; its leading space belongs to it.
        cut = max(self.pending.rfind(b" "), self.pending.rfind(b"\n"))
        if cut > 0:
            _commit(self.inner, self.theirs.vocabulary.respell(self.pending[:cut]), scores)
            self.pending = self.pending[cut:]

    def _propose(self, budget: Budget) -> Proposal:
        ahead = len(self.theirs.vocabulary.respell(self.pending)) if self.pending else 0
        return _drafted(self.inner, self._continued, budget, ahead)

    def _continued(self, path: list[int]) -> list[int]:
        """The target's ids for what a drafted path spells after the pending text; none when it spells something else."""
        ends = self.theirs.eos_id in path
        spelled = self.theirs.vocabulary.spell(path[: path.index(self.theirs.eos_id)] if ends else path)
        if not spelled.startswith(self.pending):
            return []
        text = spelled[len(self.pending) :]
        ids = self._respell(text)
        return [*ids, self.ours.eos_id] if ends and self.ours.vocabulary.spell(ids) == text else ids


def _drafted(session: DraftSession, ours: Callable[[list[int]], list[int]], budget: Budget, ahead: int = 0) -> Proposal:
    """What a session proposes, every path in the target's ids; paths may begin with `ahead` tokens that the target has."""
    show = budget.show
    shown = None if show is None else lambda chain: show(ours(chain))
    inner = replace(budget, max_nodes=budget.max_nodes + ahead, max_depth=budget.max_depth + ahead, show=shown)
    proposal = session.propose(inner)
    return _merged(map(ours, _paths(proposal)), budget, proposal.origin)


def _commit(session: DraftSession, ids: list[int], scores: Scores) -> None:
    """Commit ids that no proposal foresaw; sessions go by the tokens."""
    if ids:
        session.observe(Verdict.of(tokens=ids), scores)


def _paths(proposal: Proposal) -> list[list[int]]:
    """Token ids from the root to every leaf; of siblings the first child, the drafter's best, comes first."""
    parents = proposal.parents.tolist()
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    leaves = sorted(paths[node] for node in set(range(len(parents))).difference(parents))
    return [proposal.tokens[path].tolist() for path in leaves]


def _merged(paths: Iterable[list[int]], budget: Budget, origin: str) -> Proposal:
    """One tree of all paths, within the budget."""
    place: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for path in paths:
        node = -1
        for token in path[: budget.max_depth]:
            if (node, token) not in place and len(place) >= budget.max_nodes:
                break
            node = place.setdefault((node, token), len(place))
    parents, tokens = np.array(list(place), np.int64).reshape(-1, 2).T
    return Proposal(tokens.copy(), parents.copy(), origin=origin)
