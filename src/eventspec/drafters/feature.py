"""A head on the target's features as a drafter: it reads what the target computed, drafts a tree from the last verified
feature, and re-reads the true features of what was committed (EAGLE-1, 2 and 3 alike; the head decides).

Pairs: the feature of a token together with the embedding of the token behind it. The first pairs are the prompt's; `PromptView`
says which of them the head gets to see.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.core import Budget, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.vispec import VispecHead
from eventspec.nn import KVCache, Llama, LlamaConfig
from eventspec.nn.cache import LentCache, Loan
from eventspec.nn.draft import DraftKernel, TreeConfig, fixed_tree
from eventspec.nn.llama import rope_tables
from eventspec.tree import best_chain, best_nodes


class FeatureHead(Protocol):
    """What the drafter needs of a head; `drafters.eagle` and `drafters.eagle3` are two."""

    taps: tuple[int, ...]

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]."""

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings and features [..., D] -> what the attention reads [..., I], and the residual [..., D]; rows that are
        `embedding_only` have no feature."""

    def kernel(self, target: Llama) -> DraftKernel:
        """The weights of the drafting pass."""


@dataclass(frozen=True)
class HeadInputs:
    """Embeddings float [M, D], tapped outputs float [M, F], and positions in the target's prompt int64 [M]; `embedding_only`
    bool [M]: which rows have no feature; `global_feature` float [D]: a vector of all visual rows that is fused into every
    feature (ViSpec)."""

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    embedding_only: Tensor | None = None
    global_feature: Tensor | None = None

    def followed_by(self, more: HeadInputs) -> HeadInputs:
        """These, and more behind them that have all their features."""
        plain = self.embedding_only
        return HeadInputs(
            torch.cat((self.embeds, more.embeds)),
            torch.cat((self.tapped, more.tapped)),
            torch.cat((self.positions, more.positions)),
            None if plain is None else torch.cat((plain, plain.new_zeros(len(more.embeds)))),
            self.global_feature,
        )

    def behind(self, rows: int) -> HeadInputs:
        """Without the first `rows`."""
        plain = self.embedding_only
        parts = (self.embeds[rows:], self.tapped[rows:], self.positions[rows:], None if plain is None else plain[rows:])
        return HeadInputs(*parts, self.global_feature)

    def shared(self, other: HeadInputs) -> int:
        """How many of the first pairs are the other's too, one of the other's left out."""
        most = min(len(self.embeds), len(other.embeds) - 1)
        same = (self.positions[:most] == other.positions[:most]) & (self.embeds[:most] == other.embeds[:most]).all(1)
        same &= (self.tapped[:most] == other.tapped[:most]).all(1)
        if self.embedding_only is not None and other.embedding_only is not None:
            same &= self.embedding_only[:most] == other.embedding_only[:most]
        different = (~same).nonzero()
        return int(different[0]) if len(different) else most


PromptView = Callable[[HeadInputs, tuple[int, int]], HeadInputs]
"""(all pairs of the prompt, where the visual ones lie) -> those the head sees."""


def full_prompt(inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
    """The head sees the whole prompt."""
    return inputs


def decoupled(inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
    """Pairs whose next row is visual are that row alone (MSD)."""
    order = torch.arange(len(inputs.embeds), device=inputs.embeds.device)
    return replace(inputs, embedding_only=(order >= visual[0] - 1) & (order < visual[1] - 1))


def adapted(head: VispecHead) -> PromptView:
    """A few vectors instead of the pairs whose next row is visual, where the last of these stood (ViSpec)."""

    def seen(inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        if visual[0] == visual[1]:
            nothing = torch.zeros_like(inputs.tapped[0])
            return replace(inputs, tapped=head.fuse_global(inputs.tapped, nothing), global_feature=nothing)
        begin, end = max(0, visual[0] - 1), visual[1] - 1
        vectors, whole = head.adaptor(inputs.embeds[begin:end])
        first = max(begin, end - len(vectors))  # a span that is shorter than the vectors are many takes the last of them
        vectors = vectors[len(vectors) - (end - first) :]
        order = torch.arange(len(inputs.embeds), device=whole.device)
        kept = (order < begin) | (order >= first)
        tapped = head.fuse_global(inputs.tapped, whole * (order >= begin)[:, None])
        return HeadInputs(
            torch.cat((inputs.embeds[:begin], vectors, inputs.embeds[end:])),
            tapped[kept],
            inputs.positions[kept],
            ((order >= begin) & (order < end))[kept],
            whole,
        )

    return seen


def compressed(elastic: Elastic) -> PromptView:
    """The head sees the visual pairs through a compressor, which looks at the question's features."""

    def seen(inputs: HeadInputs, visual: tuple[int, int]) -> HeadInputs:
        begin, end = visual
        rows = torch.cat((inputs.embeds[begin:end], inputs.tapped[begin:end]), 1)
        kept, places = elastic(rows, inputs.tapped[end:])
        embeds, tapped = kept.chunk(2, 1)
        return HeadInputs(
            torch.cat((inputs.embeds[:begin], embeds, inputs.embeds[end:])),
            torch.cat((inputs.tapped[:begin], tapped, inputs.tapped[end:])),
            torch.cat((inputs.positions[:begin], inputs.positions[begin:end][places], inputs.positions[end:])),
        )

    return seen


STATIC = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)
"""EAGLE-1's tree of 25 drafts in five levels, as its code ships it."""
LEVELS = 24
"""As deep as drafts are likely to pay: EAGLE-2's 6 and 8 levels were set by hand."""
TREES = {"dynamic": TreeConfig(levels=LEVELS), "published": fixed_tree(STATIC), "chain": TreeConfig(1, LEVELS)}
"""EAGLE-2's dynamic tree, the fixed one that EAGLE-1's code ships, and no tree at all."""


class FeatureDrafter:
    """`head` drafts for `target`, whose vocabulary and width `sizes` have; `eos_id` is the last token of an answer."""

    needs_target = True
    concurrent = False

    def __init__(
        self,
        name: str,
        head: FeatureHead,
        sizes: LlamaConfig,
        target: Llama,
        eos_id: int,
        tree: TreeConfig,
        view: PromptView = full_prompt,
    ) -> None:
        weight = target.embed.weight
        self.name, self.head, self.sizes, self.eos_id, self.view = name, head, sizes, eos_id, view
        self.taps, self.embed, self.kernel, self.tree = head.taps, target.embed, head.kernel(target), tree.on(weight.device)
        self._read: WeakKeyDictionary[Media, _PromptRead] = WeakKeyDictionary()
        # As long as the target's context, whatever the head's config says: rotation has no weights.
        self.context = target.config.max_position_embeddings
        cos, sin = rope_tables(sizes, self.context)
        self.tables = cos.to(weight), sin.to(weight)

    def with_tree(self, tree: TreeConfig) -> FeatureDrafter:
        """The same head, growing another kind of tree."""
        twin = copy(self)
        twin.tree, twin._read = tree.on(self.embed.weight.device), WeakKeyDictionary()
        return twin

    def begun(self, media: Media, inputs: HeadInputs, rows: int) -> tuple[KVCache, Loan]:
        """A cache of at least `rows` rows that has as much of a prompt as questions about the same recording shared with it;
        at least the last pair is left to be read."""
        known = self._read.get(media)
        if known is None:
            sizes, weight = self.sizes, self.embed.weight
            cache = KVCache(self.kernel.blocks, sizes.num_key_value_heads, sizes.head_dim, rows, weight.dtype, weight.device)
            known = self._read[media] = _PromptRead(inputs, LentCache(cache))
            return known.lent.lend(0, rows)
        shared = min(known.inputs.shared(inputs), known.lent.cache.length)
        found, loan = known.lent.lend(shared, rows)
        if found is known.lent.cache:
            known.inputs = inputs
        return found, loan

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`; the target's session must have been opened with this drafter's taps."""
        assert target is not None
        return FeatureDraft(self, request, target, trace)


@dataclass
class _PromptRead:
    """What a cache that is lent from question to question begins with."""

    inputs: HeadInputs
    lent: LentCache


class FeatureDraft:
    """The head's cache, and the committed tokens with their features that it has not read yet."""

    def __init__(self, drafter: FeatureDrafter, request: Request, target: TargetPrompt, trace: Trace) -> None:
        self.drafter, self.request, self.target, self.trace = drafter, request, target, trace
        self.tokens: list[int] = []
        self.tapped: list[Tensor] = []
        self.cache: KVCache | None = None
        self.kernel = drafter.kernel
        self.global_feature: Tensor | None = None  # fused into every feature, [D]
        self.root: Tensor | None = None  # the predicted feature behind the last pair that was read, [1, D]
        self.position = 0  # behind the last pair that was read

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Keep what was committed with the features it was judged from; it is read when the next draft is wanted."""
        if scores.features is None:
            raise ValueError("the target gave no features: it does not know the layers that this head reads")
        rows = torch.from_numpy(np.concatenate(([0], verdict.path + 1)))
        self.tokens += verdict.tokens.tolist()
        self.tapped.append(scores.features[rows.to(scores.features.device)])

    def propose(self, budget: Budget) -> Proposal:
        """As `core.DraftSession.propose`."""
        drafter, began = self.drafter, self.trace.now()
        if self.tokens:
            self.root = self._read()
        root, cache = self.root, self.cache
        assert root is not None and cache is not None
        # A node of level l stands l behind the root; the last level is named but not read.
        levels = min(drafter.tree.levels, budget.max_depth, drafter.context - self.position + 1)
        tree = replace(drafter.tree, levels=max(1, levels))
        where = (drafter.eos_id, self.position - 1, [drafter.embed.weight, *drafter.tables], cache)
        grown = self.kernel.grow(root, tree, budget.min_path_prob, budget.min_frontier_prob, *where)
        found = [part.cpu().numpy() for part in grown]
        self.trace.forward("drafter", self.trace.now() - began)
        proposal = best_nodes(found[0], found[1], found[2], budget, drafter.name)
        if budget.show is not None:
            budget.show(best_chain(proposal))
        return proposal

    def _read(self) -> Tensor:
        """Read the pairs that were committed since; the predicted feature behind the last one, [1, D]."""
        drafter, began = self.drafter, self.trace.now()
        tapped = torch.cat(self.tapped)
        embeds = drafter.embed(torch.tensor(self.tokens, device=tapped.device))
        first = self.cache is None
        prompt = self._prompt() if first else None
        if self.global_feature is not None and isinstance(drafter.head, VispecHead):
            tapped = drafter.head.fuse_global(tapped, self.global_feature)
        last = self.position + len(self.tokens)
        inputs = HeadInputs(embeds, tapped, torch.arange(self.position, last, device=tapped.device))
        if prompt is not None:
            inputs, rows = prompt.followed_by(inputs), len(prompt.embeds) + self.request.sampling.max_new_tokens + 1
            rows += len(self.tokens) + drafter.tree.rows
            self.cache, self._loan = drafter.begun(self.request.media, inputs, rows)
            inputs = inputs.behind(self.cache.length)
        assert self.cache is not None
        cos, sin = drafter.tables
        fused = drafter.head.fuse_inputs(inputs.embeds, drafter.head.features(inputs.tapped), inputs.embedding_only)
        read = self.kernel.read(*fused, (cos[inputs.positions], sin[inputs.positions]), self.cache)
        self.cache.keep(len(inputs.embeds), [])
        self.position, self.tokens, self.tapped = last, [], []
        if first:
            self.trace.span("drafter prefill", "target", began)
        return read

    def _prompt(self) -> HeadInputs:
        """What the head sees of the prompt; `position` is then behind its pairs."""
        drafter, prompt = self.drafter, self.target.prompt()
        assert prompt.features is not None
        self.position = len(prompt.rows) - 1
        places = torch.arange(self.position, device=prompt.rows.device)
        seen = drafter.view(HeadInputs(prompt.rows[1:], prompt.features[:-1], places), prompt.visual)
        self.global_feature = seen.global_feature
        if seen.global_feature is not None and isinstance(drafter.head, VispecHead):
            self.kernel = drafter.kernel.with_fuse(drafter.head.folded(seen.global_feature))
        return seen
