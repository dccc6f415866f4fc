"""An independent language model as a drafter: it sees its own view of the recording, knows nothing of the target, and
starts at once.

It grows one draft tree, best leaf first. Where a cheap `lookahead` is sure how a leaf goes on, its guess is read in the same
forward: if the model agrees, the next levels are known already. Guesses change how fast the tree grows, never what is in it.
What it grew survives a verdict that followed the tree, so the next proposal goes on from there, and drafting never has to stop
while the target verifies. Where a method wants it (`Drafts.writing`), it writes the answer to its end while the target reads
its prompt: what the target does not follow is of use all the same (`drafters.texts`).

The trees of a small model are grown in machine code where that can be, a whole tree in one call: a level takes a tenth of the
forward of some thirty operations of torch (`nn/cpu/draft_tree.c`). So there every draft is a tree from scratch, and only what
was committed is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Budget, Drafter, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.models.prompt import Prompt, PromptEncoder, looks_at_target
from eventspec.models.session import Prefix
from eventspec.nn import Llama
from eventspec.nn.cpu.native import NativeHead
from eventspec.nn.layer import layer_weights
from eventspec.nn.runner import Rows
from eventspec.nn.weights import HeadWeights, TreeGrowth
from eventspec.tree import DraftTree, best_chain, best_nodes

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
_LEVELS = 32
"""Levels of a tree in machine code, at most: as many as a head start has nodes."""
_FEWER = 12
"""The same where the target waits already: it has most of what is accepted, in 0.7 ms."""
_SPARE = 64
"""Rows of its cache beyond an answer's own: such trees need none."""
_WRITTEN = 16
"""Tokens that it writes on before it reads them: what is drafted together is looked up row by row."""

Written = tuple[tuple[int, float], ...]
"""Tokens of an answer from its beginning on, each with the probability that its writer gave it after those before."""
Lookahead = Callable[[str, Sequence[int]], list[int]]
"""(question, answer so far) -> the tokens that are likely to follow, at best a few; [] where that is not clear."""
Children = list[tuple[int, float]]
"""Next tokens with their probabilities."""
Grown = tuple[Tensor, Tensor, Tensor]
"""Tokens, parents (-1: the root) and logarithms of path probabilities, [M] each, in level order, siblings likeliest first."""


@dataclass(frozen=True)
class Scored:
    """What names a drafter's tokens in the place of its own head: `logits` float [T, V] of what follows rows [T, D], from the
    last layer's outputs and, behind them, those of the layers `taps`, [T, (1 + taps) * D], and the rows. Of a single row they
    may be those of several tokens after it, [M, V], where those need no token between."""

    logits: Callable[[Tensor, Tensor, Media, Trace], Tensor]
    taps: tuple[int, ...] = ()


@dataclass(frozen=True)
class DraftModel:
    """A language model that drafts: `eos_id` is its end-of-text id; ids from `limit` on are never drafted (rows without a
    token, tokens that the target does not share); `lookahead` is read ahead; `scored` replaces the model's own head."""

    name: str
    language: Llama
    eos_id: int
    limit: int | None = None
    lookahead: Lookahead | None = None
    scored: Scored | None = None


class ModelReading(DraftSession):
    """A prompt that is read, as far as no question before shared it, in a cache with `spare` rows for drafts.

    hidden: the last layer's output of the last row that was read, [1, D]; base: rows of the cache that are committed; unread:
    committed tokens that are not in it; written: the answer as the drafter would give it, as far as it went.
    """

    def __init__(self, model: DraftModel, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace, spare: int) -> None:
        self.model, self.language, self.request, self.trace = model, model.language, request, trace
        self.context, most = self.language.config.max_position_embeddings, request.sampling.max_new_tokens
        self.base = len(prompt.rows)
        reading, self._loan = prefix.begin(prompt, min(self.context, self.base + most + 2) + spare)
        self.cache = reading.cache
        rows = prompt.rows[reading.rows :]
        self.hidden = self.forward(rows, wanted=1)
        reading.add(len(rows), {})
        self.cache.keep(len(rows), [])
        self.answer, self.unread = list[int](), list[int]()
        self.written: Written = ()

    def embedded(self, tokens: list[int]) -> Tensor:
        """Rows [T, D] of tokens."""
        rows: Tensor = self.language.embed(torch.tensor(tokens, device=self.language.embed.weight.device))
        return rows

    def forward(
        self, rows: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, wanted: int | None = None
    ) -> Tensor:
        """Read rows [T, D] after the cached ones; the last layer's output for all of them, or the last `wanted`, with those
        of `Scored.taps` behind."""
        began, taps = self.trace.now(), () if self.model.scored is None else self.model.scored.taps
        hidden, tapped = self.language.runner().step(Rows(rows, self.cache, positions, mask), taps, wanted)
        self.trace.forward("drafter", self.trace.now() - began)
        return torch.cat((hidden, *(layer[-len(hidden) :] for layer in tapped)), -1) if taps else hidden

    def read_unread(self, ahead: list[int]) -> tuple[Tensor, Tensor]:
        """Read what is unread, which is committed, and `ahead` behind it: rows and the last layer's outputs [1 + A, D] from the
        last committed one on. ValueError for what the model has no row or position for: on CUDA such an index ends the whole
        process's use of the device, the target's included."""
        if (largest := max(self.unread)) >= self.language.config.vocab_size:
            raise ValueError(f"token {largest} is none of the drafter's {self.language.config.vocab_size}")
        if (rows := self.base + len(self.unread)) > self.context:
            raise ValueError(f"the answer reaches row {rows} of the drafter's context of {self.context}")
        self.cache.length, wanted = self.base, 1 + len(ahead)
        read = self.embedded(self.unread + ahead)
        hidden = self.forward(read, wanted=wanted)
        self.cache.keep(len(self.unread), [])
        self.base, self.unread = rows, []
        return read[-wanted:], hidden


class LanguageDraft(ModelReading):
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
        scored = self.model.scored
        logits = self.language.logits(hidden) if scored is None else scored.logits(hidden, rows, self.request.media, self.trace)
        shares, tokens = logits[..., : self.model.limit].float().softmax(-1).topk(_CHILDREN)
        self.trace.forward("drafter", self.trace.now() - began)
        found = zip(tokens.tolist(), shares.tolist(), strict=True)
        return [[pair for pair in zip(t, s, strict=True) if not pair[1] < _SMALLEST] for t, s in found]  # NaN too: `grow` tells


def native_model(model: DraftModel) -> NativeHead | None:
    """A language model as trees are grown with it; None where that cannot be."""
    language, first = model.language, model.language.decoder_layer(0)
    layers = [layer_weights(language.decoder_layer(number)) for number in range(language.config.num_hidden_layers)]
    head, norm = language.head.weight.detach()[: model.limit], language.norm.detach()
    return NativeHead.of(HeadWeights(layers, head, first.heads, first.eps, out_norm=norm))


class NativeDraft(ModelReading):
    def __init__(
        self, native: NativeHead, model: DraftModel, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace
    ) -> None:
        super().__init__(model, prompt, prefix, request, trace, _SPARE)
        self.native, self._tables = native, [self.language.embed.weight, self.language.cos, self.language.sin]
        self._known: tuple[tuple[int, float, float], Grown] | None = None  # the latest tree, and the limits it was grown to

    def propose(self, budget: Budget) -> Proposal:
        if self.unread:
            _, self.hidden = self.read_unread([])
            self._known = None
        most = min(_FEWER if budget.until() else _LEVELS, budget.max_depth, self.context - self.base)
        how = max(1, most), budget.min_path_prob, budget.min_frontier_prob
        if self._known is None or self._known[0] != how:
            self._known = how, self._grown(self.hidden, self.base, _WIDTH, *how)
        tokens, parents, logs = self._known[1]
        proposal = best_nodes(tokens.numpy(), parents.numpy(), logs.numpy(), budget, self.model.name)
        if budget.show is not None:
            budget.show(best_chain(proposal))
        if not self.answer:  # after a verdict it is the rest of an answer
            path = best_chain(Proposal(np.arange(len(tokens)), parents.numpy()))  # its nodes
            self.written = _with_shares(tokens[path], logs[path])
        return proposal

    def write_on(self, budget: Budget) -> None:
        most, read = min(budget.max_depth, self.context - self.base), 0
        while not self.answer and self.written and len(self.written) < most and not budget.until():
            tokens = [token for token, _ in self.written]
            if tokens[-1] == self.model.eos_id:
                break
            # Rows after what was committed, where the next verdict's will lie.
            hidden = self.forward(self.embedded(tokens[read:]), wanted=1)
            self.cache.keep(len(tokens) - read, [])
            read = len(tokens)
            more, _, logs = self._grown(hidden, self.base + read, 1, min(_WRITTEN, most - read), 0.0, 0.0)
            self.written += _with_shares(more, logs)
        self.cache.length = self.base

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """It is read when the next draft is wanted."""
        tokens = verdict.tokens.tolist()
        self.answer += tokens
        self.unread += tokens

    def _grown(self, hidden: Tensor, rows: int, width: int, levels: int, floor: float, mass: float) -> Grown:
        """A tree after so many rows, whose last one gave `hidden` [1, D]."""
        began, growth = self.trace.now(), TreeGrowth(width, levels, floor, mass, self.model.eos_id, rows - 1, [])
        found = self.native.grow(hidden, growth, self._tables, self.cache)
        self.trace.forward("drafter", self.trace.now() - began)
        return found


def _with_shares(tokens: Tensor, logs: Tensor) -> Written:
    """A path [M], each token with its probability after the one before; logs [M] are those of the path's probabilities."""
    shares = np.exp(np.diff(logs.numpy().astype(np.float64), prepend=0.0))
    return tuple(zip(tokens.tolist(), shares.tolist(), strict=True))


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
        self._seen: WeakKeyDictionary[Media, tuple[Tensor, Prefix, bool]] = WeakKeyDictionary()
        self._drafts: WeakValueDictionary[int, ModelReading] = WeakValueDictionary()
        self.native = native_model(self.model) if natively and scored is None else None

    def written(self, request: Request) -> Written:
        """What it wrote by now of the answer to a request that is being answered; from any thread."""
        draft = self._drafts.get(id(request))
        return () if draft is None or draft.request is not request else draft.written

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """Vision encoding and prefill of the drafter, as far as no question about the same recording came before."""
        looked = looks_at_target(self.encoder, request.media)
        if request.media not in self._seen or self._seen[request.media][2] != looked:
            visual = self.encoder.encode(request.media, trace, "drafter")
            self._seen[request.media] = visual, Prefix(self.encoder.language), looked
        visual, prefix, _ = self._seen[request.media]
        prompt = self.encoder.prompt(request.question, visual)
        trace.sizes["drafter"] = prompt.visual[1] - prompt.visual[0]
        began = trace.now()
        session = self._draft(prompt, prefix, request, trace)
        self._drafts[id(request)] = session
        trace.span("prefill", "drafter", began)
        return session

    def _draft(self, prompt: Prompt, prefix: Prefix, request: Request, trace: Trace) -> ModelReading:
        if self.native is not None:
            return NativeDraft(self.native, self.model, prompt, prefix, request, trace)
        return LanguageDraft(self.model, prompt, prefix, request, trace)
