"""A head on the target's features as a drafter: it reads what the target computed, drafts a tree from the last verified
feature, and re-reads the true features of what was committed (EAGLE-1, 2 and 3 alike; the head decides).

Pairs: the feature of a token together with the embedding of the token behind it. The first pairs are the prompt's; `Prefix`
says which of them the head gets to see.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eventspec.compress import Elastic
from eventspec.core import Budget, DraftSession, Proposal, Request, Scores, TargetSession, Trace, Verdict
from eventspec.drafters.vispec import VispecHead
from eventspec.engine.tree import best_chain, best_nodes
from eventspec.nn import KVCache, Llama, LlamaConfig
from eventspec.nn.draft import Growth, Hot, fixed_tree
from eventspec.nn.llama import rope_tables


class FeatureHead(Protocol):
    """What the drafter needs of a head; `drafters.eagle` and `drafters.eagle3` are two."""

    taps: tuple[int, ...]

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]."""

    def joined(self, embeds: Tensor, hidden: Tensor, plain: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings and features [..., D] -> what the attention reads [..., I], and the residual [..., D]; rows that are
        `plain` are their embedding alone."""

    def hot(self, target: Llama) -> Hot:
        """The weights of the drafting pass."""


@dataclass(frozen=True)
class Pairs:
    """Embeddings float [M, D], tapped outputs float [M, F], and positions in the target's prompt int64 [M]; `plain` bool [M]:
    which rows are their embedding alone; `whole` float [D]: a vector of all visual rows that every feature is told (ViSpec)."""

    embeds: Tensor
    tapped: Tensor
    positions: Tensor
    plain: Tensor | None = None
    whole: Tensor | None = None


Prefix = Callable[[Pairs, tuple[int, int]], Pairs]
"""(all pairs of the prompt, where the visual ones lie) -> those the head sees."""


def whole(pairs: Pairs, visual: tuple[int, int]) -> Pairs:
    """The head sees the whole prompt."""
    return pairs


def decoupled(pairs: Pairs, visual: tuple[int, int]) -> Pairs:
    """Pairs whose next row is visual are that row alone (MSD)."""
    order = torch.arange(len(pairs.embeds), device=pairs.embeds.device)
    return replace(pairs, plain=(order >= visual[0] - 1) & (order < visual[1] - 1))


def adapted(head: VispecHead) -> Prefix:
    """A few vectors instead of the pairs whose next row is visual, where the last of these stood (ViSpec)."""

    def seen(pairs: Pairs, visual: tuple[int, int]) -> Pairs:
        if visual[0] == visual[1]:
            whole = torch.zeros_like(pairs.tapped[0])
            return replace(pairs, tapped=head.told(pairs.tapped, whole), whole=whole)
        begin, end = max(0, visual[0] - 1), visual[1] - 1
        vectors, whole = head.adaptor(pairs.embeds[begin:end])
        first = max(begin, end - len(vectors))  # a span that is shorter than the vectors are many takes the last of them
        vectors = vectors[len(vectors) - (end - first) :]
        order = torch.arange(len(pairs.embeds), device=whole.device)
        kept = (order < begin) | (order >= first)
        tapped = head.told(pairs.tapped, whole * (order >= begin)[:, None])
        return Pairs(
            torch.cat((pairs.embeds[:begin], vectors, pairs.embeds[end:])),
            tapped[kept],
            pairs.positions[kept],
            ((order >= begin) & (order < end))[kept],
            whole,
        )

    return seen


def compressed(elastic: Elastic) -> Prefix:
    """The head sees the visual pairs through a compressor, which looks at the question's features."""

    def seen(pairs: Pairs, visual: tuple[int, int]) -> Pairs:
        begin, end = visual
        rows = torch.cat((pairs.embeds[begin:end], pairs.tapped[begin:end]), 1)
        kept, places = elastic(rows, pairs.tapped[end:])
        embeds, tapped = kept.chunk(2, 1)
        return Pairs(
            torch.cat((pairs.embeds[:begin], embeds, pairs.embeds[end:])),
            torch.cat((pairs.tapped[:begin], tapped, pairs.tapped[end:])),
            torch.cat((pairs.positions[:begin], pairs.positions[begin:end][places], pairs.positions[end:])),
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
TREES = {"dynamic": Growth(levels=LEVELS), "published": fixed_tree(STATIC), "chain": Growth(1, LEVELS)}
"""EAGLE-2's dynamic tree, the fixed one that EAGLE-1's code ships, and no tree at all."""


class FeatureDrafter:
    """`head` drafts for `target`, whose vocabulary and width `sizes` have; `end` is the token after which nothing follows."""

    concurrent = False

    def __init__(
        self, name: str, head: FeatureHead, sizes: LlamaConfig, target: Llama, end: int, growth: Growth, prefix: Prefix = whole
    ) -> None:
        weight = target.embed.weight
        self.name, self.head, self.sizes, self.end, self.prefix = name, head, sizes, end, prefix
        self.taps, self.embed, self.hot, self.growth = head.taps, target.embed, head.hot(target), growth.on(weight.device)
        # As long as the target's context, whatever the head's config says: rotation has no weights.
        self.context = target.config.max_position_embeddings
        cos, sin = rope_tables(sizes, self.context)
        self.tables = cos.to(weight), sin.to(weight)

    def with_growth(self, growth: Growth) -> FeatureDrafter:
        """The same head, growing another kind of tree."""
        twin = copy(self)
        twin.growth = growth.on(self.embed.weight.device)
        return twin

    def open(self, request: Request, target: TargetSession | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`; the target's session must have been prefilled with this drafter's taps."""
        assert target is not None
        return FeatureDraft(self, target, request.sampling.max_new_tokens, trace)


class FeatureDraft:
    """The head's cache, and the committed tokens with their features that it has not read yet."""

    def __init__(self, drafter: FeatureDrafter, target: TargetSession, most: int, trace: Trace) -> None:
        self.drafter, self.target, self.most, self.trace = drafter, target, most, trace
        self.tokens: list[int] = []
        self.tapped: list[Tensor] = []
        self.cache: KVCache | None = None
        self.hot = drafter.hot
        self.whole: Tensor | None = None  # what every feature is told of the recording, [D]
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
        levels = min(drafter.growth.levels, budget.levels, drafter.context - self.position + 1)
        growth = replace(drafter.growth, levels=max(1, levels))
        where = (drafter.end, self.position - 1, [drafter.embed.weight, *drafter.tables], cache)
        grown = self.hot.grow(root, growth, budget.floor, budget.mass, *where)
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
        seen = (
            self._prompt() if first else Pairs(embeds[:0], tapped[:0], torch.empty(0, dtype=torch.int64, device=tapped.device))
        )
        if self.whole is not None and isinstance(drafter.head, VispecHead):
            tapped = drafter.head.told(tapped, self.whole)
        last = self.position + len(self.tokens)
        positions = torch.cat((seen.positions, torch.arange(self.position, last, device=tapped.device)))
        embeds, tapped = torch.cat((seen.embeds, embeds)), torch.cat((seen.tapped, tapped))
        plain = None if seen.plain is None else torch.cat((seen.plain, seen.plain.new_zeros(len(self.tokens))))
        if self.cache is None:
            self.cache = self._new_cache(len(embeds))
        cos, sin = drafter.tables
        joined = drafter.head.joined(embeds, drafter.head.features(tapped), plain)
        read = self.hot.read(*joined, (cos[positions], sin[positions]), self.cache)
        self.cache.keep(len(embeds), [])
        self.position, self.tokens, self.tapped = last, [], []
        if first:
            self.trace.span("drafter prefill", "target", began)
        return read

    def _prompt(self) -> Pairs:
        """What the head sees of the prompt; `position` is then behind its pairs."""
        drafter, prompt = self.drafter, self.target.prompt()
        self.position = len(prompt.rows) - 1
        places = torch.arange(self.position, device=prompt.rows.device)
        seen = drafter.prefix(Pairs(prompt.rows[1:], prompt.features[:-1], places), prompt.visual)
        self.whole = seen.whole
        if seen.whole is not None and isinstance(drafter.head, VispecHead):
            self.hot = drafter.hot.with_fuse(drafter.head.folded(seen.whole))
        return seen

    def _new_cache(self, rows: int) -> KVCache:
        drafter, sizes = self.drafter, self.drafter.sizes
        capacity = rows + self.most + 1 + drafter.growth.rows
        weight = drafter.embed.weight
        return KVCache(self.hot.blocks, sizes.num_key_value_heads, sizes.head_dim, capacity, weight.dtype, weight.device)
