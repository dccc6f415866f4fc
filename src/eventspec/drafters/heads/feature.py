"""Heads on the target's features as drafters: a head reads what the target computed, drafts a tree from the last verified
feature, and re-reads the true features of what was committed (EAGLE-1, 2 and 3 alike; the head decides)."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from eventspec.core import Budget, Drafter, DraftSession, Media, Proposal, Request, Scores, TargetPrompt, Trace, Verdict
from eventspec.drafters.heads.head import Drafting, HeadConfig
from eventspec.drafters.heads.trees import Rates, tree_config
from eventspec.drafters.heads.views import HeadInputs, PromptView
from eventspec.machine import arrived
from eventspec.nn import KVCache
from eventspec.nn.cache import LentCache, Loan
from eventspec.nn.draft import DraftKernel, TreeConfig
from eventspec.nn.llama import LanguageEnds, rope_tables
from eventspec.nn.weights import TreeGrowth
from eventspec.tree import best_chain, best_nodes

NO_TOKEN = -1
"""In place of the end token where a tree expands that too."""


class FeatureHead(Protocol):
    """A head of one decoder layer, or a few, over pairs of a token's feature and the embedding of the token after it."""

    taps: tuple[int, ...]
    view: PromptView

    @property
    def config(self) -> HeadConfig: ...

    def features(self, tapped: Tensor) -> Tensor:
        """Tapped outputs [..., F] -> features [..., D]."""

    def fuse_inputs(self, embeds: Tensor, hidden: Tensor, embedding_only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings of the next token and features of this one [..., D] -> what the attention reads [..., I], and the residual
        [..., D]; rows that are `embedding_only` bool [...] have no feature."""

    def kernel(self, target: LanguageEnds) -> DraftKernel:
        """The weights of the drafting pass."""


def feature_drafter(head: FeatureHead, name: str, drafting: Drafting) -> FeatureDrafter:
    """As `Head.drafter`, growing trees in machine code where that can be."""
    made = FeatureDrafter(name, head, drafting.target, drafting.eos_id, tree_config(drafting.tree, drafting.rates))
    made.kernel, made.rates = made.kernel.natively(), drafting.rates
    return made


class FeatureDrafter(Drafter):
    """`head` drafts for `target`; `eos_id` is the last token of an answer."""

    needs_target = True

    def __init__(self, name: str, head: FeatureHead, target: LanguageEnds, eos_id: int, tree: TreeConfig) -> None:
        weight = target.embed.weight
        self.name, self.head, self.sizes, self.eos_id = name, head, head.config.language, eos_id
        self.called = name  # the head's own name, where it drafts under that of a method
        self.taps, self.embed, self.kernel, self.tree = head.taps, target.embed, head.kernel(target), tree.on(weight.device)
        self.rates: Rates = ()
        self._read: WeakKeyDictionary[Media, tuple[HeadInputs, LentCache]] = WeakKeyDictionary()
        # As long as the target's context, whatever the head's config says: rotation has no weights.
        self.context = target.config.max_position_embeddings
        cos, sin = rope_tables(self.sizes, self.context)
        self.tables = cos.to(weight), sin.to(weight)

    def with_tree(self, tree: TreeConfig) -> FeatureDrafter:
        """The same head, growing another kind of tree."""
        twin = copy(self)
        twin.tree, twin._read = tree.on(self.embed.weight.device), WeakKeyDictionary()
        return twin

    def begun(self, media: Media, inputs: HeadInputs, rows: int) -> tuple[KVCache, Loan]:
        """A cache of at least `rows` rows that has as much of a prompt as questions about the same recording shared with it;
        at least the last pair is left to be read."""
        kept = 0
        if media in self._read:
            before, lent = self._read[media]
            kept = min(before.shared(inputs), lent.cache.length)
        else:
            sizes, weight = self.sizes, self.embed.weight
            cache = KVCache(
                len(self.kernel.weights.layers), sizes.num_key_value_heads, sizes.head_dim, rows, weight.dtype, weight.device
            )
            lent = LentCache(cache)
        found, loan = lent.lend(kept, rows)
        if found is lent.cache:
            self._read[media] = inputs, lent
        return found, loan

    def read(self, inputs: HeadInputs, cache: KVCache, kernel: DraftKernel) -> Tensor:
        """Read pairs after the cached ones; the predicted feature after the last one, [1, D]. Not committed."""
        cos, sin = self.tables
        fused = self.head.fuse_inputs(inputs.embeds, self.head.features(inputs.tapped), inputs.embedding_only)
        return kernel.read(*fused, (cos[inputs.positions], sin[inputs.positions]), cache)

    def open(self, request: Request, target: TargetPrompt | None, trace: Trace) -> DraftSession:
        """As `core.Drafter.open`; the target's session must have been opened with this drafter's taps."""
        assert target is not None
        return FeatureDraft(self, request, target, trace)


class FeatureDraft(DraftSession):
    """The head's cache, and the committed tokens with their features that it has not read yet."""

    def __init__(self, drafter: FeatureDrafter, request: Request, target: TargetPrompt, trace: Trace) -> None:
        self.drafter, self.request, self.target, self.trace = drafter, request, target, trace
        self.tokens: list[int] = []
        self.tapped: list[Tensor] = []
        self.cache: KVCache | None = None
        self.kernel = drafter.kernel
        self.global_feature: Tensor | None = None  # fused into every feature, [D]
        self.root: Tensor | None = None  # the predicted feature after the last pair that was read, [1, D]
        self.position = 0  # after the last pair that was read

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Keep what was committed with the features it was judged from; it is read when the next draft is wanted."""
        if scores.features is None:
            raise ValueError("the target gave no features: it does not know the layers that this head reads")
        rows = torch.from_numpy(np.concatenate(([0], verdict.path + 1)))
        self.tokens += verdict.tokens.tolist()
        self.tapped.append(scores.features[rows.to(scores.features.device)])

    def propose(self, budget: Budget) -> Proposal:
        drafter, began = self.drafter, self.trace.now()
        if self.tokens:
            self.root = self._read()
        root, cache = self.root, self.cache
        assert root is not None and cache is not None
        # A node of level l stands l after the root; the last level is named but not read.
        tree, levels = drafter.tree, min(drafter.tree.levels, budget.max_depth, drafter.context - self.position + 1)
        end = drafter.eos_id
        if tree.whole:
            budget, end = replace(budget, min_path_prob=0.0, min_frontier_prob=0.0), NO_TOKEN
        least = budget.min_path_prob, budget.min_frontier_prob
        growth = TreeGrowth(tree.width, max(1, levels), *least, end, self.position - 1, list(tree.shape))
        grown = self.kernel.grow(root, growth, [drafter.embed.weight, *drafter.tables], cache)
        tokens, parents, logs = (part.cpu().numpy() for part in grown)
        self.trace.forward("drafter", self.trace.now() - began)
        proposal = best_nodes(tokens, parents, logs, budget, drafter.name)
        if budget.show is not None:
            budget.show(best_chain(proposal))
        return proposal

    def _read(self) -> Tensor:
        """Read the pairs that were committed since; the predicted feature after the last one, [1, D]."""
        drafter, began = self.drafter, self.trace.now()
        tapped = torch.cat(self.tapped)
        embeds = drafter.embed(torch.tensor(self.tokens, device=tapped.device))
        prompt = self._prompt() if self.cache is None else None
        if self.global_feature is not None:
            tapped = drafter.head.view.fuse_global(tapped, self.global_feature)
        last = self.position + len(self.tokens)
        inputs = HeadInputs(embeds, tapped, torch.arange(self.position, last, device=tapped.device))
        if prompt is not None:
            rows = len(prompt.embeds) + self.request.sampling.max_new_tokens + 1 + len(self.tokens) + drafter.tree.rows
            self.cache, self._loan = drafter.begun(self.request.media, prompt, rows)
            inputs = prompt.continued(inputs, self.cache.length)
        assert self.cache is not None
        # By the weights that the answer began with: a head may learn meanwhile.
        read = drafter.read(inputs, self.cache, self.kernel)
        self.cache.keep(len(inputs.embeds), [])
        self.position, self.tokens, self.tapped = last, [], []
        if prompt is not None:
            arrived(read)
            self.trace.span("drafter prefill", "target", began)
        return read

    def _prompt(self) -> HeadInputs:
        """What the head sees of the prompt; `position` is then that after its pairs."""
        drafter, prompt = self.drafter, self.target.prompt(self.drafter.head.view.sees_visual)
        assert prompt.features is not None
        self.position = len(prompt.rows) - 1
        places = torch.arange(self.position, device=prompt.rows.device)
        seen = drafter.head.view.pairs(HeadInputs(prompt.rows[1:], prompt.features[:-1], places), prompt.visual)
        self.global_feature, self.trace.compressor = seen.global_feature, seen.branch
        if seen.global_feature is not None:
            self.kernel = drafter.head.view.kernel_for(self.kernel, seen.global_feature)
        return seen
