"""An independent language model as a drafter: it sees its own view of the recording, knows nothing of the target, and
starts at once.

It grows one draft tree, best leaf first. Where a cheap `lookahead` is sure how a leaf goes on, its guess is read in the same
forward: if the model agrees, the next levels are known already. Guesses change how fast the tree grows, never what is in it.
What it grew survives a verdict that followed the tree, so the next proposal goes on from there, and drafting never has to stop
while the target verifies. Where a method wants it (`Drafts.writing`), it writes the answer to its end while the target reads
its prompt: what the target does not follow is of use all the same (`drafters.texts`).
"""

from __future__ import annotations

from itertools import pairwise
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Budget, Drafter, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.model_reading import DraftModel, Lookahead, ModelReading, Scored, Written
from eventspec.drafters.native_draft import NativeDraft, native_model
from eventspec.models.prefix import Prefix
from eventspec.models.prompt import Prompt, PromptEncoder
from eventspec.tree import DraftTree

_WIDTH = 4
_CHILDREN = 6
_AHEAD = 6
"""Guessed tokens that are read in one forward, at most."""
_TREE_ROWS = 512
_SMALLEST = 1e-3
"""Tokens below this share are not even remembered. A share, not a path's probability: an unlikely path that is committed
becomes the root, and then what follows it is likely."""
_LEAST = 1e-250
"""Paths below this probability are not written on: the next share could not be computed any more."""

Children = list[tuple[int, float]]
"""Next tokens with their probabilities."""


class LanguageDrafter(Drafter):
    """`encoder` makes the drafter's own prompt, which its language model reads; `natively`: trees grow in machine code where
    that can be; the others as in `DraftModel`."""

    concurrent = True

    def __init__(
        self,
        name: str,
        encoder: PromptEncoder,
        eos_id: int,
        limit: int | None = None,
        lookahead: Lookahead | None = None,
        scored: Scored | None = None,
        natively: bool = False,
    ) -> None:
        self.name, self.encoder = name, encoder
        self.model = DraftModel(name, encoder.language, eos_id, limit, lookahead, scored)
        self._seen: WeakKeyDictionary[Media, tuple[Tensor, Prefix]] = WeakKeyDictionary()
        self._drafts: WeakValueDictionary[int, ModelReading] = WeakValueDictionary()
        self.native = native_model(self.model) if natively and scored is None else None

    def written(self, request: Request) -> Written:
        """What it wrote by now of the answer to a request that is being answered; from any thread."""
        draft = self._drafts.get(id(request))
        return () if draft is None or draft.request is not request else draft.written

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """Vision encoding and prefill of the drafter, as far as no question about the same recording came before."""
        if request.media not in self._seen:
            self._seen[request.media] = self.encoder.encode(request.media, trace, "drafter"), Prefix(self.encoder.language)
        visual, prefix = self._seen[request.media]
        prompt = self.encoder.prompt(request.question, visual)
        began = trace.now()
        where = (self.model, prompt, prefix, request, trace)
        session = LanguageDraft(*where) if self.native is None else NativeDraft(self.native, *where)
        self._drafts[id(request)] = session
        trace.span("prefill", "drafter", began)
        return session


class LanguageDraft(ModelReading, DraftSession):
    """The drafter's tree, whose rows lie in the cache after what was committed."""

    def __init__(self, model: DraftModel, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace) -> None:
        super().__init__(model, prompt, prefix, request, trace, _TREE_ROWS)
        self.eos_id, self.tree = model.eos_id, DraftTree()
        self.visible = np.zeros((_TREE_ROWS, _TREE_ROWS), bool)  # which of the tree's rows every tree row may look at
        self.row_of: dict[int, int] = {}  # expanded node -> its row after the base
        self.tree.grow(-1, self._children(self.hidden, prompt.rows[-1:])[0], 0.0, self.eos_id)

    def propose(self, budget: Budget) -> Proposal:
        """Grow the tree until the budget is used up, then the best of it."""
        self._read()
        floor = max(budget.min_path_prob, _SMALLEST)
        if budget.show is not None and len(self.tree):
            budget.show(self.tree.best_chain())
        while not budget.until() and len(self.tree.expanded) + _WIDTH + _AHEAD <= _TREE_ROWS:
            leaves = self.tree.leaves(_WIDTH, floor, min(budget.max_depth, self.context - self.base), budget.max_nodes)
            if not leaves or sum(self.tree.values[node] for node in leaves) < budget.min_frontier_prob:
                break
            self._expand(leaves)
            if budget.show is not None:
                budget.show(self.tree.best_chain())
        if not self.answer:  # after a verdict it is the rest of an answer
            self.written, _ = self._rated(-1)
        return self.tree.proposal(budget, floor, self.model.name)

    def write_on(self, budget: Budget) -> None:
        if self.answer or not self.written:
            return
        path = self.tree.best_path()
        most = min(budget.max_depth, self.context - self.base)
        while path and len(path) < most and not self._ends(tip := path[-1]) and not budget.until():
            if len(self.tree.expanded) + 1 + _AHEAD > _TREE_ROWS:
                break
            self._expand([tip])
            found, nodes = self._rated(tip)
            self.written += found
            path += nodes

    def _ends(self, node: int) -> bool:
        """Whether nothing follows a node: the answer ends with it, or what followed it was too unlikely to be kept."""
        return self.tree.tokens[node] == self.eos_id or node in self.row_of or self.tree.values[node] < _LEAST

    def _rated(self, after: int) -> tuple[Written, list[int]]:
        """The likeliest path below one of the tree's nodes (-1: the root), and its nodes."""
        path, values = self.tree.best_path(after), self.tree.values
        shares = (values[node] / (1.0 if above < 0 else values[above]) for above, node in pairwise([after, *path]))
        return tuple(zip((self.tree.tokens[node] for node in path), shares, strict=True)), path

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Walk down the tree as far as it foresaw what was committed; keep those rows and what hangs below."""
        tokens = verdict.tokens.tolist()
        self.answer += tokens
        if self.unread:
            self.unread += tokens
            return
        path, below = self.tree.descend(tokens)
        known = [self.row_of[node] for node in path if node in self.row_of]
        alive: list[int] = []
        if len(known) == len(tokens):
            alive = [row for row in self._rows_below(path[-1]) if row not in known]
            self.tree = below
        else:
            self.tree = DraftTree()
            self.unread = tokens[len(known) :]
        self.cache.length = self.base
        self.cache.keep(0, known + alive)
        self.base += len(known)
        kept = self.visible[np.ix_(alive, alive)]
        self.visible[: len(alive)] = False
        self.visible[: len(alive), : len(alive)] = kept
        self.row_of = {node: row for row, node in enumerate(self.tree.expanded)}

    def _rows_below(self, root: int) -> list[int]:
        """Cache rows of expanded nodes under `root`, in order."""
        under = {root}
        for node, parent in enumerate(self.tree.parents):
            if parent in under:
                under.add(node)
        return [row for row, node in enumerate(self.tree.expanded) if node in under]

    def _read(self) -> None:
        """Feed the committed tokens that the tree did not foresee; the tree starts again from them."""
        if not self.unread:
            return
        ahead = self._looked_ahead([], self.base + len(self.unread))
        rows, hidden = self.read_unread(ahead)
        root, *after = self._children(hidden, rows)
        self.tree, self.row_of = DraftTree(), {}
        self.tree.grow(-1, root, 0.0, self.eos_id)
        # The guess was read right after what was committed: its rows lie where the tree's first rows belong.
        for row in range(len(ahead)):
            self.visible[row] = np.arange(_TREE_ROWS) <= row
        self._agree(-1, ahead, after, 0)

    def _looked_ahead(self, path: list[int], position: int) -> list[int]:
        """What is likely to follow the answer and `path`, for rows from `position` on."""
        if self.model.lookahead is None:
            return []
        return self.model.lookahead(self.request.question, self.answer + path)[: max(0, min(_AHEAD, self.context - position))]

    def _agree(self, node: int, ahead: list[int], after: list[Children], row: int) -> None:
        """Take over from a guess after `node`, whose rows begin at `row`, as far as the tree has its tokens."""
        for token, children in zip(ahead, after, strict=True):
            child = self.tree.child(node, token)
            if child is None or token == self.eos_id:
                return
            self.row_of[child] = row
            self.tree.grow(child, children, 0.0, self.eos_id)
            self.tree.expand([child])
            node, row = child, row + 1

    def _expand(self, leaves: list[int]) -> None:
        tree, rows = self.tree, len(self.tree.expanded)
        best = max(leaves, key=lambda leaf: tree.values[leaf])
        tip = self.base + tree.levels[best] + 1
        ahead = self._looked_ahead(tree.path(best), tip)
        width = rows + len(leaves) + len(ahead)
        above = [self.row_of.get(tree.parents[leaf]) for leaf in leaves]
        self.row_of.update(zip(leaves, range(rows, width), strict=False))
        above += [self.row_of[best], *range(rows + len(leaves), width)][: len(ahead)]
        for row, parent in enumerate(above, rows):
            self.visible[row] = False if parent is None else self.visible[parent]
            self.visible[row, row] = True
        visible = np.ones((width - rows, self.base + width), bool)
        visible[:, self.base :] = self.visible[rows:width, :width]
        levels = [self.base + tree.levels[leaf] for leaf in leaves] + list(range(tip, tip + len(ahead)))
        read = self.embedded([tree.tokens[leaf] for leaf in leaves] + ahead)
        self.cache.length = self.base + rows
        positions, mask = torch.tensor(levels, device=read.device), torch.from_numpy(visible).to(read.device)
        known = self._children(self.forward(read, positions, mask), read)
        self.cache.length = self.base
        for leaf, children in zip(leaves, known, strict=False):
            tree.grow(leaf, children, 0.0, self.eos_id)
        tree.expand(leaves)
        self._agree(best, ahead, known[len(leaves) :], rows + len(leaves))

    def _children(self, hidden: Tensor, rows: Tensor) -> list[Children]:
        """The likeliest next tokens after each row [T, D], from the last layer's outputs [T, D]."""
        began = self.trace.now()
        logits = self.language.logits(hidden) if self.model.scored is None else self.model.scored(hidden, rows)
        shares, tokens = logits[..., : self.model.limit].float().softmax(-1).topk(_CHILDREN)
        self.trace.forward("drafter", self.trace.now() - began)
        found = zip(tokens.tolist(), shares.tolist(), strict=True)
        return [[pair for pair in zip(t, s, strict=True) if pair[1] >= _SMALLEST] for t, s in found]
